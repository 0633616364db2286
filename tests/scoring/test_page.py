"""The page and the example configuration say what the code does."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from atroposlib.config.scoring import ScoreSettings
from atroposlib.config.teachers import all_teachers
from atroposlib.scoring.chat import REASONS
from atroposlib.wire.shards import FramePlace
from tests.trainer.shards import write_data
from tests.trainer.support import make_groups

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "offline-scoring.md").read_text(encoding="utf-8")


def test_every_reason_for_a_refusal_is_told() -> None:
    rows = PAGE.partition("## What becomes")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", rows, re.MULTILINE)) == set(REASONS)


def test_the_manifest_s_frames_are_told() -> None:
    assert f"`frames` as [{', '.join(FramePlace._fields)}]" in PAGE


def test_the_example_configuration_loads() -> None:
    text = (DOCS / "examples" / "score.yaml").read_text(encoding="utf-8")
    settings = ScoreSettings(**yaml.safe_load(text))
    assert [len(one.servers()) for one in all_teachers([], settings.teachers).values()] == [2, 1]


def test_the_code_of_the_page_reads_every_group(tmp_path: Path) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    write_data(tmp_path, make_groups(5))
    names: list[str] = []
    found = {"found": names}
    exec(code.replace('"scored"', repr(str(tmp_path))) + '    found.append(group.rest["group_id"])\n', found)
    assert names == [group["group_id"] for group in make_groups(5)]
