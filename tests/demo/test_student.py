"""The pruned student is the teacher without some layers, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from atroposlib.demo.student import layers_to_keep, prune
from atroposlib.errors import UsageError
from tests.support.tiny import write_tiny_model


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("six") / "teacher", layers=6)


def test_kept_layers_equal_the_teachers(teacher: Path, tmp_path: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM

    made = prune(teacher, tmp_path / "student")
    assert made.kept_layers == (0, 2, 3, 5)
    assert made.teacher_layers == 6
    whole = AutoModelForCausalLM.from_pretrained(teacher).state_dict()
    pruned = AutoModelForCausalLM.from_pretrained(made.directory).state_dict()
    for name, values in pruned.items():
        parts = name.split(".")
        if "layers" in parts:
            place = parts.index("layers") + 1
            parts[place] = str(made.kept_layers[int(parts[place])])
        assert torch.equal(values, whole[".".join(parts)]), name
    assert len(pruned) == len(whole) - 2 * sum(".layers.0." in name for name in whole)


def test_it_runs_and_has_the_teachers_tokenizer(teacher: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    directory = prune(teacher, tmp_path / "student", keep=[1, 4]).directory
    ids = AutoTokenizer.from_pretrained(directory)("two plus two", return_tensors="pt").input_ids
    assert AutoModelForCausalLM.from_pretrained(directory)(ids).logits.shape[-1] == 300
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (directory / name).read_bytes() == (teacher / name).read_bytes()


def test_sharded_weights_become_one_file(teacher: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    AutoModelForCausalLM.from_pretrained(teacher).save_pretrained(
        tmp_path / "sharded", max_shard_size="200KB"
    )
    assert len(list((tmp_path / "sharded").glob("*.safetensors"))) > 1
    directory = prune(tmp_path / "sharded", tmp_path / "student").directory
    assert [file.name for file in directory.glob("*.safetensors*")] == ["model.safetensors"]
    assert AutoModelForCausalLM.from_pretrained(directory).config.num_hidden_layers == 4


def test_layer_types_follow_their_layers(teacher: Path, tmp_path: Path) -> None:
    import shutil

    shutil.copytree(teacher, tmp_path / "typed")
    config = json.loads((teacher / "config.json").read_text())
    config["layer_types"] = [f"type {layer}" for layer in range(6)]
    (tmp_path / "typed" / "config.json").write_text(json.dumps(config))
    prune(tmp_path / "typed", tmp_path / "student", keep=[2, 5])
    written = json.loads((tmp_path / "student" / "config.json").read_text())
    assert written["layer_types"] == ["type 2", "type 5"]


def test_thirty_layers_become_twenty() -> None:
    kept = layers_to_keep(30)
    assert len(kept) == 20
    assert (kept[0], kept[-1]) == (0, 29)


@pytest.mark.parametrize("keep", [[], [3, 1], [0, 0], [0, 6], [-1, 2], [0, 1, 2, 3, 4, 5]])
def test_layers_that_make_no_student_are_refused(teacher: Path, tmp_path: Path, keep: list[int]) -> None:
    with pytest.raises(UsageError, match="keep_layers"):
        prune(teacher, tmp_path / "student", keep=keep)


def test_a_directory_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"config\.json"):
        prune(tmp_path, tmp_path / "student")


def test_weights_of_another_format_are_refused(teacher: Path, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "config.json").write_bytes((teacher / "config.json").read_bytes())
    with pytest.raises(UsageError, match="safetensors"):
        prune(tmp_path / "bin", tmp_path / "student")
