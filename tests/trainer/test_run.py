"""Whole runs: a real API, a real model server as the student, and the trainer between them."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import requests
import torch
import uvicorn
from safetensors.torch import load_file, save_file

from atroposlib.collate import Source, collate, row_targets, train_sequences
from atroposlib.config.modelserver import ModelServerSettings
from atroposlib.config.trainer import TrainerSettings
from atroposlib.errors import ApiError, RunError, UsageError
from atroposlib.modelserver.app import create_app
from atroposlib.modelserver.build import build_model
from atroposlib.modelserver.serve import reserve_port
from atroposlib.trainer import waiting
from atroposlib.trainer.client import TrainerClient
from atroposlib.trainer.loop import TrainingRun
from atroposlib.trainer.routes import V1Routes
from atroposlib.trainer.run import registration, run
from atroposlib.types import Group
from tests.api.support import ApiClient, serving
from tests.support.tiny import VOCAB_SIZE
from tests.trainer.inotify import opened_in
from tests.trainer.runs import events, make_settings
from tests.trainer.support import as_arrays, make_groups


@pytest.fixture
def api() -> Iterator[ApiClient]:
    with serving() as client:
        yield client


@contextmanager
def serving_model(directory: Path) -> Iterator[str]:
    """The URL of a model server in a thread."""
    model = build_model(ModelServerSettings(model=str(directory), device="cpu", port=0))
    listener = reserve_port("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(create_app(model), log_level="warning", access_log=False))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        model.scheduler.stop()
        thread.join(timeout=20)
        assert not thread.is_alive()


def most_likely_next_id(url: str, model: Path) -> int:
    request = {"model": str(model), "prompt": [40, 50, 60], "max_tokens": 1, "temperature": 0}
    answer = requests.post(f"{url}/v1/completions", json={**request, "return_token_ids": True}, timeout=20)
    return int(answer.json()["choices"][0]["token_ids"][0])


def test_a_run_lowers_the_loss_and_the_served_student_has_learnt(
    api: ApiClient, tiny_model_dir: Path, tmp_path: Path
) -> None:
    groups = make_groups(20)
    api.post("/scored_data_list", groups)
    with serving_model(tiny_model_dir) as student_url:
        settings = make_settings(
            api.url, tiny_model_dir, tmp_path, total_steps=10, refresh_every=4, student_url=student_url
        )
        assert run(settings) == 0
        assert requests.get(f"{student_url}/weight_info", timeout=20).json() == {"weight_version": "step-10"}
        assert most_likely_next_id(student_url, tiny_model_dir) == 7

    steps = events(tmp_path, "step")
    assert [step["step"] for step in steps] == list(range(1, 11))
    assert steps[-1]["loss"] < 0.2 * steps[0]["loss"]
    assert [name for step in steps for name in step["group_ids"]] == [group["group_id"] for group in groups]
    assert [version for step in steps for version in step["policy_versions"]] == list(range(20))
    assert all(step["target_tokens"] == step["trained_tokens"] > 0 for step in steps)
    assert [(e["step"], e["confirmed"]) for e in events(tmp_path, "refresh")] == [
        (4, True),
        (8, True),
        (10, True),
    ]
    (end,) = events(tmp_path, "end")
    assert (end["reason"], end["step"]) == ("finished", 10)
    assert (end["groups_trained"], end["groups_unused"], end["groups_dropped"]) == (20, 0, {})
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == ["step-10", "step-8"]
    assert api.counts()["trained"] == 20


def test_groups_posted_are_the_groups_trained_on(
    api: ApiClient, tiny_model_dir: Path, tmp_path: Path
) -> None:
    groups = make_groups(4)
    groups[0]["distill_logprobs"][0][5][2] = -math.inf
    client = TrainerClient(api.url)
    client.register(registration(make_settings(api.url, tiny_model_dir, tmp_path, batch_size=16), 0), "me")
    # The standard library's encoder writes -Infinity, as Atropos's clients do.
    assert api.raw("POST", "/scored_data_list", json.dumps(groups).encode()).status_code == 200
    delivered = client.lease()
    client.close()
    assert delivered is not None
    for left, right in zip(tensors(delivered.groups), tensors(as_arrays(groups)), strict=True):
        assert torch.equal(left, right)


def tensors(groups: list[Group]) -> list[torch.Tensor]:
    sequences, _ = train_sequences(groups, max_token_len=64, vocab_size=VOCAB_SIZE)
    batch = collate(sequences)
    targets = row_targets(batch, Source("teacher"))
    assert targets is not None
    return [batch.input_ids, targets.positions, targets.ids, targets.logprobs]


def test_groups_without_targets_and_too_long_ones_are_left_out_and_counted(
    api: ApiClient, tiny_model_dir: Path, tmp_path: Path
) -> None:
    good, bare, long = make_groups(3)
    bare |= {"distill_token_ids": None, "distill_logprobs": None}
    long |= make_groups(1, seed=5)[0] | {"group_id": "long"}
    for name in ("tokens", "masks", "distill_token_ids", "distill_logprobs"):
        long[name] = [array * 4 for array in long[name]]
    api.post("/scored_data_list", [good, bare, long])
    run(make_settings(api.url, tiny_model_dir, tmp_path, batch_size=12, total_steps=1, max_token_len=20))
    (step,) = events(tmp_path, "step")
    assert step["group_ids"] == ["group-0-0"]
    assert step["target_tokens"] < step["trained_tokens"]
    dropped = {
        event["reason"]: (event["sequences"], event["groups"]) for event in events(tmp_path, "dropped")
    }
    assert dropped == {"no_target": (4, 1), "too_long": (4, 1)}
    (end,) = events(tmp_path, "end")
    assert end["groups_dropped"] == {"no_target": 1, "too_long": 1}


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="inotify is Linux's")
def test_the_trainer_opens_no_model_directory_but_its_own(
    api: ApiClient, tiny_model_dir: Path, tmp_path: Path
) -> None:
    student, teacher = tmp_path / "models" / "student", tmp_path / "models" / "teacher"
    for directory in (student, teacher):
        shutil.copytree(tiny_model_dir, directory)
    api.post("/scored_data_list", make_groups(2))
    with opened_in(student) as student_files, opened_in(teacher) as teacher_files:
        run(make_settings(api.url, student, tmp_path, total_steps=1))
        assert "model.safetensors" in student_files()
        assert teacher_files() == set()


def test_a_loss_that_stays_not_finite_ends_the_run(
    api: ApiClient, tiny_model_dir: Path, tmp_path: Path
) -> None:
    broken = shutil.copytree(tiny_model_dir, tmp_path / "broken")
    weights = load_file(broken / "model.safetensors")
    weights["model.norm.weight"].fill_(torch.nan)
    save_file(weights, broken / "model.safetensors", metadata={"format": "pt"})
    api.post("/scored_data_list", make_groups(8))
    with pytest.raises(RunError) as caught:
        run(make_settings(api.url, broken, tmp_path, total_steps=4))
    assert caught.value.code == "train.not_finite"
    (end,) = events(tmp_path, "end")
    assert (end["reason"], end["step"], end["groups_trained"]) == ("train.not_finite", 0, 0)
    assert end["groups_dropped"] == {"not_finite": 6}
    assert end["groups_unused"] == 2
    assert events(tmp_path, "step") == []


def test_batches_that_never_have_a_target_end_the_run(
    api: ApiClient, tiny_model_dir: Path, tmp_path: Path
) -> None:
    bare = {"distill_token_ids": None, "distill_logprobs": None}
    api.post("/scored_data_list", [group | bare for group in make_groups(8)])
    with pytest.raises(RunError, match="teacher_enabled") as caught:
        run(make_settings(api.url, tiny_model_dir, tmp_path, total_steps=4))
    assert caught.value.code == "train.no_target"
    (end,) = events(tmp_path, "end")
    assert (end["reason"], end["groups_dropped"]) == ("train.no_target", {"no_target": 6})


def test_targets_of_another_tokenizer_alone_end_the_run_with_what_to_do(
    api: ApiClient, tiny_model_dir: Path, tmp_path: Path
) -> None:
    def aligned(group: Any) -> Any:
        tokens = group["tokens"]
        entry = {
            "name": "big",
            "same_tokenizer": False,
            "tokens": [[1, 2] for _ in tokens],
            "token_ids": [[[-1], [2]] for _ in tokens],
            "logprobs": [[[-9999.0], [-1.0]] for _ in tokens],
            "student_chunk_id": [[-1] * (len(row) - 1) + [0] for row in tokens],
            "teacher_chunk_id": [[-1, 0] for _ in tokens],
        }
        return group | {"distill_token_ids": None, "distill_logprobs": None, "teachers": [entry]}

    api.post("/scored_data_list", [aligned(group) for group in make_groups(8)])
    with pytest.raises(RunError, match="set loss: auto") as caught:
        run(make_settings(api.url, tiny_model_dir, tmp_path, total_steps=4, loss="topk_distillation"))
    assert caught.value.code == "train.no_target"
    (end,) = events(tmp_path, "end")
    assert end["groups_dropped"] == {"no_same_tokenizer_target": 6}


def test_a_run_whose_environments_left_too_early_ends_with_what_it_has(
    api: ApiClient, tiny_model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting, "LOOK_EVERY_S", 0.0)
    monkeypatch.setattr(waiting, "NO_ENVIRONMENT_GRACE_S", 0.0)
    api.start()
    api.post("/disconnect-env", {"env_id": api.add_env()})
    good, bare = make_groups(2, sequences=8)
    api.post("/scored_data_list", [good, bare | {"distill_token_ids": None, "distill_logprobs": None}])
    with pytest.raises(RunError, match="every environment has left") as caught:
        run(make_settings(api.url, tiny_model_dir, tmp_path))
    assert caught.value.exit_code == 1
    (end,) = events(tmp_path, "end")
    assert (end["reason"], end["step"]) == ("train.no_environment", 1)
    assert (tmp_path / "checkpoints" / "step-1" / "model.safetensors").exists()


def test_an_api_that_forgot_everything_is_told_the_step_taken(
    api: ApiClient, tiny_model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[int] = []
    registering = V1Routes.register

    def register(routes: V1Routes, body: dict[str, Any], *names: Any) -> Any:
        told.append(body["starting_step"])
        registered = registering(routes, body, *names)
        # Each step's groups come only now, so the second needs a registration after the first was taken.
        api.post("/scored_data_list", make_groups(2, seed=len(told)))
        return registered

    def forget(run: TrainingRun) -> None:
        if run.step == 1:
            api.raw("GET", "/reset_data")

    monkeypatch.setattr(V1Routes, "register", register)
    monkeypatch.setattr(TrainingRun, "_save_and_refresh", forget)
    run(make_settings(api.url, tiny_model_dir, tmp_path))
    assert told == [0, 1]


def test_an_api_that_counts_an_earlier_run_is_warned_of(
    api: ApiClient, tiny_model_dir: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = make_settings(api.url, tiny_model_dir, tmp_path, total_steps=1)
    api.post("/scored_data_list", make_groups(4))
    api.post("/register", registration(settings, 0))
    assert api.get("/batch")["batch"]
    run(settings)
    assert "at step 1 of an earlier run" in caplog.text


def test_interrupt_leaves_a_whole_journal_and_exit_code_130(
    api: ApiClient, tiny_model_dir: Path, tmp_path: Path
) -> None:
    api.post("/scored_data_list", make_groups(2))
    settings = make_settings(api.url, tiny_model_dir, tmp_path, total_steps=9)
    (tmp_path / "train.yaml").write_text(settings.model_dump_json())
    command = [sys.executable, "-m", "atroposlib.cli.main", "train", "--config", str(tmp_path / "train.yaml")]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stderr is not None
        said = []
        for line in process.stderr:
            said.append(line)
            if "step 1/9" in line:
                process.send_signal(signal.SIGTERM)
        process.wait(timeout=60)
    assert process.returncode == 130, said
    assert not any("Traceback" in line for line in said)
    (end,) = events(tmp_path, "end")
    assert (end["reason"], end["step"], end["groups_trained"]) == ("interrupted", 1, 2)


def test_usage_errors_come_before_the_api_is_asked(tmp_path: Path, tiny_model_dir: Path) -> None:
    missing = TrainerSettings(model=str(tmp_path / "none"), output_dir=str(tmp_path))
    with pytest.raises(UsageError, match="no such model directory"):
        run(missing)
    (tmp_path / "step-3").mkdir()
    with pytest.raises(UsageError, match="earlier run"):
        run(TrainerSettings(model=str(tiny_model_dir), output_dir=str(tmp_path)))


def test_an_api_that_is_not_there_is_one_clear_error(tmp_path: Path, tiny_model_dir: Path) -> None:
    with serving() as api:
        url = api.url
    settings = TrainerSettings(
        model=str(tiny_model_dir), output_dir=str(tmp_path), api_url=url, api_timeout_s=0.2
    )
    with pytest.raises(ApiError, match="did not answer"):
        run(settings)
