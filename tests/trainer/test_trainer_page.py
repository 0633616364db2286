"""The loop that docs/trainer.md shows trains and commits what is queued, as it stands there."""

from __future__ import annotations

import re
from pathlib import Path

from tests.api.support import serving
from tests.trainer.support import make_groups

PAGE = Path(__file__).parents[2] / "docs" / "trainer.md"


def test_the_loop_of_the_page_runs() -> None:
    (loop,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    saved: list[str] = []

    def save(batch_id: str) -> bool:
        saved.append(batch_id)
        return True

    with serving() as api:
        api.post("/scored_data_list", make_groups(4))
        code = loop.replace("http://127.0.0.1:8000", api.url).replace(
            "        ...", "        assert group.targets"
        )
        exec(
            code,
            {
                "load_last_batch_id": lambda: None,
                "training": lambda: len(saved) < 2,
                "save_checkpoint": save,
            },
        )
        assert api.counts()["trained"] == 4
        assert api.get("/v1/status")["uncommitted"] == 0
    assert len(set(saved)) == 2
