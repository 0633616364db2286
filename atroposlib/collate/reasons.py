"""Why a marked token is not trained: one small number a token, so that several teachers' can be joined."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Reasons: TypeAlias = NDArray[np.int8]
"""int8 [T]: ``TAUGHT``, or the place of the reason in :data:`NAMES`; the lower of two is told."""

NAMES = (
    "",
    "not_probabilities",
    "not_scored",
    "no_chunk",
    "not_in_a_used_chunk",
    "no_top_k",
    "no_advantage",
    "no_generation_logprob",
    "no_reference_logprob",
    "no_pair",
    "no_same_tokenizer_target",
    "no_arrays",
)
TAUGHT, NOT_PROBABILITIES, NOT_SCORED, NO_CHUNK, UNUSED_CHUNK, NO_TOP_K = range(6)
NO_ADVANTAGE, NO_GENERATION, NO_REFERENCE, NO_PAIR, OTHERS_ONLY, NO_ARRAYS = range(6, len(NAMES))

OTHER_TOKENIZERS_ONLY = NAMES[OTHERS_ONLY]
"""Reason of what only teachers with another tokenizer have scored, when no loss reads them."""
