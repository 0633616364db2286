"""The evaluator process: which checkpoints it measures, and what it leaves in its journal."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from atroposlib.config.demo import EvaluatorSettings
from atroposlib.demo import evaluate
from atroposlib.demo.evaluate import due_checkpoints, latest_checkpoint, main
from atroposlib.journal import Journal, read_journal
from tests.support.tiny import write_tiny_model


@pytest.fixture
def settings(tiny_model_dir: Path, tmp_path: Path) -> EvaluatorSettings:
    return EvaluatorSettings(
        teacher=tiny_model_dir,
        student=write_tiny_model(tmp_path / "student", seed=1),
        same_tokenizer=True,
        prompts=[[{"role": "user", "content": text}] for text in ("one", "two and two", "three")],
        sample_prompts=2,
        max_completion_tokens=6,
        steps=5,
        every=2,
        checkpoints=tmp_path / "trainer.jsonl",
        journal_path=tmp_path / "evaluator.jsonl",
        seed=0,
        device="cpu",
        threads=1,
    )


def write_config(settings: EvaluatorSettings, file: Path) -> str:
    file.write_text(settings.model_dump_json())
    return str(file)


def of_kind(settings: EvaluatorSettings, kind: str) -> list[dict[str, Any]]:
    return [event for event in read_journal(settings.journal_path) if event["kind"] == kind]


def test_start_due_checkpoints_and_end_are_measured(
    settings: EvaluatorSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = Journal(settings.checkpoints)
    written = iter(range(1, 6))

    def train_another_step(seconds: float) -> None:
        step = next(written)
        # The last student is the teacher itself, so it must come out with no distance at all.
        source = settings.teacher if step == 5 else settings.student
        shutil.copytree(source, tmp_path / f"step-{step}")
        trainer.write("checkpoint", step=step, path=str(tmp_path / f"step-{step}"), seconds=0.1)

    monkeypatch.setattr(evaluate.time, "sleep", train_another_step)
    assert main(["--config", write_config(settings, tmp_path / "evaluator.json")]) == 0
    evals = of_kind(settings, "eval")
    assert [event["step"] for event in evals] == [0, 2, 4, 5]
    assert evals[0]["kl"] == evals[1]["kl"] > 0.1
    assert evals[-1]["kl"] == pytest.approx(0.0, abs=1e-9)
    assert len({event["tokens"] for event in evals}) == 1
    shown = {(event["role"], event["step"], event["index"]) for event in of_kind(settings, "sample")}
    assert shown == {
        (role, step, index)
        for role, step in (("teacher", 0), ("student", 0), ("student", 5))
        for index in (0, 1)
    }


def test_the_measure_does_not_depend_on_the_run(settings: EvaluatorSettings, tmp_path: Path) -> None:
    kls = []
    for name in ("a", "b"):
        one = settings.model_copy(update={"journal_path": tmp_path / f"{name}.jsonl"})
        evaluate.Evaluator(one).evaluate(settings.student, 0, samples=False)
        kls.append(of_kind(one, "eval")[0]["kl"])
    assert kls[0] == kls[1]


def save(settings: EvaluatorSettings, directory: Path, *steps: int) -> None:
    """Checkpoints as a trainer leaves them."""
    for step in steps:
        path = directory / f"step-{step}"
        path.mkdir()
        Journal(settings.checkpoints).write("checkpoint", step=step, path=str(path), seconds=0.1)


def test_the_newest_checkpoint_stands_for_those_missed(settings: EvaluatorSettings, tmp_path: Path) -> None:
    save(settings, tmp_path, 1, 2, 3)
    due = due_checkpoints(settings)
    assert next(due) == (3, tmp_path / "step-3")
    save(settings, tmp_path, 4, 5)
    assert next(due) == (5, tmp_path / "step-5")
    assert next(due, None) is None


def test_a_checkpoint_pruned_before_it_was_read_gives_way_to_its_successor(
    settings: EvaluatorSettings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(settings, tmp_path, 3)
    (tmp_path / "step-3").rmdir()
    monkeypatch.setattr(evaluate.time, "sleep", lambda _: save(settings, tmp_path, 4))
    assert next(due_checkpoints(settings)) == (4, tmp_path / "step-4")


def test_other_events_are_no_checkpoints() -> None:
    assert latest_checkpoint([{"kind": "step", "step": 9}]) is None


def test_vocabularies_that_differ_end_in_one_line(
    settings: EvaluatorSettings,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(settings.student)
    model.resize_token_embeddings(320)
    model.to(torch.float32).save_pretrained(settings.student)
    assert main(["--config", write_config(settings, tmp_path / "evaluator.json")]) == 2
    assert "must have the same vocabulary" in capsys.readouterr().err


def test_its_help_needs_no_torch() -> None:
    code = (
        "import sys; from atroposlib.demo import evaluate\n"
        "try: evaluate.main(['--help'])\n"
        "except SystemExit: pass\n"
        "sys.exit(bool({'torch', 'transformers'} & set(sys.modules)))"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
