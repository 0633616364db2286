"""From a teacher's scores on its own tokens to what the losses across tokenizers read; numpy only."""

from atroposlib.collate.across.chunk_arrays import ChunkArrays, joined
from atroposlib.collate.across.chunk_targets import TeacherRows, chunk_arrays
from atroposlib.collate.across.pair import TokenizerPair

__all__ = ["ChunkArrays", "TeacherRows", "TokenizerPair", "chunk_arrays", "joined"]
