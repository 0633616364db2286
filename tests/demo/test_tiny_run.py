"""The real parts on a random tiny model: who opens the teacher, and what Ctrl-C leaves."""

from __future__ import annotations

import signal
from pathlib import Path

from atroposlib.journal import read_journal
from tests.support.demo_run import finish, logs, start_demo
from tests.support.processes import marked_processes, until
from tests.support.tiny import write_tiny_model
from tests.support.tiny_teacher import write_other_model

OPTIONS = ("--eval-prompts", "2", "--sample-prompts", "1", "--max-completion-tokens", "8")

TELL_WHO_OPENS = """
import os, sys
watched, record = os.environ["WATCHED"], os.open(os.environ["RECORD"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
def tell(event, arguments):
    if event == "open" and str(arguments[0]).startswith(watched):
        os.write(record, (" ".join(sys.orig_argv[1:]) + chr(10)).encode())
sys.addaudithook(tell)
"""


def openers(record: Path) -> set[str]:
    """The parts that opened a file of the teacher, by a word of their command lines."""
    words = ("model-server", "demo.evaluate", "arithmetic_distill.py", "train", "api", "demo")
    lines = [line.split() for line in record.read_text().splitlines()]
    return {next(word for word in words if any(part.endswith(word) for part in line)) for line in lines}


async def test_the_trainer_never_opens_the_teacher(tiny_model_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "hook").mkdir()
    (tmp_path / "hook" / "sitecustomize.py").write_text(TELL_WHO_OPENS)
    watch = {
        "PYTHONPATH": str(tmp_path / "hook"),
        "WATCHED": str(tiny_model_dir),
        "RECORD": str(tmp_path / "record"),
    }
    student = write_tiny_model(tmp_path / "student", layers=1)
    options = ("--teacher", str(tiny_model_dir), "--student", str(student), "--steps", "1", *OPTIONS)
    process = await start_demo(tmp_path / "run", *options, environment=watch)
    run = await finish(process, tmp_path / "run")
    assert run.returncode == 0, logs(run)
    assert run.summary["outcome"] == "finished"
    assert run.summary["groups_balanced"] is True
    # The environment and the demo compare tokenizers.
    assert openers(tmp_path / "record") == {"model-server", "demo.evaluate", "arithmetic_distill.py", "demo"}


async def test_a_teacher_with_another_tokenizer_teaches_through_the_whole_path(
    tiny_model_dir: Path, tmp_path: Path
) -> None:
    teacher = write_other_model(tmp_path / "teacher")
    options = ("--teacher", str(teacher), "--student", str(tiny_model_dir), "--steps", "2", *OPTIONS)
    process = await start_demo(
        tmp_path / "run", *options, environment={"ATROPOS_CACHE": str(tmp_path / "cache")}
    )
    run = await finish(process, tmp_path / "run")
    assert run.returncode == 0, logs(run)
    summary = run.summary
    assert (summary["outcome"], summary["unit"], summary["steps"]) == ("finished", "safe cut", 2)
    assert summary["groups_balanced"] is True
    assert 0 < summary["bits_per_byte_teacher"] < summary["bits_per_byte_start"]
    assert summary["kl_end"] not in (None, summary["kl_start"])
    assert summary["held_out_chunk_coverage"] == 1.0
    # A random student writes bytes that are no characters.
    assert 0 < summary["rollout_chunk_coverage"] < 1
    trained = sum(event["trained_tokens"] for event in run.events("step"))
    assert summary["teacher_token_frac"] == summary["tokens_trained"] / trained
    assert "bits per byte" in (tmp_path / "run" / "report.html").read_text()


async def test_ctrl_c_ends_every_process_and_keeps_the_results(tiny_model_dir: Path, tmp_path: Path) -> None:
    directory = tmp_path / "run"
    process = await start_demo(directory, "--teacher", str(tiny_model_dir), "--steps", "100000", *OPTIONS)
    try:
        await until(lambda: len(read_journal(directory / "journal" / "trainer.jsonl")) > 3, seconds=120)
        assert len(marked_processes(directory)) == 6
    finally:
        process.send_signal(signal.SIGINT)
    run = await finish(process, directory)
    assert run.returncode == 130, logs(run)
    assert marked_processes(directory) == []
    assert "Traceback" not in run.stdout + run.stderr
    summary = run.summary
    assert summary["outcome"] == "interrupted"
    assert summary["steps"] >= 1
    assert summary["groups_balanced"] is True
    for name in ("metrics.jsonl", "report.html", "config.yaml"):
        assert (directory / name).stat().st_size > 0
