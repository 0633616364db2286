"""Losses in the trainer's settings: every spelling, what is refused, and what `atropos losses` tells."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from atroposlib.cli.main import main
from atroposlib.config.losses.across import ChunkLikelihood, QuotientDistillation
from atroposlib.config.losses.choice import LIBRARY_ONLY, LOSSES, Auto
from atroposlib.config.losses.policy import NLL
from atroposlib.config.losses.same_tokenizer import TopKDistillation
from atroposlib.config.runner import settings_options
from atroposlib.config.trainer import TrainerSettings

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"


def make(loss: Any, **changes: Any) -> TrainerSettings:
    return TrainerSettings(model="m", output_dir="o", loss=loss, **changes)


@pytest.mark.parametrize(
    ("spelled", "expected"),
    [
        ("auto", [Auto()]),
        ("nll", [NLL()]),
        ({"name": "topk_distillation"}, [TopKDistillation()]),
        (["auto", {"name": "nll", "weight": 0.1}], [Auto(), NLL(weight=0.1)]),
        ('{"name": "chunk_likelihood", "tau": 2}', [ChunkLikelihood(tau=2.0)]),
        (['{"name": "nll"}', "auto"], [NLL(), Auto()]),
    ],
)
def test_a_loss_is_a_name_a_mapping_or_a_list_of_them(spelled: Any, expected: list[Any]) -> None:
    assert make(spelled).loss == expected


def test_without_a_loss_there_is_auto() -> None:
    assert TrainerSettings(model="m", output_dir="o").loss == [Auto()]


@pytest.mark.parametrize("name", LOSSES)
def test_every_loss_has_words_for_all_that_is_told_of_it(name: str) -> None:
    assert LOSSES[name].__doc__
    assert all(LOSSES[name].told)
    assert make(name).loss[0].name == name


@pytest.mark.parametrize(
    ("loss", "said"),
    [
        ("topk_distilation", "did you mean topk_distillation"),
        ({"divergence": "jsd"}, "no name"),
        ([], "no loss"),
        ({"name": "auto", "weight": -1}, "weight"),
        ({"name": "topk_distillation", "divergance": "jsd"}, "divergance"),
        ({"name": "auto", "weight": 0}, "no loss has a weight"),
        ({"name": "quotient_distillation", "path": True, "residual_weight": 1}, "learned twice"),
        ({"name": "cross_tokenizer_distillation", "xtoken_loss": True}, "gold_loss"),
        ({"name": "clipped_pg", "use_cispo": True, "disable_ppo_ratio": True}, "CISPO"),
        ({"name": "dpo", "preference_loss_weight": 0}, "weight 0"),
        ("mse_value", "value model"),
        ("draft_cross_entropy", "draft model"),
        ({"name": ["auto"]}, "the name of a loss is a word"),
        ({"name": {"auto": 1}}, "the name of a loss is a word"),
        (None, "not a loss"),
        ([5], "not a loss"),
        ("{name: auto}", "not valid JSON"),
        ("preference", "reward model"),
        (
            {"name": "cross_tokenizer_distillation", "projection_matrix_paths": ["x"]},
            "teachers.NAME.projection",
        ),
        ({"name": "cross_tokenizer_distillation", "teacher_vocab_sizes": [1]}, "teachers.NAME.vocab_size"),
        ({"name": "distillation", "teacher_weights": [1]}, "teachers.NAME.weight"),
        ({"name": "distillation", "student_vocab_size": 1}, "follows from the model"),
    ],
)
def test_what_cannot_be_trained_is_refused_with_the_reason(loss: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        make(loss)


def test_a_pair_needs_two_sequences_in_one_forward_pass() -> None:
    with pytest.raises(ValueError, match="micro_batch_size"):
        make("dpo", micro_batch_size=1)


def test_a_residual_takes_the_place_of_the_path() -> None:
    (loss,) = make({"name": "quotient_distillation", "residual_weight": 1}).loss
    assert isinstance(loss, QuotientDistillation)
    assert not loss.path


def test_a_mistake_in_a_file_is_told_by_its_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "trainer.yaml"
    file.write_text("model: m\noutput_dir: o\nloss:\n  - auto\n  - name: nll\n    wieght: 2\n")
    assert main(["train", "--config", str(file)]) == 2
    assert "trainer.yaml:6 loss.1.wieght: unknown option; did you mean weight?" in capsys.readouterr().err


def test_help_says_how_the_default_is_written() -> None:
    (option,) = [one for name, one in settings_options(TrainerSettings).items() if name == "loss"]
    assert option.default == [Auto()]


@pytest.mark.parametrize("name", ["trainer.yaml", "trainer-mixture.yaml"])
def test_the_examples_load(name: str) -> None:
    TrainerSettings(**yaml.safe_load((EXAMPLES / name).read_text(encoding="utf-8")))


def test_atropos_losses_lists_every_loss_and_those_of_the_library(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["losses"]) == 0
    told = capsys.readouterr().out
    assert all(name in told for name in (*LOSSES, *LIBRARY_ONLY))


def test_atropos_losses_tells_all_of_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["losses", "topk_distillation"]) == 0
    told = capsys.readouterr().out
    for part in ("KL(q || p)", "needs", "bias", "use", "divergence  forward|reverse|mixed|jsd, forward"):
        assert part in told


def test_atropos_losses_names_the_nearest_of_one_that_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["losses", "dop"]) == 2
    assert "did you mean dpo" in capsys.readouterr().err
