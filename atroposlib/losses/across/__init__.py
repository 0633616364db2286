"""Losses against teachers with another tokenizer; torch only."""

from atroposlib.losses.across.chunk_likelihood import chunk_likelihood
from atroposlib.losses.across.quotient_distillation import quotient_distillation
from atroposlib.losses.across.targets import ChunkTargets

__all__ = ["ChunkTargets", "chunk_likelihood", "quotient_distillation"]
