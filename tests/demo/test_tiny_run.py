"""The real parts on a random tiny model: who opens the teacher, and what Ctrl-C leaves."""

from __future__ import annotations

import signal
from pathlib import Path

from atroposlib.journal import read_journal
from tests.support.demo_run import finish, logs, start_demo
from tests.support.processes import marked_processes, until
from tests.support.tiny import write_tiny_model

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
    return {next(word for word in words if word in line) for line in record.read_text().splitlines()}


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
    # The environment compares tokenizers; the demo looks for a config.json without opening it.
    assert openers(tmp_path / "record") == {"model-server", "demo.evaluate", "arithmetic_distill.py"}


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
