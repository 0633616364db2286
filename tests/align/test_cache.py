"""The fingerprint is the tokenizer's own, and tables come back from disk whole or not at all."""

from __future__ import annotations

import json
import logging
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from atroposlib.align import vocabulary
from atroposlib.align.tables import cache
from atroposlib.align.tables.cache import default_directory
from atroposlib.align.vocabulary import Vocabulary, read_vocabulary
from tests.support.tokenizer_files import FAMILIES, byte_level, gemma_like, llama_like, write

ROLES = {"bos_token": "<s>", "eos_token": "</s>"}


def reordered(part: Any) -> Any:
    """The same JSON with every object's members the other way round."""
    if isinstance(part, dict):
        return {name: reordered(value) for name, value in reversed(part.items())}
    return [reordered(value) for value in part] if isinstance(part, list) else part


def same(one: Vocabulary, other: Vocabulary) -> bool:
    arrays = all(
        np.array_equal(getattr(one, name), getattr(other, name))
        for name in ("blob", "offsets", "kinds", "cuts")
    )
    return arrays and one.facts() == other.facts() and one.fingerprint == other.fingerprint


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_order_and_place_of_the_files_do_not_count(tmp_path: Path, family: str) -> None:
    one = read_vocabulary(write(tmp_path / "one", FAMILIES[family], ROLES), cache_dir=tmp_path / "a")
    turned = write(tmp_path / "elsewhere" / "two", reordered(FAMILIES[family]), reordered(ROLES))
    assert same(read_vocabulary(turned / "tokenizer.json", cache_dir=tmp_path / "b"), one)


def test_fingerprint_is_the_same_on_every_machine(tmp_path: Path) -> None:
    """Recorded once. A table that changes for the same files needs a higher FORMAT, and a new record."""
    assert (
        read_vocabulary(write(tmp_path, llama_like(), ROLES)).fingerprint
        == "cd25638e5ac51ded34d36f329852f8d6"
    )


def test_every_fact_counts(tmp_path: Path) -> None:
    other_bytes, other_kind, other_loss = llama_like(), llama_like(), llama_like()
    other_bytes["model"]["vocab"]["aB"] = other_bytes["model"]["vocab"].pop("ab")
    other_bytes["model"]["merges"].pop()
    other_kind["added_tokens"].pop()
    other_loss["normalizer"]["normalizers"].append({"type": "NFC"})
    tokenizers = [llama_like(), other_bytes, other_kind, other_loss]
    made = [read_vocabulary(write(tmp_path / str(index), each, {})) for index, each in enumerate(tokenizers)]
    made.append(read_vocabulary(write(tmp_path / "roles", llama_like(), ROLES)))
    assert len({each.fingerprint for each in made}) == len(made)


def test_merges_and_what_only_cuts_the_text_do_not_count(tmp_path: Path) -> None:
    other = llama_like()
    other["model"]["merges"].reverse()
    other["post_processor"] = {
        "type": "ByteLevel",
        "add_prefix_space": True,
        "trim_offsets": False,
        "use_regex": True,
    }
    one = read_vocabulary(write(tmp_path / "one", llama_like()))
    assert read_vocabulary(write(tmp_path / "other", other)).fingerprint == one.fingerprint


def test_second_reading_comes_from_the_disk(
    tmp_path: Path, cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = read_vocabulary(write(tmp_path / "one", gemma_like(), ROLES))
    monkeypatch.setattr(vocabulary, "build", lambda *parts: pytest.fail("built again"))
    assert same(read_vocabulary(write(tmp_path / "moved", gemma_like(), ROLES)), built)
    kept = cache.load(built.fingerprint, cache_dir)
    assert kept is not None
    assert same(kept, built)
    assert kept.text([3 + 0x41, 1]) == b"A"


def test_changed_files_are_read_anew(tmp_path: Path) -> None:
    directory = write(tmp_path, llama_like(), ROLES)
    before = read_vocabulary(directory)
    write(directory, llama_like(), ROLES | {"pad_token": "<unk>"})
    assert read_vocabulary(directory).roles == {**before.roles, "pad": 0}


def cut_off(content: bytes) -> bytes:
    return content[: len(content) // 2]


def one_byte_changed(content: bytes) -> bytes:
    place = content.index(b"blob.npy") + 300
    return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


def empty(content: bytes) -> bytes:
    return b""


def no_archive(content: bytes) -> bytes:
    return b"\x80\x05N."


@pytest.mark.parametrize("damage", [cut_off, one_byte_changed, empty, no_archive])
def test_damaged_table_is_told_and_built_anew(
    tmp_path: Path, cache_dir: Path, caplog: pytest.LogCaptureFixture, damage: Any
) -> None:
    directory = write(tmp_path / "one", llama_like(), ROLES)
    built = read_vocabulary(directory)
    (file,) = cache_dir.glob("*.npz")
    whole = file.read_bytes()
    file.write_bytes(damage(whole))
    with caplog.at_level(logging.WARNING):
        assert same(read_vocabulary(directory), built)
    assert "damaged" in caplog.text
    assert file.stat().st_size == len(whole)


def test_whole_table_under_another_s_name_is_not_used(tmp_path: Path, cache_dir: Path) -> None:
    one = read_vocabulary(write(tmp_path / "one", llama_like()))
    other = read_vocabulary(write(tmp_path / "other", byte_level()))
    (cache_dir / f"{other.fingerprint}.npz").replace(cache_dir / f"{one.fingerprint}.npz")
    assert same(read_vocabulary(tmp_path / "one"), one)


def test_place_that_cannot_be_written_costs_only_time(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("in the way")
    directory = write(tmp_path / "one", llama_like())
    with caplog.at_level(logging.WARNING):
        made = read_vocabulary(directory, cache_dir=tmp_path / "file" / "cache")
    assert made.bytes_of(3 + 0x41) == b"A"
    assert "not kept" in caplog.text


def test_tables_lie_in_the_cache_of_the_product(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ATROPOS_CACHE", str(tmp_path))
    assert default_directory() == tmp_path / "vocabularies"


def test_nothing_half_written_is_left(tmp_path: Path, cache_dir: Path) -> None:
    read_vocabulary(write(tmp_path / "one", llama_like()))
    assert sorted(file.suffix for file in cache_dir.iterdir()) == [".npz", ".source"]


def test_table_survives_the_way_to_a_worker(tmp_path: Path) -> None:
    made = read_vocabulary(write(tmp_path, json.loads(json.dumps(gemma_like()))))
    assert same(pickle.loads(pickle.dumps(made)), made)
