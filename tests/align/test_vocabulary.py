"""Whatever names a tokenizer gives one table: its directory, its hub id, or the tokenizer as loaded."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import huggingface_hub
import pytest
from huggingface_hub.errors import LocalEntryNotFoundError, RemoteEntryNotFoundError, RepositoryNotFoundError
from transformers import PreTrainedTokenizerFast

from atroposlib.align.vocabulary import read_vocabulary, vocabulary_of
from atroposlib.errors import ConfigError
from tests.support.real_tokenizers import byte_table
from tests.support.tokenizer_files import FAMILIES, llama_like, write

CONFIG = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_a_loaded_tokenizer_has_the_table_of_its_files(tmp_path: Path, family: str) -> None:
    names = {token["content"] for token in FAMILIES[family]["added_tokens"]}
    config = {role: name for role, name in CONFIG.items() if name in names}
    directory = write(tmp_path, FAMILIES[family], config)
    loaded = PreTrainedTokenizerFast.from_pretrained(str(directory))
    assert vocabulary_of(loaded).fingerprint == read_vocabulary(directory).fingerprint


# The others are of the same kinds and take long to load.
@pytest.mark.parametrize("name", ["gemma3", "llama3_1", "llama2", "qwen3", "smollm2"])
def test_a_real_tokenizer_has_the_table_of_its_files(loaded: Callable[[str], Any], name: str) -> None:
    assert vocabulary_of(loaded(name)).fingerprint == byte_table(name).fingerprint


def test_a_table_is_its_own(tmp_path: Path) -> None:
    table = read_vocabulary(write(tmp_path, llama_like()))
    assert vocabulary_of(table) is table


def test_a_directory_is_read_by_name_or_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = read_vocabulary(write(tmp_path / "org" / "name", llama_like())).fingerprint
    assert vocabulary_of(tmp_path / "org" / "name").fingerprint == expected
    # A directory comes before a hub id of the same name.
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", lambda *names: pytest.fail("asked the hub"))
    assert vocabulary_of("org/name").fingerprint == expected


def test_a_slow_tokenizer_is_refused() -> None:
    with pytest.raises(ConfigError, match="a fast tokenizer") as caught:
        vocabulary_of(object())
    assert caught.value.code == "align.unsupported"


@pytest.mark.parametrize("name", ["/no/such/directory", "./none", "some/longer/path"])
def test_a_directory_that_is_not_there_is_told(name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        vocabulary_of(name)
    assert caught.value.code == "usage.file"


def answer(status: int) -> httpx.Response:
    return httpx.Response(status, request=httpx.Request("GET", "https://hub.test"))


class Hub:
    """A hub with one tokenizer, which fails in a given way for some of its files."""

    def __init__(self, directory: Path, failing: dict[str, Exception]) -> None:
        self.directory = directory
        self.failing = failing
        self.asked: list[tuple[str, str]] = []

    def __call__(self, name: str, file: str) -> str:
        self.asked.append((name, file))
        if file in self.failing:
            raise self.failing[file]
        return str(self.directory / file)


def test_both_files_come_from_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = Hub(write(tmp_path, llama_like(), CONFIG), {})
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", hub)
    assert vocabulary_of("org/name").roles["bos"] == 1
    assert hub.asked == [("org/name", "tokenizer.json"), ("org/name", "tokenizer_config.json")]


def test_a_tokenizer_without_a_configuration_has_no_roles_but_a_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    absent = RemoteEntryNotFoundError("no such file", response=answer(404))
    hub = Hub(write(tmp_path, llama_like()), {"tokenizer_config.json": absent})
    monkeypatch.setattr(huggingface_hub, "hf_hub_download", hub)
    assert "bos" not in vocabulary_of("org/name").roles


@pytest.mark.parametrize(
    ("file", "failure"),
    [
        ("tokenizer.json", RemoteEntryNotFoundError("no such file", response=answer(404))),
        ("tokenizer.json", RepositoryNotFoundError("no such repository", response=answer(401))),
        ("tokenizer.json", LocalEntryNotFoundError("no connection")),
        # Out of reach is not the same as not there: without it the roles would be other ones.
        ("tokenizer_config.json", LocalEntryNotFoundError("no connection")),
    ],
)
def test_what_the_hub_does_not_give_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, failure: Exception
) -> None:
    monkeypatch.setattr(
        huggingface_hub, "hf_hub_download", Hub(write(tmp_path, llama_like()), {file: failure})
    )
    with pytest.raises(ConfigError, match="org/name") as caught:
        vocabulary_of("org/name")
    assert caught.value.code == "usage.model"
    assert caught.value.__cause__ is failure
