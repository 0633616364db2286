"""Which worker writes which shard: locks that end with the process that holds them, however it ends."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

FILE = "claims"


class Claims:
    """Locks of one byte for each shard in a file of the job's directory.

    They hold between processes, also of machines that share the directory where its file system has POSIX
    locks; within one process they exclude nobody.
    """

    def __init__(self, directory: Path) -> None:
        self._handle = os.open(directory / FILE, os.O_RDWR | os.O_CREAT, 0o644)

    def take(self, shard: int) -> bool:
        """Claim a shard; False while another process has it."""
        try:
            fcntl.lockf(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, shard)
        except (BlockingIOError, PermissionError):
            return False
        return True

    def give_back(self, shard: int) -> None:
        """Let others claim it."""
        fcntl.lockf(self._handle, fcntl.LOCK_UN, 1, shard)

    def close(self) -> None:
        """Give all of them back."""
        os.close(self._handle)
