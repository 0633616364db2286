"""NeMo RL's aligner, loaded from where its module was exported to, for the alignment benchmark."""

from __future__ import annotations

import importlib.util
import inspect
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

Ints = npt.NDArray[np.int64]
MODULE = Path("nemo_rl", "algorithms", "x_token", "token_aligner.py")


@dataclass(frozen=True, slots=True)
class PeerAlignment:
    """Chunk ids [T] and [U] of the peer, which pairs are valid, and the seconds it took."""

    student_chunk_id: npt.NDArray[np.int64]
    teacher_chunk_id: npt.NDArray[np.int64]
    valid: npt.NDArray[np.bool_]
    seconds: float


class _Pieces:
    """Just enough of a tokenizer: ids to pieces, and no special tokens."""

    bos_token_id = eos_token_id = pad_token_id = unk_token_id = None
    bos_token = eos_token = pad_token = unk_token = None
    all_special_ids: tuple[int, ...] = ()

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer

    def convert_ids_to_tokens(self, ids: Any) -> Any:
        if isinstance(ids, int):
            return self.tokenizer.id_to_token(ids)
        return [self.tokenizer.id_to_token(int(number)) for number in ids]


class Peer:
    """The peer's aligner, of the version with character offsets or of the one without.

    Args:
        directory: Into which ``nemo_rl/algorithms/x_token/token_aligner.py`` was exported.
    """

    def __init__(self, directory: Path) -> None:
        spec = importlib.util.spec_from_file_location("peer_token_aligner", directory / MODULE)
        if spec is None or spec.loader is None:
            raise FileNotFoundError(directory / MODULE)
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
        self.aligner: Any = module.TokenAligner
        self.with_offsets = "student_offsets" in inspect.signature(self.aligner.align).parameters

    def align(
        self, tokenizers: tuple[Tokenizer, Tokenizer], rows: Sequence[tuple[Ints, Ints]]
    ) -> PeerAlignment:
        """Align one text.

        Args:
            tokenizers: The student's and the teacher's.
            rows: Ids int64 [T] and offsets int64 [T, 2] of both sides.
        """
        import torch

        batched = [[torch.from_numpy(array[None].copy()) for array in side] for side in rows]
        offsets = {"student_offsets": batched[0][1], "teacher_offsets": batched[1][1]}
        aligner = self.aligner(_Pieces(tokenizers[0]), _Pieces(tokenizers[1]), "unused")
        begun = time.perf_counter()
        batch = aligner.align(batched[0][0], batched[1][0], **(offsets if self.with_offsets else {}))
        seconds = time.perf_counter() - begun
        return PeerAlignment(
            batch.student_chunk_id[0].numpy(),
            batch.teacher_chunk_id[0].numpy(),
            batch.pair_valid[0].numpy(),
            seconds,
        )
