"""What the ids of a tokenizer stand for, in bytes. Never imports torch or transformers."""
