"""The whole doctor on real model servers, and on servers that are away or wrong."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from atroposlib.cli.main import main
from atroposlib.config.yaml_file import YamlFile
from atroposlib.doctor.check import exit_code
from atroposlib.doctor.patients import find_patients
from atroposlib.doctor.run import diagnose
from tests.support.fake_vllm import scores_body
from tests.support.running_model_server import running_model_server
from tests.support.scripted_server import Reply, Request, ScriptedServer
from tests.support.tiny_teacher import write_other_model

AWAY = "http://127.0.0.1:9"

Examine = Callable[..., tuple[int, dict[tuple[str, str], Any]]]


@pytest.fixture(scope="module")
def served(tiny_model_dir: Path) -> Iterator[str]:
    """URL of a real model server that gives a top-k of at most 10."""
    with running_model_server(tiny_model_dir, served_model_name="tiny", max_logprobs=10) as url:
        yield url


@pytest.fixture
def examine(capsys: pytest.CaptureFixture[str]) -> Examine:
    """Runs `atropos doctor --json`; exit code, and the checks by server and name."""

    def run(*argv: str) -> tuple[int, dict[tuple[str, str], Any]]:
        code = main(["doctor", "--json", *argv])
        out = capsys.readouterr()
        assert out.err == ""
        return code, {(one["server"], one["name"]): one for one in json.loads(out.out)["checks"]}

    return run


def statuses(found: dict[tuple[str, str], Any], server: str) -> dict[str, str]:
    return {name: check["status"] for (where, name), check in found.items() if where == server}


def test_servers_of_one_model_pass(served: str, tiny_model_dir: Path, examine: Examine) -> None:
    code, found = examine(
        *("--teacher.base_url", served, "--teacher.model_name", "tiny"),
        *("--teacher.tokenizer_name", str(tiny_model_dir), "--env.tokenizer_name", str(tiny_model_dir)),
        *("--openai.base_url", served, "--openai.model_name", "tiny"),
        *("--env.teacher_top_k", "8", "--env.max_token_length", "511"),
    )
    assert code == 0
    said_nothing = {"speculative decoding": "skip", "lora": "skip"}
    fine = "reachable version model tokenizer served-tokenizer route top-k context ids-echoed normalised"
    more = "repeatable order vocabulary speed end-of-turn"
    passed = {name.replace("-", " ").replace("top k", "top-k"): "ok" for name in f"{fine} {more}".split()}
    assert statuses(found, "teacher") == passed | said_nothing
    student = ["reachable", "version", "model", "served tokenizer", "samples", "own teacher"]
    assert statuses(found, "student") == dict.fromkeys(student, "ok")
    assert found["student", "own teacher"]["facts"]["largest_difference_nats"] < 1e-3
    # 511 rows of ids and logprobs, 4 bytes each, 9 columns, and a header of a few hundred bytes.
    assert found["teacher", "speed"]["facts"]["bytes_per_1k_tokens"] == pytest.approx(72_000, rel=0.05)


def test_teacher_whose_tokenizer_only_its_server_tells_is_compared_by_it(
    tiny_model_dir: Path, tmp_path: Path, examine: Examine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ATROPOS_CACHE", str(tmp_path / "cache"))
    other = write_other_model(tmp_path / "other")
    with running_model_server(other, served_model_name="other") as url:
        named = ("--teacher.base_url", url, "--env.tokenizer_name", str(tiny_model_dir))
        code, found = examine(*named)
        assert code == 0
        assert found["teacher", "tokenizer"]["facts"]["verdict"] == "alignable"
        assert found["teacher", "tokenizer"]["facts"]["coverage"] == 1.0
        # The student's ids are never sent to it.
        passed = {"served tokenizer": "ok", "end of turn": "ok", "vocabulary": "skip", "order": "ok"}
        assert passed.items() <= statuses(found, "teacher").items()
        code, found = examine(*named, "--env.alignment", "same_tokenizer")
        assert (code, found["teacher", "tokenizer"]["status"]) == (1, "fail")


def test_too_large_a_top_k_is_a_finding_of_its_own(served: str, examine: Examine) -> None:
    code, found = examine("--teacher.base_url", served, "--env.teacher_top_k", "11")
    assert code == 1
    assert statuses(found, "teacher")["route"] == "ok"
    assert found["teacher", "top-k"]["status"] == "fail"
    assert "--max-logprobs 11" in found["teacher", "top-k"]["fix"]
    assert statuses(found, "teacher")["order"] == "ok"


def test_a_teacher_out_of_reach_ends_with_3_and_the_others_are_examined(
    served: str, examine: Examine
) -> None:
    code, found = examine("--teachers.math.base_url", served, "--teachers.code.base_url", AWAY)
    assert code == 3
    assert statuses(found, "code") == {"reachable": "fail"}
    assert statuses(found, "math")["speed"] == "ok"


def test_replicas_are_numbered(served: str, tmp_path: Path, examine: Examine) -> None:
    file = tmp_path / "env.yaml"
    file.write_text(f"teacher: [{{base_url: '{served}'}}, {{base_url: '{AWAY}'}}]\n", encoding="utf-8")
    code, found = examine("--config", str(file))
    assert code == 3
    assert statuses(found, "teacher[0]")["reachable"] == "ok"
    assert statuses(found, "teacher[1]") == {"reachable": "fail"}


def test_another_model_than_named_is_not_examined_further(served: str, examine: Examine) -> None:
    code, found = examine("--teacher.base_url", served, "--teacher.model_name", "large")
    assert code == 1
    assert statuses(found, "teacher") == {"reachable": "ok", "version": "ok", "model": "fail"}
    assert "tiny" in found["teacher", "model"]["detail"]


def test_too_short_a_context_is_warned_of(served: str, examine: Examine) -> None:
    code, found = examine("--teacher.base_url", served, "--env.max_token_length", "512")
    assert code == 0
    assert found["teacher", "context"]["status"] == "warn"
    assert found["teacher", "context"]["facts"]["max_model_len"] == 512
    assert "--max-model-len 513" in found["teacher", "context"]["fix"]


def test_a_student_tokenizer_that_cannot_be_loaded_fails(
    served: str, tmp_path: Path, examine: Examine
) -> None:
    (tmp_path / "empty").mkdir()
    code, found = examine("--openai.base_url", served, "--env.tokenizer_name", str(tmp_path / "empty"))
    assert code == 1
    assert found["student", "tokenizer"]["status"] == "fail"
    assert found["student", "own teacher"]["status"] == "ok"


def test_a_table_for_people(served: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--teacher.base_url", served, "--env.teacher_top_k", "5"]) == 0
    out = capsys.readouterr().out
    assert "5 answered; the server gives up to 10" in out
    assert "reachable" in out


@pytest.mark.parametrize("shift", [12.0, -40.0])
async def test_logits_are_named_although_no_route_takes_them(server: ScriptedServer, shift: float) -> None:
    def raw_logits(request: Request) -> Reply:
        if request.path != "/v1/completions" or "prompt_logprobs" not in request.body:
            return Reply({"detail": "Not Found"}, 404)
        body = scores_body(request.body["prompt"], request.body["prompt_logprobs"])
        for row in body["choices"][0]["prompt_logprobs"][1:]:
            for member in row.values():
                member["logprob"] += shift
        return Reply(body)

    server.answer = raw_logits
    flags = {"teacher.base_url": server.url, "env.teacher_top_k": 4}
    found = {check.name: check for check in await diagnose(find_patients(YamlFile(), flags))}
    assert found["route"].status == "fail"
    assert found["normalised"].status == "fail"
    assert "logits" in found["normalised"].detail


async def test_replies_that_say_nothing_accuse_nobody_of_logits(server: ScriptedServer) -> None:
    server.answer = lambda _: Reply({"choices": [{"prompt_logprobs": [None]}]})
    checks = await diagnose(find_patients(YamlFile(), {"teacher.base_url": server.url}))
    assert [check.name for check in checks if check.status == "fail"] == ["route"]


async def test_a_wrong_key_is_no_missing_server(server: ScriptedServer) -> None:
    server.answer = lambda _: Reply({"error": "Unauthorized"}, 401)
    flags = {"teacher.base_url": server.url, "teacher.api_key": "secret-key"}
    checks = await diagnose(find_patients(YamlFile(), flags))
    assert [(check.name, check.status) for check in checks] == [("access", "fail")]
    assert exit_code(checks) == 1
    assert "secret-key" not in str(checks)


async def test_a_paused_server_is_out_of_reach(server: ScriptedServer) -> None:
    """It lists its models, and then does not answer what needs them."""

    def paused(request: Request) -> Reply:
        hangs = request.path == "/v1/completions"
        return Reply(action="hang") if hangs else Reply({"detail": "Not Found"}, 404)

    server.answer = paused
    flags = {"teacher.base_url": server.url, "teacher.timeout": 1}
    checks = await diagnose(find_patients(YamlFile(), flags))
    [route] = [check for check in checks if check.name == "route"]
    assert route.status == "fail"
    assert route.facts["code"] == "teacher.unreachable"
    assert exit_code(checks) == 3
