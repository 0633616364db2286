"""`atropos explain` from the command line."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from atroposlib.cli.main import main
from atroposlib.explain import sample

Output = pytest.CaptureFixture[str]


@pytest.fixture
def argv(student_dir: Path, teacher_dir: Path) -> list[str]:
    return ["explain", "--student", str(student_dir), "--teacher", str(teacher_dir)]


def pipe(monkeypatch: pytest.MonkeyPatch, text: str | bytes) -> None:
    content = text if isinstance(text, bytes) else text.encode()
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content), encoding="utf-8"))


def bytes_of(told: dict[str, Any], side: str) -> bytes:
    tokens = [token for chunk in told["chunks"] for token in chunk[side]]
    return b"".join(
        bytes.fromhex(token["hex"]) if "hex" in token else token["text"].encode() for token in tokens
    )


def test_a_text_is_shown_chunk_by_chunk_with_its_figures(
    argv: list[str], tmp_path: Path, capsys: Output
) -> None:
    file = tmp_path / "text"
    file.write_text("cab", encoding="utf-8")
    assert main([*argv, "--text", str(file)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:3] == ["student  c│a¦b│", "teacher  c│ab │", ""]
    assert "chunks   2: 1.500 student tokens a chunk, 50.0% one token to one" in lines
    assert "paired   100.00% of the student's 3 bytes, 100.00% of the teacher's 3" in lines
    assert not any("\x1b" in line for line in lines)


def test_a_piped_text_is_shown_and_else_the_sample(
    argv: list[str], monkeypatch: pytest.MonkeyPatch, capsys: Output
) -> None:
    for piped, text in [("été\n", "été\n"), ("", sample.TEXT)]:
        pipe(monkeypatch, piped)
        assert main([*argv, "--json"]) == 0
        told = json.loads(capsys.readouterr().out)
        assert bytes_of(told, "student") == bytes_of(told, "teacher") == text.encode()
        assert told["coverage"]["student_share"] == 1.0
        assert told["masked"] == {}


def test_a_conversation_is_shown_with_what_the_teacher_sees(
    argv: list[str], tmp_path: Path, capsys: Output
) -> None:
    file = tmp_path / "chat.json"
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ab"}]
    for content in (messages, {"messages": messages, "tools": None}):
        file.write_text(json.dumps(content), encoding="utf-8")
        assert main([*argv, "--messages", str(file)]) == 0
        out = capsys.readouterr().out
        assert "a¦b│⟨<|im_end|>⟩│" in out
        assert "context" in out
        assert "paired   100.00% of the student's answers, which are 2 bytes" in out


def test_the_same_tokenizer_is_told(
    student_dir: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe(monkeypatch, "x")
    assert main(["explain", "--student", str(student_dir), "--teacher", str(student_dir)]) == 0
    assert "ids      mean the same on both sides, so no alignment is needed" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (None, "the file cannot be read"),
        ("{", "not JSON"),
        ('{"text": 1}', "no conversation"),
        ('["a"]', "no conversation"),
        ('[{"role": "user", "content": "hi"}]', "no conversation with an answer"),
        ('[{"role": "assistant", "content": "\\ud800"}]', "not JSON"),
    ],
)
def test_a_file_without_a_conversation_is_told(
    argv: list[str], tmp_path: Path, content: str | None, told: str, capsys: Output
) -> None:
    file = tmp_path / "chat.json"
    if content is not None:
        file.write_text(content, encoding="utf-8")
    assert main([*argv, "--messages", str(file)]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"{file}: {told}")
    assert "[usage.file]" in err


def test_what_is_no_text_is_told(
    argv: list[str], tmp_path: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "text"
    file.write_bytes(b"a\xff")
    assert main([*argv, "--text", str(file)]) == 2
    pipe(monkeypatch, b"a\xff")
    assert main(argv) == 2
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(":")[0] for line in lines] == [str(file), "what is piped in"]
    assert all("utf-8" in line and "[usage.file]" in line for line in lines)


def test_a_text_is_read_byte_for_byte(
    argv: list[str], capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe(monkeypatch, "a\r\nb")
    assert main([*argv, "--json"]) == 0
    assert bytes_of(json.loads(capsys.readouterr().out), "student") == b"a\r\nb"


def test_a_hub_id_out_of_reach_is_refused_at_once(
    argv: list[str], capsys: Output, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Transformers would ask a hub that does not answer for two minutes, file by file."""

    def away(*_: Any, **__: Any) -> None:
        raise RuntimeError("no route")

    monkeypatch.setattr("huggingface_hub.HfApi.model_info", away)
    asked = mock.Mock()
    monkeypatch.setattr("transformers.PreTrainedTokenizerFast.from_pretrained", asked)
    assert main(["explain", "--student", "nobody/nothing", *argv[3:], "--text", __file__]) == 2
    err = capsys.readouterr().err
    assert err.startswith("--student: the tokenizer cannot be loaded")
    assert "no route" in err
    assert "give a hub id or a directory with tokenizer.json" in err
    asked.assert_not_called()


def test_a_text_and_a_conversation_are_too_much(argv: list[str], capsys: Output) -> None:
    assert main([*argv, "--text", "a", "--messages", "b"]) == 2
    assert "give --text or --messages, not both" in capsys.readouterr().err


def test_a_directory_without_a_tokenizer_is_told(tmp_path: Path, student_dir: Path, capsys: Output) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    argv = ["explain", "--student", str(student_dir), "--teacher", str(empty), "--text", __file__]
    assert main(argv) == 2
    assert capsys.readouterr().err.startswith("--teacher: the tokenizer cannot be loaded")
