"""Alignment of all pairs of tokenizers over many kinds of text: sound, wrong, covered, and how fast.

One table, all figures from the same run on the same machine; NeMo RL's aligner beside ours with ``--peer
DIR``. ``--json FILE`` writes them, ``--check`` exits 1 when a goal is missed and says which in the last line.
``--all`` measures every pair at every length; otherwise long texts, and the peer, have one teacher a student.

A student token is *sound* when it is in a valid chunk that is the same stretch of the text on both sides. A
valid chunk is *wrong* when its bytes differ. What was *masked* is the rest of the student's bytes. A pair is
*lossless* on a text when both byte tables give the text back as it is.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from alignment_peer import Peer
from alignment_texts import texts
from tokenizers import Tokenizer

from atroposlib.align.aligner import TokenAligner
from atroposlib.align.vocabulary import Vocabulary, read_vocabulary
from atroposlib.demo.assets import cache_dir

SHORT = (256, 2048, 8192)
LONG = 65536
LONG_KINDS = ("english", "multilingual")
CHARACTERS_A_TOKEN = 8
PEER_LENGTHS = (256, 2048)
REPETITIVE = {"a": "a", "spaces": " ", "digits": "1234567890", "phrase": "over and over again "}
REPETITIVE_CHARACTERS = 1000
REPEATS = 5
GOAL_MS = 1.0
GOAL_TABLE_SECONDS = 5.0
GOAL_SCALING = 12.0

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Side:
    """One tokenizer: its byte table, how long that took to build, and the library's own encoder."""

    name: str
    vocabulary: Vocabulary
    seconds: float
    library: Tokenizer


@dataclass(frozen=True)
class Encoded:
    """A whole text as one tokenizer writes it.

    Attributes:
        ids: int64 [T].
        ends: int64 [T]. The byte that each token ends at, by its table.
        offsets: int64 [T, 2]. Where it begins and ends in characters, by the library.
        text: The bytes of all tokens, by their table.
        lossless: Whether that is the text as it was.
    """

    ids: Ints
    ends: Ints
    offsets: Ints
    text: bytes
    lossless: bool


@dataclass(frozen=True)
class Cell:
    """One pair on one text at one length."""

    aligner: str
    student: str
    teacher: str
    kind: str
    length: int
    lossless: bool
    sound: float
    wrong: float
    masked: float
    tokens_a_chunk: float
    ms_per_1k: float


def read_side(directory: Path) -> Side:
    """The tokenizer in a directory, its table built anew."""
    with tempfile.TemporaryDirectory() as scratch:
        begun = time.perf_counter()
        vocabulary = read_vocabulary(directory, cache_dir=Path(scratch))
        seconds = time.perf_counter() - begun
    library = Tokenizer.from_file(str(directory / "tokenizer.json"))
    library.no_truncation()
    library.no_padding()
    return Side(directory.name, vocabulary, seconds, library)


def encode(side: Side, text: str) -> Encoded:
    """A text as the library encodes it."""
    encoding = side.library.encode(text, add_special_tokens=False)
    ids = np.array(encoding.ids, dtype=np.int64)
    offsets = np.array(encoding.offsets, dtype=np.int64).reshape(-1, 2)
    back, ends = side.vocabulary.text(ids), np.cumsum(side.vocabulary.lengths(ids))
    return Encoded(ids, ends, offsets, back, back == text.encode())


def counts_up_to(student: Encoded, teacher: Encoded, length: int) -> tuple[int, int]:
    """How many tokens of both sides stand for one stretch of text, at most ``length`` of the student's."""
    length = min(length, len(student.ids))
    if student.lossless and teacher.lossless:
        ends = student.ends[:length]
        common = ends[teacher.ends[np.searchsorted(teacher.ends, ends)] == ends][-1]
        first, second = (int(np.searchsorted(side.ends, common, "right")) for side in (student, teacher))
        return first, second
    # The library's own offsets tell where the other side is, in characters of the text.
    end = student.offsets[length - 1, 1]
    return length, int(np.searchsorted(np.maximum.accumulate(teacher.offsets[:, 1]), end, side="right"))


def judge(
    chunk_ids: tuple[npt.NDArray[Any], npt.NDArray[Any]],
    valid: npt.NDArray[np.bool_],
    sides: tuple[Encoded, Encoded],
    lossless: bool,
) -> dict[str, float]:
    """Shares of an alignment, by the bytes that the tables give for its chunks."""
    begins, ends, sizes = [], [], []
    for chunk_id, side in zip(chunk_ids, sides, strict=True):
        inside = np.flatnonzero(chunk_id >= 0)
        numbers = chunk_id[inside]
        first = np.full(len(valid), -1)
        last = np.full(len(valid), -1)
        first[numbers[::-1]] = inside[::-1]
        last[numbers] = inside
        begins.append(np.append(0, side.ends)[first])
        ends.append(side.ends[last])
        sizes.append(np.where(first >= 0, last - first + 1, 0))
    real = np.flatnonzero(valid & (sizes[0] > 0) & (sizes[1] > 0))
    wrong = sum(
        sides[0].text[begins[0][chunk] : ends[0][chunk]] != sides[1].text[begins[1][chunk] : ends[1][chunk]]
        for chunk in real.tolist()
    )
    same = (begins[0] == begins[1]) & (ends[0] == ends[1])
    tokens = int(sizes[0][real].sum())
    count, length = len(chunk_ids[0]), int(sides[0].ends[len(chunk_ids[0]) - 1])
    return {
        "sound": float(sizes[0][real][same[real]].sum()) / count if lossless else float("nan"),
        "wrong": wrong / max(len(real), 1),
        "masked": 1 - float((ends[0] - begins[0])[real].sum()) / max(length, 1),
        "tokens_a_chunk": tokens / max(len(real), 1),
    }


def measure(aligner: TokenAligner, sides: tuple[Encoded, Encoded], length: int) -> dict[str, Any]:
    """Our figures on the first ``length`` student tokens of a text."""
    counts = counts_up_to(*sides, length)
    ours, theirs = sides[0].ids[: counts[0]], sides[1].ids[: counts[1]]
    seconds = fastest(aligner, ours, theirs)
    alignment = aligner.align_ids(ours, theirs)
    lossless = sides[0].lossless and sides[1].lossless
    shares = judge((alignment.student_chunk_id, alignment.teacher_chunk_id), alignment.valid, sides, lossless)
    return {"lossless": lossless, "ms_per_1k": seconds * 1e6 / len(ours), **shares}


def measure_peer(
    peer: Peer, pair: tuple[Side, Side], sides: tuple[Encoded, Encoded], length: int
) -> dict[str, Any]:
    """The peer's figures on the same tokens."""
    counts = counts_up_to(*sides, length)
    rows = [(side.ids[:count], side.offsets[:count]) for side, count in zip(sides, counts, strict=True)]
    found = peer.align((pair[0].library, pair[1].library), rows)
    lossless = sides[0].lossless and sides[1].lossless
    shares = judge((found.student_chunk_id, found.teacher_chunk_id), found.valid, sides, lossless)
    return {"lossless": lossless, "ms_per_1k": found.seconds * 1e6 / counts[0], **shares}


def ring(sides: list[Side]) -> list[tuple[Side, Side]]:
    """Every tokenizer once as the student and once as the teacher."""
    return list(zip(sides, [*sides[1:], *sides[:1]], strict=True))


def cells(sides: list[Side], options: argparse.Namespace) -> Iterator[Cell]:
    """Every pair on every text at every length, or what of it is to be measured."""
    peer = Peer(options.peer) if options.peer else None
    pairs = list(itertools.permutations(sides, 2))
    written = texts(CHARACTERS_A_TOKEN * LONG, options.texts)
    for lengths, some in ((SHORT, pairs), ((LONG,), pairs if options.all else ring(sides))):
        for kind, text in written.items():
            if lengths == (LONG,) and not options.all and kind not in LONG_KINDS:
                continue
            both = {side.name: encode(side, text[: CHARACTERS_A_TOKEN * lengths[-1]]) for side in sides}
            for pair in some:
                chosen = options.all or pair in ring(sides)
                for length in lengths if chosen else lengths[:-1]:
                    yield from measured(pair, both, (kind, length), peer if chosen else None)


def measured(
    pair: tuple[Side, Side], written: dict[str, Encoded], place: tuple[str, int], peer: Peer | None
) -> Iterator[Cell]:
    """Our cell, and the peer's where it is measured: its time for a long text is out of all proportion."""
    aligner = TokenAligner(pair[0].vocabulary, pair[1].vocabulary)
    names = pair[0].name, pair[1].name
    both, (kind, length) = (written[names[0]], written[names[1]]), place
    yield Cell("ours", *names, kind, length, **measure(aligner, both, length))
    if peer and length in PEER_LENGTHS:
        yield Cell("peer", *names, kind, length, **measure_peer(peer, pair, both, length))


def fastest(aligner: TokenAligner, ours: Ints, theirs: Ints) -> float:
    """Seconds of the fastest of a few runs."""
    seconds = []
    for _ in range(REPEATS):
        begun = time.perf_counter()
        aligner.align_ids(ours, theirs)
        seconds.append(time.perf_counter() - begun)
    return min(seconds)


def scaling(sides: list[Side]) -> dict[str, float]:
    """Time for eight times the text over the time for it, the worst of the ring of pairs."""
    found: dict[str, list[float]] = {name: [] for name in REPETITIVE}
    for one, other in ring(sides):
        aligner = TokenAligner(one.vocabulary, other.vocabulary)
        for name, part in REPETITIVE.items():
            text = part * (REPETITIVE_CHARACTERS // len(part))
            ours, theirs = (
                np.array(side.library.encode(text, add_special_tokens=False).ids) for side in (one, other)
            )
            # Without its first token a side is not equal, and the short way of equal streams is closed.
            for skipped in (0, 1):
                small, large = (
                    fastest(aligner, np.tile(ours, times)[skipped:], np.tile(theirs, times))
                    for times in (8, 64)
                )
                found[name].append(large / small)
    return {name: max(ratios) for name, ratios in found.items()}


def rows(found: list[Cell]) -> list[dict[str, Any]]:
    """The table: cells of one aligner, one kind and one length together, lossless ones apart."""

    def key(cell: Cell) -> tuple[str, bool, str, int]:
        return cell.aligner, not cell.lossless, cell.kind, cell.length

    result = []
    for (aligner, lossy, kind, length), group in itertools.groupby(sorted(found, key=key), key=key):
        some = list(group)
        times = [cell.ms_per_1k for cell in some]
        result.append(
            {
                "aligner": aligner,
                "text": kind,
                "tokens": length,
                "lossless": "no" if lossy else "yes",
                "pairs": len(some),
                "sound, worst": "" if lossy else round(min(cell.sound for cell in some), 4),
                "wrong, worst": round(max(cell.wrong for cell in some), 4),
                "masked, mean": round(statistics.mean(cell.masked for cell in some), 4),
                "tokens a chunk": round(statistics.mean(cell.tokens_a_chunk for cell in some), 2),
                "ms per 1k, median": round(statistics.median(times), 3),
                "ms per 1k, worst": round(max(times), 3),
            }
        )
    return result


def goals(found: list[Cell], sides: list[Side], ratios: dict[str, float]) -> list[dict[str, Any]]:
    """What the alignment promises."""
    ours = [cell for cell in found if cell.aligner == "ours"]
    kept = [cell for cell in ours if cell.lossless]
    result = [
        _goal("least sound share of lossless cells", min(cell.sound for cell in kept), 1.0, least=True),
        _goal("largest wrong share of all cells", max(cell.wrong for cell in ours), 0.0),
        _goal("largest masked share of lossless cells", max(cell.masked for cell in kept), 0.0),
    ]
    for length in (*SHORT, LONG):
        times = [cell.ms_per_1k for cell in kept if cell.length == length]
        result.append(
            _goal(
                f"ms per 1k tokens at {length}, median of lossless pairs", statistics.median(times), GOAL_MS
            )
        )
    result.append(
        _goal("seconds to build the slowest table", max(side.seconds for side in sides), GOAL_TABLE_SECONDS)
    )
    result += [_goal(f"t(8n) / t(n) on {name}", ratio, GOAL_SCALING) for name, ratio in ratios.items()]
    return result


def _goal(name: str, value: float, goal: float, *, least: bool = False) -> dict[str, Any]:
    return {
        "name": name,
        "value": round(value, 4),
        "goal": goal,
        "ok": value >= goal if least else value <= goal,
    }


def directories(named: Path | None) -> list[Path]:
    """The tokenizers to measure: those named, or what the tests have fetched."""
    place = named or Path(os.environ.get("TOKENIZERS_DIR") or cache_dir() / "tokenizers")
    found = sorted(file.parent for file in place.expanduser().glob("*/tokenizer.json"))
    if len(found) < 2:
        raise SystemExit(f"{place} holds fewer than two tokenizers: run `make assets`")
    return found


def main() -> int:
    """Measure, print, write, check."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokenizers", type=Path, help="a directory with one directory a tokenizer")
    parser.add_argument("--texts", type=Path, help="a directory whose *.txt files are the texts")
    parser.add_argument("--peer", type=Path, help="where NeMo RL's token_aligner.py was exported to")
    parser.add_argument("--all", action="store_true", help="every pair at every length")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    sides = [read_side(directory) for directory in directories(options.tokenizers)]
    found = list(cells(sides, options))
    result = {
        "title": f"Alignment of {len(sides)} tokenizers",
        "rows": rows(found),
        "goals": goals(found, sides, scaling(sides)),
    }
    for row in result["rows"]:
        print("  ".join(f"{name} {value}" for name, value in row.items()))
    for side in sides:
        print(f"table of {side.name}: {len(side.vocabulary)} ids in {side.seconds:.2f} s")
    for goal in result["goals"]:
        print(f"{goal['name']}: {goal['value']} (goal {goal['goal']})")
    if options.json:
        cells_too = {"cells": [asdict(cell) for cell in found]}
        options.json.write_text(json.dumps(result | cells_too, indent=2) + "\n", encoding="utf-8")
    missed = [goal["name"] for goal in result["goals"] if not goal["ok"]]
    if options.check and missed:
        print(f"missed: {', '.join(missed)}")
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
