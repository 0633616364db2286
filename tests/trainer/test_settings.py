"""The example configuration loads, and values that cannot work are refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import ValidationError

from atroposlib.config.losses.choice import Auto
from atroposlib.config.trainer import TrainerSettings
from atroposlib.trainer.run import registration
from atroposlib.wire.registrations import Registration

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "trainer.yaml"


def test_example_configuration_loads() -> None:
    settings = TrainerSettings(**yaml.safe_load(EXAMPLE.read_text(encoding="utf-8")))
    assert settings.loss == [Auto()]


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


@pytest.mark.parametrize("lag", [None, 0, 3])
def test_the_limit_of_the_policy_s_age_is_told_to_the_api(lag: int | None) -> None:
    body = registration(TrainerSettings(model="m", output_dir="o", max_policy_lag=lag), starting_step=2)
    assert Registration(**body).max_policy_lag == lag
    assert body["starting_step"] == 2
