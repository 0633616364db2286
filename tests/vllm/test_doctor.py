"""The doctor finds nothing wrong with a stock vLLM, and tells what a thousand tokens cost."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from atroposlib.cli.main import main
from tests.support.running_vllm import MAX_LOGPROBS, MAX_MODEL_LEN, NAME

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]


def test_a_stock_vllm_passes_as_teacher_and_as_student(
    vllm: str, model_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = {
        "--env.tokenizer_name": str(model_dir),
        "--env.teacher_top_k": str(MAX_LOGPROBS),
        "--env.max_token_length": str(MAX_MODEL_LEN - 1),
    }
    for server in ("teacher", "openai"):
        options[f"--{server}.base_url"] = vllm
        options[f"--{server}.model_name"] = NAME
        options[f"--{server}.tokenizer_name"] = str(model_dir)
    code = main(["doctor", "--json", *(word for option in options.items() for word in option)])
    checks = json.loads(capsys.readouterr().out)["checks"]
    wrong = [check for check in checks if check["status"] != "ok"]
    assert (code, wrong) == (0, [])
    told = {(check["server"], check["name"]): check["detail"] for check in checks}
    assert "plugin" in told["teacher", "route"]
    assert "0.32" in told["teacher", "version"]


def test_a_top_k_above_max_logprobs_fails_with_the_flag_that_raises_it(
    vllm: str, model_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(
        [
            *("doctor", "--json", "--env.tokenizer_name", str(model_dir)),
            *("--env.teacher_top_k", str(MAX_LOGPROBS + 1)),
            *("--teacher.base_url", vllm, "--teacher.model_name", NAME),
            *("--teacher.tokenizer_name", str(model_dir)),
        ]
    )
    checks = json.loads(capsys.readouterr().out)["checks"]
    failed = {check["name"]: check["fix"] for check in checks if check["status"] == "fail"}
    assert code == 1
    assert "--max-logprobs" in failed["top-k"]
