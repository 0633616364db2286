"""GET /metrics: every declared metric, with the values that the run has."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from atroposlib.api.metric_table import METRICS
from atroposlib.cli.main import main
from atroposlib.teacher.metric_table import COVERAGE_METRIC, PREFIX, TEACHER_METRICS
from atroposlib.wire.frame import encode_group
from atroposlib.wire.media import FRAME_TYPE
from tests.api.support import ApiClient, group, registration

DOCUMENTED = Path(__file__).parents[2] / "docs" / "api.md"


def samples(api: ApiClient) -> dict[str, float]:
    """Values by name, labels in braces."""
    found = {}
    for family in text_string_to_metric_families(api.raw("GET", "/metrics").text):
        for sample in family.samples:
            labels = ",".join(f"{name}={value}" for name, value in sorted(sample.labels.items()))
            found[sample.name + (f"{{{labels}}}" if labels else "")] = sample.value
    return found


def test_what_is_declared_is_exposed(api: ApiClient) -> None:
    families = list(text_string_to_metric_families(api.raw("GET", "/metrics").text))
    exposed = {(family.name, family.type) for family in families if not family.name.endswith("_created")}
    assert exposed == {(metric.name.removesuffix("_total"), metric.kind) for metric in METRICS}


def test_the_values_are_those_of_the_run(api: ApiClient) -> None:
    api.start(batch_size=8)
    env_id = api.add_env()
    api.clock.now += 5.0
    first = group(token=1, policy_version=0, env_id=env_id, group_id="a")
    body = encode_group(first)
    for _ in range(2):
        api.raw("POST", "/v1/groups", body, Content_Type=FRAME_TYPE)
    api.raw("POST", "/scored_data", b"{}")
    api.clock.now += 2.0
    values = samples(api)
    assert values["atropos_queue_groups"] == 1
    assert values["atropos_queue_sequences"] == 4
    assert values["atropos_queue_age_seconds"] == 2.0
    assert values["atropos_queue_bytes"] == len(body)
    assert values["atropos_group_received_total"] == 1
    assert values["atropos_group_duplicate_total"] == 1
    assert values["atropos_group_refused_total{code=wire.invalid_group}"] == 1
    assert values["atropos_wire_bytes_total{codec=frame,dir=in}"] == 2 * len(body)
    assert values["atropos_env_connected"] == 1

    api.post("/scored_data_list", [group(token=2), group(16, token=3)])
    api.post("/register", registration(starting_step=3))
    assert len(api.get("/batch")["batch"]) == 2
    values = samples(api)
    assert values["atropos_step"] == 4
    assert values["atropos_group_trained_total"] == 2
    assert values["atropos_group_dropped_total{reason=larger_than_batch}"] == 1
    # The trainer had asked in start(), 7 s ago; the group was sampled 3 steps ago.
    assert values["atropos_trainer_wait_seconds_total"] == 7.0
    assert values["atropos_policy_staleness_steps_sum"] == 3
    assert values["atropos_batch_age_seconds_sum"] == 2.0


def test_an_environment_that_waits_for_a_trainer_is_told_of(api: ApiClient) -> None:
    body = {"max_token_length": 9, "desired_name": "math", "weight": 1.0, "group_size": 4}
    assert api.post("/register-env", body) == {"status": "wait for trainer to start"}
    (wait,) = api.get("/v1/status")["waiting"]
    assert (wait["who"], wait["for"]) == ("environment math", "a trainer")
    api.clock.now += 3.0
    api.start()
    assert api.post("/register-env", body)["status"] == "success"
    assert samples(api)["atropos_env_wait_seconds_total"] == 3.0


def test_the_command_lists_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["metrics"]) == 0
    api, _, teachers = capsys.readouterr().out.partition("\n\n")
    assert [re.split(r"[{ ]", line)[0] for line in api.splitlines()] == [metric.name for metric in METRICS]
    listed = [line.split()[0] for line in teachers.splitlines()[1:]]
    assert listed == [*(PREFIX + name for name in TEACHER_METRICS), COVERAGE_METRIC[0]]


def test_the_page_documents_them() -> None:
    text = DOCUMENTED.read_text(encoding="utf-8")
    documented = set(re.findall(r"^\| `(atropos_[a-z_]+)", text, flags=re.MULTILINE))
    assert documented == {metric.name for metric in METRICS}
