"""Which tokens of two tokenizers stand for the same bytes. Never imports torch or transformers."""
