"""Byte tables: from the files of a tokenizer to what each of its ids stands for."""
