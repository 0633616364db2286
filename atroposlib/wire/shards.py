"""A directory of shards: files of frames, each beside a manifest that says where they lie in it.

The layout is told in docs/offline-scoring.md. Whatever has its name is whole: files are written under another
one, and renamed when they are on the disk.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple
from uuid import uuid4

from atroposlib.errors import UsageError
from atroposlib.wire.batch import END, record_parts

JOB_FILE = "job.json"
SHARDS = "shards"
FORMAT = "atropos-shards-1"

_UNFINISHED = ".unfinished"


class FramePlace(NamedTuple):
    """Where a frame lies.

    Attributes:
        row: Row of the input that it was made of, from 0.
        offset: Its first byte in the file of the shard.
        length: Its bytes.
        sequences: Sequences G of its group.
    """

    row: int
    offset: int
    length: int
    sequences: int


@dataclass(frozen=True, slots=True)
class Shard:
    """One finished shard.

    Attributes:
        file: The file of frames, a body of :mod:`atroposlib.wire.batch`.
        frames: Where each frame lies, in the order of their rows.
        facts: What else its manifest says.
    """

    file: Path
    frames: list[FramePlace]
    facts: dict[str, Any]


class ShardWriter:
    """Writes one shard; nothing of it has its name before :meth:`commit`.

    Args:
        directory: Of the job.
        number: Of the shard, from 0.

    Raises:
        OSError: The disk is full, for instance; also from the methods.
    """

    def __init__(self, directory: Path, number: int) -> None:
        self._file, self._manifest = _paths(directory, number)
        self._unfinished = self._file.with_name(self._file.name + _UNFINISHED)
        self._out: BinaryIO = self._unfinished.open("wb")
        self._frames: list[FramePlace] = []

    def add(self, frame: bytes, row: int, sequences: int) -> None:
        """Append a frame."""
        prefix, frame, padding = record_parts(frame)
        offset = self._out.tell() + len(prefix)
        self._out.writelines((prefix, frame, padding))
        self._frames.append(FramePlace(row, offset, len(frame), sequences))

    def commit(self, facts: Mapping[str, Any]) -> None:
        """End the file, and write its manifest once the frames are on the disk."""
        with self._out:
            self._out.write(END)
            self._out.flush()
            os.fsync(self._out.fileno())
            size = self._out.tell()
        self._unfinished.rename(self._file)
        write_json(self._manifest, {**facts, "bytes": size, "frames": self._frames})

    def abandon(self) -> None:
        """Forget the shard."""
        self._out.close()
        self._unfinished.unlink(missing_ok=True)


def is_finished(directory: Path, number: int) -> bool:
    """Whether a shard of a job is written."""
    return _paths(directory, number)[1].exists()


def finished_shards(directory: Path) -> list[int]:
    """Numbers of all shards that are written."""
    return [int(path.stem) for path in (directory / SHARDS).glob("[0-9]*.json")]


def read_shard(directory: Path, number: int) -> Shard:
    """A finished shard.

    Raises:
        UsageError: usage.file when its files cannot be read or do not fit together.
    """
    file, path = _paths(directory, number)
    try:
        manifest = json.loads(path.read_bytes())
        frames = [FramePlace(*place) for place in manifest.pop("frames")]
        size = file.stat().st_size
        if size != manifest["bytes"]:
            raise ValueError(f"{file.name} has {size} bytes in place of {manifest['bytes']}")
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise UsageError(
            "a shard cannot be read",
            code="usage.file",
            where=str(path),
            got=error,
            fix="remove its two files and run `atropos score` again",
        ) from error
    return Shard(file, frames, manifest)


def read_frame(file: Path, place: FramePlace) -> bytes:
    """The bytes of one frame. Raises OSError."""
    with file.open("rb") as handle:
        handle.seek(place.offset)
        return handle.read(place.length)


def read_job(directory: Path) -> dict[str, Any] | None:
    """What the job of a directory is, None where there is none yet.

    Raises:
        UsageError: usage.file when the file is not one of ours.
    """
    path = directory / JOB_FILE
    try:
        job = json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise UsageError("the job cannot be read", code="usage.file", where=str(path), got=error) from error
    if not isinstance(job, dict) or job.get("format") != FORMAT:
        got = job.get("format") if isinstance(job, dict) else type(job).__name__
        raise UsageError(
            "the job is of another format", code="usage.file", where=str(path), got=got, expected=FORMAT
        )
    return job


def create_job(directory: Path, job: Mapping[str, Any]) -> bool:
    """Write the job of a directory; False when another process was first, whose job then stays."""
    (directory / SHARDS).mkdir(parents=True, exist_ok=True)
    return create_json(directory / JOB_FILE, {"format": FORMAT, **job})


def create_json(path: Path, value: object) -> bool:
    """Write a file as :func:`write_json` does, unless there is one: then it stays, and this is False."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = _written(path, value)
    try:
        # A link fails where a rename would replace.
        os.link(unfinished, path)
    except FileExistsError:
        return False
    finally:
        unfinished.unlink()
    _sync_names(path.parent)
    return True


def write_json(path: Path, value: object) -> None:
    """Write a file that is whole and on the disk before it has its name. Raises OSError."""
    _written(path, value).rename(path)
    _sync_names(path.parent)


def _paths(directory: Path, number: int) -> Sequence[Path]:
    """The file of frames and the manifest of a shard."""
    stem = directory / SHARDS / f"{number:08d}"
    return stem.with_suffix(".frames"), stem.with_suffix(".json")


def _written(path: Path, value: object) -> Path:
    """A new file with this JSON on the disk, beside ``path``."""
    unfinished = path.with_name(f".{path.name}.{uuid4().hex}{_UNFINISHED}")
    with unfinished.open("x", encoding="utf-8") as file:
        json.dump(value, file)
        file.flush()
        os.fsync(file.fileno())
    return unfinished


def _sync_names(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
