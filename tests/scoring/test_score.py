"""Whole jobs with a real model server: every stored target is what a float64 forward pass says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from atroposlib.cli.main import main
from atroposlib.config.scoring import ScoreSettings
from atroposlib.config.teacher import TeacherConfig
from atroposlib.config.trainer import TrainerSettings
from atroposlib.errors import ConfigError, TeacherError, UsageError
from atroposlib.scoring.run import run
from atroposlib.trainer.run import run as train
from atroposlib.types import ABSENT_ID, Group, Targets
from tests.scoring.support import numbers, stored, token_rows, write_rows
from tests.support.oracle import Oracle, float64_oracle
from tests.support.running_model_server import running_model_server
from tests.support.tiny import write_tiny_model
from tests.trainer.runs import events, make_settings

TOP_K = 4
SYSTEM = "Answer well."
CHAT = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}]
ROWS: list[dict[str, Any]] = [
    {"tokens": [10, 20, 30, 40], "masks": [-100, -100, 30, 40]},
    {"prompt": "Q: ", "completion": "yes"},
    {"messages": [*CHAT, {"role": "user", "content": "more"}, {"role": "assistant", "content": "no"}]},
    {"tokens": [[1, 2, 3], [4, 5, 6, 7]], "masks": [[-100, 2, 3], [-100, -100, 6, -100]]},
]


@pytest.fixture(scope="module")
def oracle(tiny_model_dir: Path) -> Oracle:
    return float64_oracle(tiny_model_dir)


def settings_of(url: str, model: Path, work: Path, rows: list[Any], **changes: Any) -> ScoreSettings:
    given: dict[str, Any] = {
        "input": write_rows(work / "data.jsonl", rows),
        "output": work / "out",
        "tokenizer_name": str(model),
        "teacher": {"base_url": f"{url}/v1", "model_name": str(model)},
        "teacher_top_k": TOP_K,
        "logprob_dtype": "float32",
        "rows_per_shard": 3,
        "teacher_patience": 20.0,
    }
    return ScoreSettings(**(given | changes))


def check_row(table: NDArray[np.float64], ids: NDArray[np.int32], logprobs: NDArray[Any], token: int) -> None:
    """One row of targets against the logprobs [V] of the whole vocabulary, in float64."""
    others = np.sort(np.delete(table, token))[::-1]
    inside = bool(table[token] > others[TOP_K - 1])
    expected = [table[token], *others[: TOP_K - inside]]
    present = ids != ABSENT_ID
    assert ids[0] == token
    np.testing.assert_allclose(logprobs[present], expected, atol=2e-5)
    np.testing.assert_allclose(logprobs[present], table[ids[present]], atol=2e-5)


def check_targets(
    oracle: Oracle, group: Group, targets: Targets, before: tuple[int, list[int]] = (0, [])
) -> None:
    """Every trained position has the oracle's row; ``before``: so many tokens give way to others."""
    row = 0
    for index, (tokens, mask) in enumerate(zip(group.tokens, group.masks, strict=True)):
        cut, prompt = before
        ids = [*prompt, *tokens.tolist()[cut:]]
        tables = oracle(ids)
        shift = len(prompt) - cut
        start, count = int(targets.starts[index]), int(targets.counts[index])
        covered = []
        for position in range(start, start + count):
            if (targets.ids[row] != ABSENT_ID).any():
                covered.append(position)
                table = tables[position + shift - 1]
                check_row(table, targets.ids[row], targets.logprobs[row], int(tokens[position]))
            row += 1
        assert covered == [position for position in range(1, len(tokens)) if mask[position] != -100]
    assert row == len(targets.ids)


def test_rows_of_every_kind_have_the_targets_of_a_forward_pass(
    teacher_url: str, tiny_model_dir: Path, tmp_path: Path, oracle: Oracle
) -> None:
    assert run(settings_of(teacher_url, tiny_model_dir, tmp_path, ROWS)) == 0
    groups = stored(tmp_path / "out")
    assert numbers(groups) == [0, 1, 2, 3]
    for group in groups:
        assert group.teachers == []
        assert group.targets is not None
        check_targets(oracle, group, group.targets)
    assert [len(group.tokens) for group in groups] == [1, 1, 1, 2]
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert (summary["complete"], summary["scored"], summary["teachers"]["teacher"]["scored"]) == (True, 4, 5)


def test_the_trainer_trains_every_position_that_was_scored(
    teacher_url: str, tiny_model_dir: Path, tmp_path: Path
) -> None:
    run(settings_of(teacher_url, tiny_model_dir, tmp_path, ROWS))
    work = tmp_path / "run"
    usual = make_settings("http://unused", tiny_model_dir, work).model_dump(
        exclude={"api_url", "total_steps"}, exclude_unset=True
    )
    train(TrainerSettings(**usual, data=tmp_path / "out", epochs=1))
    (step,) = events(work, "step")
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert step["target_tokens"] == step["trained_tokens"] == summary["teachers"]["teacher"]["positions"]
    assert sorted(step["group_ids"]) == ["row-0", "row-1", "row-2", "row-3"]
    # The student is the teacher itself.
    assert step["loss"] == pytest.approx(0.0, abs=1e-4)


def test_what_only_a_teacher_sees_stands_before_the_student_s_tokens(
    teacher_url: str, tiny_model_dir: Path, tmp_path: Path, oracle: Oracle, tokenizer: Any
) -> None:
    server = {"base_url": f"{teacher_url}/v1", "model_name": str(tiny_model_dir)}
    teachers = {
        "plain": TeacherConfig(**server),
        "told": TeacherConfig(**server, system_prompt=SYSTEM, weight=0.5),
    }
    rows = [{"messages": CHAT}]
    run(settings_of(teacher_url, tiny_model_dir, tmp_path, rows, teacher=None, teachers=teachers))
    (group,) = stored(tmp_path / "out")
    plain, told = group.teachers
    assert plain.targets is not None
    assert told.targets is not None
    check_targets(oracle, group, plain.targets)
    first = int(np.flatnonzero(group.masks[0] != -100)[0])
    prompt = [{"role": "system", "content": SYSTEM}, CHAT[0]]
    text = tokenizer.apply_chat_template(prompt, tokenize=False, add_generation_prompt=True)
    ids = tokenizer.encode(text, add_special_tokens=False)
    check_targets(oracle, group, told.targets, (first, ids))
    assert (told.facts["weight"], told.facts["model"]) == (0.5, str(tiny_model_dir))
    assert plain.facts["tokenizer_fingerprint"] == told.facts["tokenizer_fingerprint"] != ""


def test_a_finished_job_asks_nobody_about_its_rows_again(
    teacher_url: str, tiny_model_dir: Path, tmp_path: Path
) -> None:
    settings = settings_of(teacher_url, tiny_model_dir, tmp_path, ROWS)
    run(settings)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out" / "shards").iterdir()}
    run(settings)
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "out" / "shards").iterdir()} == before


def test_a_finished_job_needs_no_teacher(teacher_url: str, tiny_model_dir: Path, tmp_path: Path) -> None:
    run(settings_of(teacher_url, tiny_model_dir, tmp_path, ROWS))
    assert run(settings_of("http://127.0.0.1:9", tiny_model_dir, tmp_path, ROWS, teacher_patience=0.1)) == 0


def test_a_job_that_its_teacher_refuses_has_not_begun(
    teacher_url: str, tiny_model_dir: Path, tmp_path: Path
) -> None:
    with pytest.raises(TeacherError, match="max-logprobs 200"):
        run(settings_of(teacher_url, tiny_model_dir, tmp_path, ROWS, teacher_top_k=200))
    # Otherwise the corrected settings would be refused as another job's.
    assert run(settings_of(teacher_url, tiny_model_dir, tmp_path, ROWS)) == 0


def test_a_job_is_not_gone_on_with_by_another_teacher(
    teacher_url: str, tiny_model_dir: Path, tmp_path: Path
) -> None:
    run(settings_of(teacher_url, tiny_model_dir, tmp_path, ROWS))
    (tmp_path / "out" / "shards" / "00000001.json").unlink()
    other = write_tiny_model(tmp_path / "other", seed=1)
    with (
        running_model_server(other, served_model_name=str(tiny_model_dir)) as url,
        pytest.raises(TeacherError) as caught,
    ):
        run(settings_of(url, tiny_model_dir, tmp_path, ROWS))
    assert caught.value.code == "teacher.changed"
    assert not (tmp_path / "out" / "shards" / "00000001.json").exists()


def test_a_teacher_with_another_vocabulary_is_refused(
    teacher_url: str, tiny_model_dir: Path, tmp_path: Path
) -> None:
    from tests.support.tokenizers import merging_tokenizer

    merging_tokenizer(tmp_path)
    server = {"base_url": f"{teacher_url}/v1", "tokenizer_name": str(tmp_path)}
    with pytest.raises(ConfigError, match=r"vocabularies differ.*score in an environment"):
        run(settings_of(teacher_url, tiny_model_dir, tmp_path, ROWS, teacher=server))


def test_a_teacher_that_is_away_ends_the_command_with_3(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write_rows(tmp_path / "data.jsonl", token_rows(2))
    arguments = ["--input", str(path), "--output", str(tmp_path / "out"), "--teacher_patience", "0.5"]
    server = ["--teacher.base_url", "http://127.0.0.1:9/v1", "--teacher.model_name", "m"]
    assert main(["score", *arguments, *server]) == 3
    assert "teacher.unreachable" in capsys.readouterr().err


def test_a_job_without_a_teacher_is_a_usage_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["score", "--input", "data.jsonl", "--output", str(tmp_path)]) == 2
    assert "no teacher is named" in capsys.readouterr().err


def test_options_name_several_teachers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--input", str(tmp_path / "none.jsonl"), "--output", str(tmp_path / "out")]
    teachers = ["--teachers.math.base_url", "http://h/v1", "--teachers.code.base_url", "http://h/v1"]
    assert main(["score", *arguments, *teachers]) == 2
    assert "no such file" in capsys.readouterr().err
    assert main(["score", *arguments, *teachers, "--teachers.math.weigth", "2"]) == 2
    assert "--teachers.math.weight" in capsys.readouterr().err


def test_a_context_without_the_student_s_tokenizer_is_a_usage_error(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "data.jsonl", token_rows(2))
    teachers = {"math": TeacherConfig(base_url="http://h/v1", system_prompt=SYSTEM)}
    with pytest.raises(UsageError, match=r"teachers\.math\.system_prompt.*tokenizer_name"):
        run(ScoreSettings(input=path, output=tmp_path / "out", teachers=teachers))


def test_a_tokenizer_that_cannot_be_loaded_is_a_usage_error(tmp_path: Path) -> None:
    path = write_rows(tmp_path / "data.jsonl", token_rows(2))
    settings = ScoreSettings(
        input=path, output=tmp_path / "out", tokenizer_name=str(tmp_path), teacher={"base_url": "http://h/v1"}
    )
    with pytest.raises(UsageError, match="the tokenizer cannot be loaded"):
        run(settings)
