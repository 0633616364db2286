"""Batches for distilling from teachers with other tokenizers, with the interface of NeMo RL's collator."""

from atroposlib.collate.cross_tokenizer.collator import CrossTokenizerCollator
from atroposlib.collate.cross_tokenizer.config import CrossTokenizerCollatorConfig

__all__ = ["CrossTokenizerCollator", "CrossTokenizerCollatorConfig"]
