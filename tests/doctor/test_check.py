"""What findings mean together, and how they are printed."""

from __future__ import annotations

import json

import pytest

from atroposlib.doctor.check import Check, Status, exit_code, failed, worst
from atroposlib.doctor.table import as_json, print_table
from atroposlib.errors import TeacherError, TeacherUnreachable


def check(status: Status, name: str = "model", **more: object) -> Check:
    return Check(name, "math", status, "what was found", **more)


@pytest.mark.parametrize(
    ("checks", "code"),
    [
        ([], 0),
        ([check("ok"), check("skip"), check("warn")], 0),
        ([check("ok"), check("fail")], 1),
        ([check("fail"), check("fail", "reachable")], 3),
        ([check("ok", "reachable"), check("fail")], 1),
        ([failed("route", "math", TeacherUnreachable("paused"))], 3),
        ([failed("route", "math", TeacherError("refused"))], 1),
    ],
)
def test_exit_code(checks: list[Check], code: int) -> None:
    assert exit_code(checks) == code


def test_gravest_finding_counts() -> None:
    assert worst([]) == "ok"
    assert worst([check("skip"), check("ok")]) == "ok"
    assert worst([check("ok"), check("warn"), check("skip")]) == "warn"
    assert worst([check("fail"), check("warn")]) == "fail"


def test_failure_is_told_in_the_words_of_its_error() -> None:
    error = TeacherError("it refused", where="http://t", got="HTTP 400", expected="200", fix="lower k")
    found = failed("top-k", "math", error)
    assert found.detail == "http://t: it refused (got HTTP 400, expected 200) [teacher.bad_reply]"
    assert (found.status, found.fix, found.facts) == ("fail", "lower k", {"code": "teacher.bad_reply"})
    assert failed("route", "math", TeacherUnreachable("away")).detail == "away [teacher.unreachable]"


def test_json_has_every_field_and_no_number_that_json_lacks() -> None:
    told = json.loads(as_json([check("warn", fix="do this", facts={"nats": float("inf"), "n": 3})]))
    assert told == {
        "status": "warn",
        "checks": [
            {
                "name": "model",
                "server": "math",
                "status": "warn",
                "detail": "what was found",
                "fix": "do this",
                "facts": {"nats": None, "n": 3},
            }
        ],
    }


def test_table_names_a_server_once_and_shows_fixes_of_what_is_wrong(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_table([check("ok", fix="not shown"), check("warn", "route", fix="do this"), check("skip", "lora")])
    lines = capsys.readouterr().out.splitlines()
    assert sum("math" in line for line in lines) == 1
    assert [line.strip() for line in lines if "this" in line] == ["do this"]
    assert not any("not shown" in line for line in lines)
    assert lines[-1] == "1 ok, 1 warn, 1 skip"


def test_table_shows_markup_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    print_table([Check("end of turn", "math[1]", "ok", "both end with '[/INST]'")])
    out = capsys.readouterr().out
    assert "math[1]" in out
    assert "[/INST]" in out
