"""How the tokenizers of a run's two models stand to each other, read from their files."""

from __future__ import annotations

import json
from pathlib import Path

from atroposlib.align.sameness import compare
from atroposlib.align.vocabulary import read_vocabulary

TEMPLATE_FILES = ("chat_template.jinja", "chat_template.json")


def same_tokenizer(student: Path, teacher: Path) -> bool:
    """Whether every id says the same to both models.

    Raises:
        ConfigError: A directory without tokenizer.json (``usage.file``), or a tokenizer that a byte table
            cannot represent (``align.unsupported``).
    """
    return student == teacher or compare(read_vocabulary(student), read_vocabulary(teacher)).same


def has_chat_template(directory: Path) -> bool:
    """Whether a model's tokenizer has a chat template; a base model's has none."""
    if any((directory / name).is_file() for name in TEMPLATE_FILES):
        return True
    file = directory / "tokenizer_config.json"
    return file.is_file() and bool(json.loads(file.read_text(encoding="utf-8")).get("chat_template"))
