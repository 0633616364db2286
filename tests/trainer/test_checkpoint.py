"""A checkpoint is a whole model directory or not there at all; old ones go, but never a served one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from transformers import AutoModelForCausalLM, LlamaForCausalLM

from atroposlib.errors import UsageError
from atroposlib.trainer import checkpoint as checkpoint_module
from atroposlib.trainer.checkpoint import (
    CheckpointFacts,
    checkpoint_directory,
    prune_checkpoints,
    read_facts,
    refuse_used_directory,
    save_checkpoint,
)

FACTS = CheckpointFacts(trainer_id="/runs/a", step=3, batch_id="b7")


def load(directory: Path) -> LlamaForCausalLM:
    model: LlamaForCausalLM = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    return model


def changed_model(directory: Path) -> LlamaForCausalLM:
    model = load(directory)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)) * 0.01)
    return model


def test_saved_weights_are_the_trained_ones(tiny_model_dir: Path, tmp_path: Path) -> None:
    model = changed_model(tiny_model_dir)
    save_checkpoint(model, tiny_model_dir, tmp_path / "step-3", torch.float32, FACTS)
    ids = torch.arange(20)[None]
    torch.testing.assert_close(load(tmp_path / "step-3")(ids).logits, model(ids).logits, rtol=0, atol=0)


def test_directory_holds_one_weight_file_and_the_tokenizer_byte_for_byte(
    tiny_model_dir: Path, tmp_path: Path
) -> None:
    directory = tmp_path / "out" / "step-3"
    save_checkpoint(load(tiny_model_dir), tiny_model_dir, directory, torch.float32, FACTS)
    names = {file.name for file in directory.iterdir()}
    assert {"model.safetensors", "config.json", "tokenizer.json", "tokenizer_config.json"} <= names
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (directory / name).read_bytes() == (tiny_model_dir / name).read_bytes()
    assert [file.name for file in directory.parent.iterdir()] == ["step-3"]


def test_bfloat16_checkpoint_says_so_and_stores_tied_weights_once(
    tiny_model_dir: Path, tmp_path: Path
) -> None:
    model = changed_model(tiny_model_dir)
    save_checkpoint(model, tiny_model_dir, tmp_path / "step-1", torch.bfloat16, FACTS)
    assert json.loads((tmp_path / "step-1" / "config.json").read_text())["dtype"] == "bfloat16"
    with safe_open(tmp_path / "step-1" / "model.safetensors", "pt") as file:
        assert "lm_head.weight" not in file.keys()  # noqa: SIM118  safe_open is no mapping
        assert {file.get_tensor(name).dtype for name in file.keys()} == {torch.bfloat16}  # noqa: SIM118
    assert model.dtype == torch.float32


def test_remains_of_a_killed_save_do_not_disturb_the_next(tiny_model_dir: Path, tmp_path: Path) -> None:
    remains = tmp_path / ".step-2.unfinished"
    remains.mkdir()
    (remains / "model.safetensors").write_bytes(b"half")
    save_checkpoint(load(tiny_model_dir), tiny_model_dir, tmp_path / "step-2", torch.float32, FACTS)
    load(tmp_path / "step-2")
    assert not remains.exists()


def test_a_checkpoint_says_which_run_and_batch_it_holds(tiny_model_dir: Path, tmp_path: Path) -> None:
    save_checkpoint(load(tiny_model_dir), tiny_model_dir, tmp_path / "step-3", torch.float32, FACTS)
    assert read_facts(tmp_path / "step-3") == FACTS
    assert read_facts(tiny_model_dir) is None


@pytest.mark.parametrize("text", ["", "[]", '{"step": 3}'])
def test_damaged_facts_are_told(tmp_path: Path, text: str) -> None:
    (tmp_path / "atropos.json").write_text(text)
    with pytest.raises(UsageError, match=r"atropos\.json"):
        read_facts(tmp_path)


def test_everything_is_on_the_disk_before_the_checkpoint_has_its_name(
    tiny_model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[tuple[str, bool]] = []
    directory = tmp_path / "step-3"
    monkeypatch.setattr(
        checkpoint_module, "_sync", lambda path: synced.append((path.name, directory.exists()))
    )
    save_checkpoint(load(tiny_model_dir), tiny_model_dir, directory, torch.float32, FACTS)
    names = {file.name for file in directory.iterdir()}
    assert {name for name, named in synced if not named} == {*names, ".step-3.unfinished"}
    assert [name for name, named in synced if named] == [tmp_path.name]


def make_checkpoints(root: Path, steps: range) -> list[Path]:
    written = [checkpoint_directory(root, step) for step in steps]
    for directory in written:
        directory.mkdir(parents=True)
    return written


def test_pruning_keeps_the_newest(tmp_path: Path) -> None:
    written = make_checkpoints(tmp_path, range(8, 12))
    assert prune_checkpoints(written, 2, None) == written[2:]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-10", "step-11"]


def test_pruning_keeps_the_one_that_the_server_loaded_last(tmp_path: Path) -> None:
    written = make_checkpoints(tmp_path, range(1, 5))
    assert prune_checkpoints(written, 2, written[0]) == [written[0], *written[2:]]
    assert written[0].is_dir()


def test_pruning_touches_no_directory_that_this_run_did_not_write(tmp_path: Path) -> None:
    foreign = tmp_path / "step-0"
    foreign.mkdir()
    prune_checkpoints(make_checkpoints(tmp_path, range(1, 5)), 2, None)
    assert foreign.is_dir()


def test_a_directory_with_checkpoints_of_an_earlier_run_is_refused(tmp_path: Path) -> None:
    refuse_used_directory(tmp_path / "new")
    make_checkpoints(tmp_path, range(7, 8))
    with pytest.raises(UsageError, match="step-7"):
        refuse_used_directory(tmp_path)
