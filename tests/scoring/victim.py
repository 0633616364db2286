"""A worker that is killed: it hangs at one row, once it has said so.

Called with the job's directory, the input and the number of the row at which it hangs (-1 for none).
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.scoring.support import TellingScorer, job_of, panel_of, work


def main(directory: Path, path: Path, hang_at: int) -> None:
    """Do the job, or hang."""

    async def before(ids: Sequence[int]) -> None:
        if ids[1] == hang_at:
            sys.stdout.write("hanging\n")
            sys.stdout.flush()
            await asyncio.Event().wait()

    # Nothing is read ahead, so it claims no shard but the one that it works on.
    asyncio.run(work(job_of(directory, path, panel_of({"teacher": TellingScorer(before)}), tokens_ahead=1)))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
