"""Files are read from any shard on, and give the rows that reading all of them gives."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from atroposlib.errors import UsageError
from atroposlib.scoring import source
from atroposlib.scoring.chat import RowError
from atroposlib.scoring.parquet import ParquetRows
from atroposlib.scoring.plan import Plan
from atroposlib.scoring.source import JsonLines, digest_of, open_source


def by_shards(rows: Any, rows_per_shard: int) -> Iterator[list[object]]:
    plan = Plan(rows.extent(rows_per_shard), rows_per_shard)
    for number in range(plan.shards):
        shard = plan.shard(number)
        yield list(rows.rows(shard.first, shard.count, shard.offset))


@pytest.mark.parametrize("rows_per_shard", [1, 2, 3, 7, 100])
@pytest.mark.parametrize("count", [0, 1, 6, 7, 8])
@pytest.mark.parametrize("ending", ["\n", "", "\r\n"])
def test_shards_of_lines_together_are_the_lines(
    tmp_path: Path, rows_per_shard: int, count: int, ending: str
) -> None:
    path = tmp_path / "data.jsonl"
    values = [{"n": number, "pad": "ü\\n" * (number % 3)} for number in range(count)]
    path.write_bytes(
        (ending or "\n").join(map(json.dumps, values)).encode() + (ending if values else "").encode()
    )
    shards = list(by_shards(JsonLines(path), rows_per_shard))
    assert [row for shard in shards for row in shard] == values
    assert all(len(shard) == rows_per_shard for shard in shards[:-1])


def test_shards_begin_at_the_same_lines_whatever_blocks_the_file_is_read_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "data.jsonl"
    path.write_text("".join(f'{{"n": {number}}}\n' for number in range(50)))
    whole = JsonLines(path).extent(3)
    for block in (1, 7, 64):
        monkeypatch.setattr(source, "_BLOCK", block)
        assert JsonLines(path).extent(3) == whole


def test_a_line_that_is_no_json_is_told_and_the_next_is_read(tmp_path: Path) -> None:
    path = tmp_path / "data.jsonl"
    path.write_text('{"n": 0}\n\n{"n": \n{"n": NaN}\n{"n": 4}\n')
    (rows,) = by_shards(JsonLines(path), 10)
    assert [row.reason if isinstance(row, RowError) else row for row in rows] == [
        {"n": 0},
        "json",
        "json",
        "json",
        {"n": 4},
    ]


def test_a_line_that_is_too_long_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "LONGEST_LINE", 20)
    path = tmp_path / "data.jsonl"
    path.write_text('{"n": 0}\n{"n": "' + "x" * 50 + '"}\n{"n": 2}\n')
    (rows,) = by_shards(JsonLines(path), 10)
    assert rows[0::2] == [{"n": 0}, {"n": 2}]
    assert isinstance(rows[1], RowError)
    assert rows[1].reason == "line_length"


@pytest.mark.parametrize("text", ["", '{"n": 0}\n', '{"n":  0}\n{"n": 1}\n'])
def test_a_file_that_lost_its_lines_is_told(tmp_path: Path, text: str) -> None:
    path = tmp_path / "data.jsonl"
    path.write_text('{"n": 0}\n{"n": 1}\n{"n": 2}\n')
    lines = JsonLines(path)
    shard = Plan(lines.extent(1), 1).shard(1)
    path.write_text(text)
    with pytest.raises(UsageError, match="has changed"):
        list(lines.rows(shard.first, shard.count, shard.offset))


def test_the_digest_tells_files_apart_by_size_and_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source, "_ENDS", 4)
    path = tmp_path / "data"
    digests = set()
    for content in (b"", b"abcdefgh", b"xbcdefgh", b"abcdefgx", b"abcdefg", b"abcdefghi"):
        path.write_bytes(content)
        digests.add(digest_of(path))
    assert len(digests) == 6


def write_parquet(path: Path, rows: list[dict[str, Any]], row_group: int) -> Path:
    pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=row_group)
    return path


@pytest.mark.parametrize("rows_per_shard", [1, 3, 4, 100])
@pytest.mark.parametrize("row_group", [1, 3, 5, 100])
def test_shards_of_parquet_together_are_the_table(
    tmp_path: Path, rows_per_shard: int, row_group: int
) -> None:
    values = [{"tokens": [number, 2], "group_id": f"g{number}"} for number in range(11)]
    path = write_parquet(tmp_path / "data.parquet", [{**row, "other": "x"} for row in values], row_group)
    rows = open_source(path)
    assert isinstance(rows, ParquetRows)
    assert [row for shard in by_shards(rows, rows_per_shard) for row in shard] == values


@pytest.mark.parametrize("order", [[3, 0, 2], [0, 2, 4], [4, 4, 1], [2, 3, 0, 1]])
def test_shards_of_parquet_may_be_asked_for_in_any_order(tmp_path: Path, order: list[int]) -> None:
    values = [{"tokens": [number]} for number in range(10)]
    rows = ParquetRows(write_parquet(tmp_path / "data.parquet", values, 3))
    plan = Plan(rows.extent(2), 2)
    for number in order:
        shard = plan.shard(number)
        assert (
            list(rows.rows(shard.first, shard.count, shard.offset)) == values[shard.first : shard.first + 2]
        )


def test_rising_shards_decode_every_row_group_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = [{"tokens": [number]} for number in range(40)]
    rows = ParquetRows(write_parquet(tmp_path / "data.parquet", values, 8))
    opened = []
    monkeypatch.setattr(rows, "_from", lambda group, made=rows._from: opened.append(group) or made(group))
    list(by_shards(rows, 3))
    assert opened == [0]


@pytest.mark.parametrize(("name", "what"), [("data.jsonl", "no such file"), ("data.parquet", "no such file")])
def test_a_missing_file_is_a_usage_error(tmp_path: Path, name: str, what: str) -> None:
    with pytest.raises(UsageError, match=what):
        open_source(tmp_path / name)


def test_what_is_no_parquet_is_a_usage_error(tmp_path: Path) -> None:
    path = tmp_path / "data.parquet"
    path.write_bytes(os.urandom(100))
    with pytest.raises(UsageError, match="no Parquet"):
        open_source(path)
