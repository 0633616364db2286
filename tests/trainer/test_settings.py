"""The example configuration loads, and values that cannot work are refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from atroposlib.config.trainer import TrainerSettings

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "trainer.yaml"


def test_example_configuration_loads() -> None:
    settings = TrainerSettings(**yaml.safe_load(EXAMPLE.read_text(encoding="utf-8")))
    assert settings.loss.name == "topk_distillation"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("keep_checkpoints", 1),
        ("betas", [0.9, 1.0]),
        ("device", "tpu"),
        ("api_url", "localhost:8000"),
        ("student_url", "localhost:9001"),
        ("loss", {"name": "cross_entropy"}),
        ("loss", {"divergence": "forward"}),
        ("batchsize", 8),
    ],
)
def test_values_that_cannot_work_are_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(ValidationError, match=field):
        TrainerSettings(model="m", output_dir="o", **{field: value})
