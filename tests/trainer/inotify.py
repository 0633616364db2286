"""Which files of a directory are opened, by whatever library: the kernel tells, through inotify."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

IN_OPEN = 0x20
IN_ISDIR = 0x40000000
EVENT = struct.Struct("iIII")


@contextmanager
def opened_in(directory: Path) -> Iterator[Callable[[], set[str]]]:
    """Yields a function that gives the names of the files opened in ``directory`` since the start."""
    libc = ctypes.CDLL(None, use_errno=True)
    watch = libc.inotify_init1(os.O_NONBLOCK)
    assert watch >= 0
    assert libc.inotify_add_watch(watch, os.fsencode(directory), IN_OPEN) >= 0
    opened: set[str] = set()

    def names() -> set[str]:
        while True:
            try:
                events = os.read(watch, 65536)
            except BlockingIOError:
                return opened
            while events:
                _, mask, _, length = EVENT.unpack_from(events)
                name = events[EVENT.size : EVENT.size + length].rstrip(b"\0")
                if not mask & IN_ISDIR:
                    opened.add(os.fsdecode(name))
                events = events[EVENT.size + length :]

    try:
        yield names
    finally:
        os.close(watch)
