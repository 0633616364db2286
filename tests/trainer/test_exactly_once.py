"""Counted on the weights that survive, the trainer trains every batch once, whatever is lost on the way."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from atroposlib.trainer.client import TrainerClient
from atroposlib.trainer.run import registration, run, starting_point
from tests.api.support import ApiClient, serving
from tests.trainer.runs import events, make_settings
from tests.trainer.support import NO_BATCH, Reply, Script, lease_reply, make_groups, scripted_http

LEASE = "/v1/batches/lease"


@pytest.fixture
def api() -> Iterator[ApiClient]:
    with serving() as client:
        yield client


@pytest.fixture
def script() -> Iterator[Script]:
    """An API that keeps no books."""
    with scripted_http() as script:
        script.always["/v1/trainers"] = Reply({"step": 0, "replayed": 0})
        script.always[LEASE] = NO_BATCH
        yield script


def names(groups: list[Any]) -> list[str]:
    return [group["group_id"] for group in groups]


def trained(work: Path) -> list[str]:
    return [name for step in events(work, "step") for name in step["group_ids"]]


def trainer(api: ApiClient) -> dict[str, Any]:
    (known,) = api.get("/v1/status")["trainers"]
    return dict(known)


def test_a_finished_run_has_acked_and_committed_every_batch(
    api: ApiClient, tiny_model_dir: Path, tmp_path: Path
) -> None:
    api.post("/scored_data_list", make_groups(4))
    run(make_settings(api.url, tiny_model_dir, tmp_path))
    facts = json.loads((tmp_path / "checkpoints" / "step-2" / "atropos.json").read_text())
    batch_ids = [step["batch_id"] for step in events(tmp_path, "step")]
    trainer_id = str(tmp_path / "checkpoints")
    assert facts == {"trainer_id": trainer_id, "step": 2, "batch_id": batch_ids[-1], "lost": []}
    known = trainer(api)
    assert (known["trainer_id"], known["last_committed"]) == (facts["trainer_id"], batch_ids[-1])
    assert (known["leased"], known["acked"]) == (0, 0)
    assert api.get("/v1/status")["uncommitted"] == 0


def test_what_is_in_no_checkpoint_is_kept_when_the_trainer_is_killed(
    api: ApiClient, tiny_model_dir: Path, tmp_path: Path
) -> None:
    api.post("/scored_data_list", make_groups(3, sequences=8))
    process = start_training(api, tiny_model_dir, tmp_path, total_steps=9, save_every=2)
    end_after(process, "step 3/9")
    known, steps = trainer(api), events(tmp_path, "step")
    assert known["last_committed"] == steps[1]["batch_id"]
    # Whether the ack of the third still went out or not, the API keeps it.
    assert known["acked"] + known["leased"] == 1


def start_training(api: ApiClient, model: Path, work: Path, **changes: Any) -> subprocess.Popen[str]:
    """``atropos train`` as a process."""
    settings = make_settings(api.url, model, work, **changes)
    (work / "train.yaml").write_text(settings.model_dump_json())
    command = [sys.executable, "-m", "atroposlib.cli.main", "train", "--config", str(work / "train.yaml")]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


def end_after(process: subprocess.Popen[str], words: str) -> None:
    """Kill it without a chance to tidy up, once it has said something."""
    assert process.stderr is not None
    with process:
        for line in process.stderr:
            if words in line:
                process.send_signal(signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL


def test_a_run_that_died_before_its_first_checkpoint_gets_its_batches_again(
    api: ApiClient, tiny_model_dir: Path, tmp_path: Path
) -> None:
    groups = make_groups(6)
    api.post("/scored_data_list", groups)
    settings = make_settings(api.url, tiny_model_dir, tmp_path, total_steps=3)
    died = TrainerClient(api.url)
    died.register(registration(settings, 0), starting_point(settings, tiny_model_dir).trainer_id)
    first = died.lease(wait_s=10)
    assert first is not None
    died.ack(first)
    assert died.lease(wait_s=10) is not None
    run(settings)
    died.close()
    assert trained(tmp_path) == names(groups)
    assert events(tmp_path, "step")[0]["batch_id"] == first.batch_id
    assert api.counts()["trained"] == 6
    assert api.get("/v1/status")["step"] == 3


def test_going_on_from_a_checkpoint_trains_what_came_after_it(
    api: ApiClient, tiny_model_dir: Path, tmp_path: Path
) -> None:
    groups = make_groups(3, sequences=8)
    api.post("/scored_data_list", groups)
    first, second = tmp_path / "first", tmp_path / "second"
    second.mkdir()
    first.mkdir()
    run(make_settings(api.url, tiny_model_dir, first, total_steps=1))
    settings = make_settings(api.url, tiny_model_dir, first, total_steps=3)
    later = TrainerClient(api.url)
    facts = json.loads((first / "checkpoints" / "step-1" / "atropos.json").read_text())
    later.register(registration(settings, 1), facts["trainer_id"], facts["batch_id"])
    acked = later.lease(wait_s=10)
    assert acked is not None
    later.ack(acked)
    later.close()
    run(
        make_settings(
            api.url,
            first / "checkpoints" / "step-1",
            second,
            total_steps=3,
            trainer_id=facts["trainer_id"],
        )
    )
    assert [step["step"] for step in events(second, "step")] == [2, 3]
    assert trained(first) + trained(second) == names(groups)
    assert (trainer(api)["acked"], api.get("/v1/status")["step"]) == (0, 3)


def test_weights_of_another_run_are_a_fresh_start(tiny_model_dir: Path, tmp_path: Path) -> None:
    facts = {"trainer_id": "somebody", "step": 7, "batch_id": "b"}
    (tmp_path / "atropos.json").write_text(json.dumps(facts))
    settings = make_settings("http://127.0.0.1:9", tmp_path, tmp_path, trainer_id="me")
    start = starting_point(settings, tmp_path)
    assert (start.trainer_id, start.step, start.batch_id) == ("me", 0, None)


def test_name_of_a_deep_directory_fits_and_stays_its_own(tmp_path: Path) -> None:
    ids = []
    for front in ("a", "b"):
        settings = make_settings("http://127.0.0.1:9", tmp_path, tmp_path / front / ("x" * 200))
        ids.append(starting_point(settings, tmp_path).trainer_id)
    assert [len(trainer_id) for trainer_id in ids] == [128, 128]
    assert ids[0] != ids[1]


def test_a_batch_whose_ack_was_lost_is_not_trained_a_second_time(
    script: Script, tiny_model_dir: Path, tmp_path: Path
) -> None:
    first, second = make_groups(2, sequences=8)
    script.then(
        LEASE,
        lease_reply(first, batch_id="b1"),
        lease_reply(first, batch_id="b1", attempt=2),
        lease_reply(second, batch_id="b2"),
    )
    ack = "/v1/batches/b1/ack"
    script.then(ack, Reply({"code": "api.lease_lost", "detail": "late"}, status=409), Reply({"step": 1}))
    script.always["/v1/batches/b2/ack"] = Reply({"step": 2})
    script.always["/v1/trainers/t/commit"] = Reply({"committed": 2})
    run(make_settings(script.url, tiny_model_dir, tmp_path, trainer_id="t"))
    assert [step["batch_id"] for step in events(tmp_path, "step")] == ["b1", "b2"]
    assert [body["attempt"] for body in script.bodies[ack]] == [1, 2]
    (lost,) = events(tmp_path, "lease_lost")
    assert (lost["batch_id"], lost["step"], lost["code"]) == ("b1", 1, "api.lease_lost")
    (end,) = events(tmp_path, "end")
    assert (end["leases_lost"], end["groups_trained"], end["groups_unused"]) == (1, 2, 0)


def test_a_batch_in_the_checkpoint_whose_ack_was_lost_is_not_trained_after_a_restart(
    script: Script, tiny_model_dir: Path, tmp_path: Path
) -> None:
    lost, other = make_groups(2, sequences=8)
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    ack = "/v1/batches/b1/ack"
    script.then(ack, Reply({"code": "api.lease_lost", "detail": "late"}, status=409), Reply({"step": 1}))
    script.then(LEASE, lease_reply(lost, batch_id="b1"))
    run(make_settings(script.url, tiny_model_dir, first, trainer_id="t", total_steps=1))
    checkpoint = first / "checkpoints" / "step-1"
    assert json.loads((checkpoint / "atropos.json").read_text())["lost"] == ["b1"]
    script.then(LEASE, lease_reply(lost, batch_id="b1", attempt=2), lease_reply(other, batch_id="b2"))
    script.always["/v1/batches/b2/ack"] = Reply({"step": 2})
    script.always["/v1/trainers/t/commit"] = Reply({"committed": 2})
    run(make_settings(script.url, checkpoint, second, trainer_id="t", total_steps=2))
    assert [step["batch_id"] for step in events(second, "step")] == ["b2"]
    assert [body["attempt"] for body in script.bodies[ack]] == [1, 2]
    facts = json.loads((second / "checkpoints" / "step-2" / "atropos.json").read_text())
    assert facts["lost"] == []


def test_a_checkpoint_whose_batch_the_api_forgot_ends_no_run(
    script: Script, tiny_model_dir: Path, tmp_path: Path
) -> None:
    (group,) = make_groups(1, sequences=8)
    script.then(LEASE, lease_reply(group, batch_id="b1"))
    script.always["/v1/batches/b1/ack"] = Reply({"step": 1})
    refusal = Reply({"code": "api.unknown_batch", "detail": "never heard of"}, status=404)
    script.always["/v1/trainers/t/commit"] = refusal
    assert run(make_settings(script.url, tiny_model_dir, tmp_path, trainer_id="t", total_steps=1)) == 0
    assert script.bodies["/v1/trainers/t/commit"] == [{"batch_id": "b1"}]


def test_a_spent_batch_without_targets_is_acked(api: ApiClient, tiny_model_dir: Path, tmp_path: Path) -> None:
    bare, good = make_groups(2, sequences=8)
    bare |= {"distill_token_ids": None, "distill_logprobs": None}
    api.post("/scored_data_list", [bare, good])
    run(make_settings(api.url, tiny_model_dir, tmp_path, total_steps=1))
    assert trained(tmp_path) == ["group-0-1"]
    counts = api.counts()
    assert (counts["trained"], counts["leased"]) == (2, 0)
    assert api.get("/v1/status")["uncommitted"] == 0
