"""The teacher's tokenizer against the student's, and the server's against both."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
from transformers import PreTrainedTokenizerFast

from atroposlib.doctor.alignable import SAMPLE
from atroposlib.doctor.tokenizers import (
    END_OF_TURN,
    TOKENIZER,
    check_served_tokenizer,
    check_tokenizer,
    check_vocabulary,
    turn_end,
)
from atroposlib.teacher.tokenizers import fingerprint
from tests.doctor.subjects import MadeUpRoute, scoring, subject
from tests.support.scripted_server import Reply, Request, ScriptedServer
from tests.support.tokenizers import merging_tokenizer

Make = Callable[..., Any]
ROLE_IDS = ("bos_token_id", "eos_token_id", "pad_token_id")


def checked(student: Any, teacher: Any, **more: Any) -> dict[str, Any]:
    found = check_tokenizer(subject("http://localhost:1", None, student=student, tokenizer=teacher, **more))
    return {check.name: check for check in found}


def test_one_vocabulary_is_fine_and_its_fingerprint_told(tokenizer: Make) -> None:
    student, teacher = tokenizer(), tokenizer()
    found = checked(student, teacher)
    assert found[TOKENIZER].status == "ok"
    assert found[TOKENIZER].facts["fingerprint"] == fingerprint(teacher)
    assert found[END_OF_TURN].status == "ok"


def test_another_tokenizer_is_alignable_with_what_a_text_is_covered(tokenizer: Make, tmp_path: Path) -> None:
    found = checked(tokenizer(), merging_tokenizer(tmp_path))
    assert found[TOKENIZER].status == "ok"
    # Both write every byte, so nothing of a text is lost.
    facts = found[TOKENIZER].facts
    assert (facts["verdict"], facts["coverage"], facts["overlap"]) == ("alignable", 1.0, 1.0)
    # Id 256 is text beside a marker, id 259 a marker beside nothing.
    assert facts["differing"] == 2
    assert found[END_OF_TURN].status == "ok"


def test_a_tokenizer_that_changes_text_is_warned_of(tokenizer: Make, tmp_path: Path) -> None:
    merging_tokenizer(tmp_path)
    file = tmp_path / "tokenizer.json"
    lossy = json.loads(file.read_text("utf-8")) | {"normalizer": {"type": "Lowercase"}}
    file.write_text(json.dumps(lossy), encoding="utf-8")
    found = checked(tokenizer(), PreTrainedTokenizerFast.from_pretrained(str(tmp_path)))[TOKENIZER]
    assert found.status == "warn"
    # 2 capitals of ASCII, 2 of the 2-byte Cyrillic, and an S: each is a token of one byte to the student.
    capitals = sum(len(letter.encode()) for letter in SAMPLE if letter != letter.lower())
    assert found.facts["coverage"] == pytest.approx(1 - capitals / len(SAMPLE.encode()), abs=0.01)


def test_another_tokenizer_is_refused_where_none_may_be(tokenizer: Make, tmp_path: Path) -> None:
    found = checked(tokenizer(), merging_tokenizer(tmp_path), align=False)[TOKENIZER]
    assert (found.status, found.facts["verdict"]) == ("fail", "refused")
    assert "100.0%" in found.detail
    assert "env.alignment" in str(found.fix)


def test_a_tokenizer_without_a_byte_table_is_refused_with_the_reason(tokenizer: Make) -> None:
    slow = SimpleNamespace(
        name_or_path="slow", eos_token=None, get_vocab=lambda: {"a": 0}, **dict.fromkeys(ROLE_IDS)
    )
    found = checked(tokenizer(), slow)[TOKENIZER]
    assert (found.status, found.facts["verdict"]) == ("fail", "refused")
    assert "slow tokenizer" in found.detail


def test_ends_that_no_alignment_pairs_are_warned_of(tokenizer: Make, tmp_path: Path) -> None:
    ends_with_a_begin = "{% for message in messages %}{{ message['content'] }}<|im_start|>{% endfor %}"
    found = checked(tokenizer(), merging_tokenizer(tmp_path, ends_with_a_begin))[END_OF_TURN]
    assert found.status == "warn"
    assert found.facts == {"student": "<|im_end|>", "teacher": "<|im_start|>"}
    assert "masked" in str(found.fix)


def test_without_a_student_tokenizer_nothing_is_compared(tokenizer: Make) -> None:
    found = checked(None, tokenizer(), trouble="not loaded")
    assert {name: check.status for name, check in found.items()} == {TOKENIZER: "skip"}
    assert "--env.tokenizer_name" in found[TOKENIZER].detail


def test_a_tokenizer_that_cannot_be_loaded_fails(tokenizer: Make) -> None:
    found = checked(tokenizer(), None, trouble="org/teacher cannot be loaded: no such file")
    assert found[TOKENIZER].status == "fail"
    assert "no such file" in found[TOKENIZER].detail
    # An environment refuses such settings too.
    assert checked(tokenizer(), None)[TOKENIZER].status == "fail"


def test_a_base_student_of_a_teacher_that_ends_turns_is_warned_of(tokenizer: Make) -> None:
    found = checked(tokenizer(eos_token="<|endoftext|>"), tokenizer())
    assert found[TOKENIZER].status == "ok"
    assert found[END_OF_TURN].status == "warn"
    assert found[END_OF_TURN].facts == {"student": "<|endoftext|>", "teacher": "<|im_end|>"}


def test_the_template_decides_how_a_turn_ends(tokenizer: Make) -> None:
    # The end-of-text token of this instruction model is not what its turns end with.
    assert turn_end(tokenizer(eos_token="<|endoftext|>")) == "<|im_end|>"
    assert turn_end(tokenizer(eos_token="<|endoftext|>", chat_template=None)) == "<|endoftext|>"
    plain = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    assert turn_end(tokenizer(chat_template=plain)) == "<|im_end|>"
    assert turn_end(tokenizer(chat_template="{{ raise_exception('no') }}")) == "<|im_end|>"


def test_without_an_end_token_the_end_is_not_compared(tokenizer: Make) -> None:
    student = tokenizer()
    student.eos_token = None
    assert checked(student, tokenizer())[END_OF_TURN].status == "skip"


async def served(
    server: ScriptedServer, session: aiohttp.ClientSession, tokenizer: Any, **replies: Reply
) -> str:
    for path, reply in replies.items():
        server.then(f"/{path}", reply)
    [check] = await check_served_tokenizer(subject(server.url, session, tokenizer=tokenizer))
    return check.status


async def test_server_with_the_same_ids_agrees(
    server: ScriptedServer, session: aiohttp.ClientSession, tokenizer: Make
) -> None:
    def answer(request: Request) -> Reply:
        assert request.body["add_special_tokens"] is False
        return Reply({"tokens": list(request.body["prompt"].encode())})

    server.answer = answer
    assert await served(server, session, tokenizer()) == "ok"


async def test_server_with_other_ids_that_reads_ours_rightly_agrees(
    server: ScriptedServer, session: aiohttp.ClientSession, tokenizer: Make
) -> None:
    def answer(request: Request) -> Reply:
        if request.path == "/detokenize":
            return Reply({"prompt": bytes(request.body["tokens"]).decode()})
        return Reply({"tokens": [32, *request.body["prompt"].encode()]})

    server.answer = answer
    assert await served(server, session, tokenizer()) == "ok"


@pytest.mark.parametrize(
    "detokenized", [Reply({"prompt": "another text"}), Reply({"detail": "Not Found"}, 404), Reply(b"no JSON")]
)
async def test_server_with_another_vocabulary_fails(
    server: ScriptedServer, session: aiohttp.ClientSession, tokenizer: Make, detokenized: Reply
) -> None:
    status = await served(
        server, session, tokenizer(), tokenize=Reply({"tokens": [7, 8, 9]}), detokenize=detokenized
    )
    assert status == "fail"


@pytest.mark.parametrize(
    "answer", [Reply({"detail": "Not Found"}, 404), Reply({"tokens": ["a"]}), Reply(b"no JSON"), Reply([1])]
)
async def test_server_that_does_not_tokenize_is_skipped(
    server: ScriptedServer, session: aiohttp.ClientSession, tokenizer: Make, answer: Reply
) -> None:
    assert await served(server, session, tokenizer(), tokenize=answer) == "skip"


async def test_vocabulary_asks_for_the_students_highest_id(tokenizer: Make) -> None:
    route = MadeUpRoute()
    named = subject("http://localhost:1", None, student=tokenizer())
    [found] = await check_vocabulary(replace(scoring(route), subject=named))
    # The tiny tokenizer has 256 bytes and 3 special tokens.
    assert any(258 in question.ids for question in route.asked)
    assert found.status == "ok"
