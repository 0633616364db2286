"""A real environment, student, teacher and API as processes: what is posted is right, and is handed out."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import pytest
import requests
import yaml

from atroposlib.journal import read_journal
from tests.support.tiny import write_tiny_model

ROOT = Path(__file__).parents[2]
TOP_K = 4
STEPS = 3
BATCH = 4
TOLERANCE = 3e-4


def start(stack: ExitStack, *argv: str) -> subprocess.Popen[str]:
    """Start ``atropos ...`` on a free port."""
    process = subprocess.Popen(
        [sys.executable, "-m", "atroposlib.cli.main", *argv, "--port", "0"],
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    stack.callback(_end, process)
    return process


def _end(process: subprocess.Popen[str]) -> None:
    process.terminate()
    process.communicate(timeout=30)


def address(process: subprocess.Popen[str]) -> str:
    """Wait for the line that says where a server listens; its URL."""
    stderr: IO[str] | None = process.stderr
    assert stderr is not None
    for line in stderr:
        found = re.search(r"http://[\d.]+:\d+", line)
        if found:
            return found[0]
    raise AssertionError(f"ended with {process.wait()} before it listened")


@dataclass
class Run:
    """What came out of a run of the environment."""

    posted: dict[str, dict[str, Any]]
    handed_out: list[dict[str, Any]]
    status: dict[str, Any]
    journal: list[dict[str, Any]]
    student_dir: Path
    teacher_dir: Path


def pull_batches(url: str, environment: subprocess.Popen[bytes]) -> list[dict[str, Any]]:
    """Be the trainer: register, and take the batches until the run is over."""
    registration = {
        "wandb_group": "",
        "wandb_project": "",
        "batch_size": BATCH,
        "max_token_len": 512,
        "checkpoint_dir": "",
        "save_checkpoint_interval": -1,
        "starting_step": 0,
        "num_steps": STEPS,
    }
    requests.post(f"{url}/register", json=registration, timeout=10).raise_for_status()
    taken: list[dict[str, Any]] = []
    batches = 0
    while batches < STEPS:
        assert environment.poll() is None
        batch = requests.get(f"{url}/batch", timeout=30).json()["batch"]
        if batch is None:
            time.sleep(0.05)
            continue
        batches += 1
        taken += batch
    return taken


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    """One run of three steps; the teacher is another model than the student."""
    folder = tmp_path_factory.mktemp("end_to_end")
    student_dir = write_tiny_model(folder / "student", seed=0)
    teacher_dir = write_tiny_model(folder / "teacher", seed=1)
    with ExitStack() as stack:
        servers = [start(stack, "model-server", "--model", str(path)) for path in (student_dir, teacher_dir)]
        api = address(start(stack, "api", "--store", f"sqlite:///{folder / 'queue.sqlite3'}"))
        student, teacher = map(address, servers)
        config = {
            "env": {
                "tokenizer_name": str(student_dir),
                "rollout_server_url": api,
                "group_size": 2,
                "max_completion_tokens": 12,
                "max_batches_offpolicy": 1,
                "teacher_top_k": TOP_K,
                "logprob_dtype": "float32",
                "total_steps": -1,
                "data_path_to_save_groups": str(folder / "posted.jsonl"),
                "journal_path": str(folder / "journal.jsonl"),
            },
            "openai": {"base_url": student + "/v1", "model_name": str(student_dir)},
            "teacher": {"base_url": teacher, "model_name": str(teacher_dir)},
        }
        (folder / "run.yaml").write_text(yaml.safe_dump(config))
        script = ROOT / "environments" / "arithmetic_distill.py"
        environment = subprocess.Popen(
            [sys.executable, str(script), "serve", "--config", str(folder / "run.yaml")]
        )
        stack.callback(environment.kill)
        handed_out = pull_batches(api, environment)
        assert environment.wait(timeout=60) == 0
        status = requests.get(f"{api}/v1/status", timeout=10).json()
        lines = (folder / "posted.jsonl").read_text().splitlines()
        posted = {group["group_id"]: group for group in map(json.loads, lines)}
        journal = read_journal(folder / "journal.jsonl")
        yield Run(posted, handed_out, status, journal, student_dir, teacher_dir)


def test_group_handed_out_is_the_group_posted_number_for_number(run: Run) -> None:
    assert len(run.handed_out) == STEPS * BATCH // 2
    for group in run.handed_out:
        posted = run.posted[group["group_id"]]
        assert single({name: group[name] for name in posted}) == single(posted)


def single(value: Any) -> Any:
    """The value with its numbers as float32 holds them, since that is how frames carry them."""
    if isinstance(value, dict):
        return {name: single(member) for name, member in value.items()}
    if isinstance(value, list):
        return [single(member) for member in value]
    return float(np.float32(value)) if isinstance(value, float) else value


def exact_logprobs(directory: Path, ids: list[int]) -> Any:
    """float64 [T-1, V]: row p speaks of token p + 1."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float64)
    with torch.no_grad():
        return model(torch.tensor([ids])).logits[0, :-1].log_softmax(-1)


def sequences(run: Run) -> Iterator[tuple[dict[str, Any], int]]:
    for group in run.handed_out[:2]:
        for index in range(len(group["tokens"])):
            yield group, index


def test_targets_are_the_teachers_own_distribution(run: Run) -> None:
    for group, index in sequences(run):
        ids, mask = group["tokens"][index], group["masks"][index]
        exact = exact_logprobs(run.teacher_dir, ids)
        rows = zip(group["distill_token_ids"][index], group["distill_logprobs"][index], strict=True)
        for position, (columns, logprobs) in enumerate(rows):
            if mask[position] == -100:
                assert (columns, logprobs) == ([-1] * (TOP_K + 1), [-9999.0] * (TOP_K + 1))
                continue
            row = exact[position - 1]
            present = [column for column in columns if column >= 0]
            assert columns[0] == ids[position]
            assert len(set(present)) == len(present) >= TOP_K
            for column, logprob in zip(present, logprobs, strict=False):
                assert logprob == pytest.approx(row[column].item(), abs=TOLERANCE)
            best = sorted(row.tolist(), reverse=True)[:TOP_K]
            told = sorted((row[column].item() for column in present), reverse=True)[:TOP_K]
            assert told == pytest.approx(best, abs=TOLERANCE)


def test_inference_logprobs_are_the_students_own_of_the_sampled_tokens(run: Run) -> None:
    for group, index in sequences(run):
        ids, mask = group["tokens"][index], group["masks"][index]
        exact = exact_logprobs(run.student_dir, ids)
        trained = [position for position, value in enumerate(mask) if value != -100]
        assert trained == list(range(trained[0], len(ids)))
        assert [mask[position] for position in trained] == [ids[position] for position in trained]
        logprobs = group["inference_logprobs"][index]
        assert set(logprobs[: trained[0]]) == {1.0}
        for position in trained:
            expected = exact[position - 1, ids[position]].item()
            assert logprobs[position] == pytest.approx(expected, abs=TOLERANCE)


def test_prompt_is_the_chat_template_of_a_generated_problem(run: Run) -> None:
    group = run.handed_out[0]
    first = group["masks"][0].index(next(value for value in group["masks"][0] if value != -100))
    prompt = bytes(token for token in group["tokens"][0][:first] if token < 256).decode()
    assert prompt.startswith("user\n")
    assert prompt.endswith("assistant\n")
    assert "How many" in prompt


def test_books_of_environment_and_api_agree(run: Run) -> None:
    sent = [line for line in run.journal if line["kind"] == "group_sent"]
    dropped = [line for line in run.journal if line["kind"] == "group_dropped"]
    assert {line["group_id"] for line in sent} == set(run.posted)
    assert dropped == []
    assert run.status["groups"]["received"] == len(sent)
    assert run.status["groups"]["trained"] == len(run.handed_out)
    assert [env["connected"] for env in run.status["envs"]] == [False]


def test_every_trained_token_has_a_target_and_its_figures_are_journaled(run: Run) -> None:
    sent = [line for line in run.journal if line["kind"] == "group_sent"]
    assert all(line["target_tokens"] == line["trained_tokens"] > 0 for line in sent)
    assert all(0 < line["captured_mass"] <= 1 + 1e-6 for line in sent)
    assert {line["policy_version"] for line in sent} == {0}
    assert all(group["policy_version"] == 0 for group in run.handed_out)
    kinds = {line["kind"] for line in run.journal}
    assert kinds == {"rollout", "teacher", "group_sent", "teacher_stats"}


def test_books_of_the_teacher_agree_with_what_was_sent(run: Run) -> None:
    sent = [line for line in run.journal if line["kind"] == "group_sent"]
    asked = [line for line in run.journal if line["kind"] == "teacher"]
    (books,) = (line for line in run.journal if line["kind"] == "teacher_stats")
    assert sum(line["scored"] for line in asked) >= sum(line["target_tokens"] for line in sent)
    assert all(line["positions"] == line["scored"] for line in asked)
    assert books["positions"] == books["scored"]
    assert books["scored"]["teacher"] >= sum(line["target_tokens"] for line in sent)
    told = books["metrics"]
    assert told["teacher/teacher/asked"] == told["teacher/teacher/scored"] + told["teacher/teacher/cancelled"]
    assert told["teacher/teacher/scored"] >= sum(line["sequences"] for line in asked)
