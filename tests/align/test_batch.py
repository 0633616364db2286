"""Batches: the fields that NeMo RL's callers read, padding on any side, other processes, and refusals."""

from __future__ import annotations

import pickle
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from atroposlib.align.aligner import TokenAligner
from atroposlib.align.batch import AlignmentBatch
from atroposlib.errors import AlignError, ConfigError
from tests.support.tokenizer_files import byte_level, gemma_like, write

# byte_level has 256 bytes, then "th" and " th"; gemma_like has a byte at 3 and up, then a sign, "a", "b", ...
STUDENT = [*b"a", 257, *b"b"]
"""``a``, `` th``, ``b``."""
TEACHER = [260, 259, 3 + 0x74, 3 + 0x68, 261, 2]
"""``a``, space, ``t``, ``h``, ``b``, and its begin of text, which the student lacks."""


@pytest.fixture
def aligner(tmp_path: Path) -> TokenAligner:
    return TokenAligner(
        str(write(tmp_path / "student", byte_level())), str(write(tmp_path / "teacher", gemma_like()))
    )


def expected() -> dict[str, list[Any]]:
    return {
        "pair_valid": [True, True, True, False],
        "pair_is_correct": [True, True, True, False],
        "student_chunk_id": [0, 1, 2],
        "teacher_chunk_id": [0, 1, 1, 1, 2, 3],
        "student_exact_partition_mask": [True, False, True],
        "teacher_exact_partition_mask": [True, False, False, False, True, False],
    }


def test_fields_of_one_row(aligner: TokenAligner) -> None:
    batch = aligner.align(np.array([STUDENT]), np.array([TEACHER]))
    assert {name: getattr(batch, name).tolist() for name in expected()} == {
        name: [row] for name, row in expected().items()
    }
    assert batch.num_chunks.tolist() == [4]


def test_types_are_those_that_nemo_has(aligner: TokenAligner) -> None:
    batch = aligner.align(np.array([STUDENT]), np.array([TEACHER]))
    for name in ("student_chunk_id", "teacher_chunk_id", "num_chunks"):
        assert getattr(batch, name).dtype == np.int64
    for name in expected():
        if not name.endswith("chunk_id"):
            assert getattr(batch, name).dtype == np.bool_


def test_tensors_make_tensors(aligner: TokenAligner) -> None:
    batch = aligner.align(torch.tensor([STUDENT]), torch.tensor([TEACHER]))
    arrays = aligner.align(np.array([STUDENT]), np.array([TEACHER]))
    for name in AlignmentBatch.__slots__:
        tensor = getattr(batch, name)
        assert isinstance(tensor, torch.Tensor)
        assert tensor.numpy().dtype == getattr(arrays, name).dtype
        assert tensor.tolist() == getattr(arrays, name).tolist()


@pytest.mark.parametrize("left", [0, 2])
@pytest.mark.parametrize("right", [0, 3])
def test_padding_on_either_side_is_in_no_chunk(aligner: TokenAligner, left: int, right: int) -> None:
    def padded(row: list[Any], filling: Any) -> list[Any]:
        return [filling] * left + row + [filling] * right

    # The filling is an id that means something, so that only the mask can tell.
    batch = aligner.align(
        torch.tensor([padded(STUDENT, 97)]),
        torch.tensor([padded(TEACHER, 260)]),
        student_attention_mask=torch.tensor([padded([1] * 3, 0)]),
        teacher_attention_mask=torch.tensor([padded([1] * 6, 0)]),
    )
    for name, row in expected().items():
        filling = -1 if name.endswith("chunk_id") else False
        wanted = row if name.startswith("pair") else padded(row, filling)
        assert getattr(batch, name)[0].tolist() == wanted


def test_rows_of_padding_alone_have_no_chunk_and_one_place_for_it(aligner: TokenAligner) -> None:
    batch = aligner.align(
        np.array([STUDENT, STUDENT]),
        np.array([TEACHER, TEACHER]),
        student_attention_mask=np.array([[0, 0, 0], [1, 1, 1]]),
        teacher_attention_mask=np.zeros((2, 6)),
    )
    assert batch.num_chunks.tolist() == [0, 0]
    assert batch.pair_valid.tolist() == [[False], [False]]
    assert (batch.student_chunk_id == -1).all()


def test_no_rows_are_no_error(aligner: TokenAligner) -> None:
    batch = aligner.align(np.zeros((0, 3), dtype=np.int64), np.zeros((0, 5), dtype=np.int64))
    assert batch.pair_valid.shape == (0, 1)
    assert batch.teacher_chunk_id.shape == (0, 5)


def test_offsets_are_checked_and_have_no_effect(aligner: TokenAligner) -> None:
    plain = aligner.align(np.array([STUDENT]), np.array([TEACHER]))
    given = aligner.align(
        np.array([STUDENT]),
        np.array([TEACHER]),
        student_offsets=np.zeros((1, 3, 2), dtype=np.int64),
        teacher_offsets=np.ones((1, 6, 2), dtype=np.int64),
    )
    assert given.teacher_chunk_id.tolist() == plain.teacher_chunk_id.tolist()


@pytest.mark.parametrize(
    ("arguments", "where"),
    [
        ({"student_ids": [1, 2, 3]}, "student_ids"),
        ({"teacher_ids": [[1.5, 2.0]]}, "teacher_ids"),
        ({"teacher_ids": [TEACHER, TEACHER]}, "teacher_ids"),
        ({"student_attention_mask": [[1, 1]]}, "student_attention_mask"),
        ({"student_attention_mask": [[1, 0, 1]]}, "student_attention_mask[0]"),
        ({"teacher_offsets": [[[0, 1]] * 5]}, "teacher_offsets"),
        ({"student_offsets": [[[0.0, 1.0]] * 3]}, "student_offsets"),
    ],
)
def test_what_does_not_fit_is_refused_by_its_name(
    aligner: TokenAligner, arguments: dict[str, Any], where: str
) -> None:
    with pytest.raises(AlignError) as caught:
        aligner.align(**({"student_ids": [STUDENT], "teacher_ids": [TEACHER]} | arguments))
    assert caught.value.code == "align.sequence"
    assert caught.value.where == where
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize("number", [0, -1, 2.5, True, "4"])
def test_how_many_tokens_may_combine_is_checked(aligner: TokenAligner, number: Any) -> None:
    with pytest.raises(ConfigError, match="max_comb_len"):
        TokenAligner(aligner.student, aligner.teacher, max_comb_len=number)


def test_how_many_tokens_may_combine_has_no_effect(aligner: TokenAligner) -> None:
    single = TokenAligner(aligner.student, aligner.teacher, max_comb_len=1)
    assert single.align_ids(STUDENT, TEACHER).teacher_chunk_id.tolist() == expected()["teacher_chunk_id"]


def test_a_pickled_aligner_is_the_same(aligner: TokenAligner) -> None:
    named = TokenAligner(aligner.student, aligner.teacher, "matrix.safetensors", 3)
    copy = pickle.loads(pickle.dumps(named))
    assert (copy.projection_matrix_path, copy.max_comb_len) == ("matrix.safetensors", 3)
    assert copy.student.fingerprint == named.student.fingerprint
    assert copy.align_ids(STUDENT, TEACHER).student_chunk_id.tolist() == expected()["student_chunk_id"]


class Rows:
    """A data set of one row, aligned by whoever asks for it."""

    def __init__(self, aligner: TokenAligner) -> None:
        self.aligner = aligner

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> torch.Tensor:
        batch = self.aligner.align(torch.tensor([STUDENT]), torch.tensor([TEACHER]))
        return batch.teacher_chunk_id[0]


def test_workers_of_a_data_loader_align(aligner: TokenAligner) -> None:
    loader: DataLoader[Any] = DataLoader(Rows(aligner), num_workers=2, batch_size=2)
    found = torch.cat(list(loader)).tolist()
    assert found == [expected()["teacher_chunk_id"]] * 4


def test_processes_that_share_nothing_align(aligner: TokenAligner) -> None:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        alignment = pool.submit(aligner.align_ids, STUDENT, TEACHER).result(timeout=60)
    assert alignment.teacher_chunk_id.tolist() == expected()["teacher_chunk_id"]


def test_arrays_need_no_torch(tmp_path: Path) -> None:
    student, teacher = write(tmp_path / "student", byte_level()), write(tmp_path / "teacher", gemma_like())
    program = (
        "import sys; sys.modules['torch'] = sys.modules['transformers'] = None\n"
        "from atroposlib.align.aligner import TokenAligner\n"
        f"batch = TokenAligner({str(student)!r}, {str(teacher)!r}).align([{STUDENT}], [{TEACHER}])\n"
        "print(batch.num_chunks.tolist())"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[4]"
