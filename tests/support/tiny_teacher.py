"""A tiny model with another tokenizer than ``tiny``: byte-level with merges, and a template of its own."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.tiny import write_tiny_model, write_tokenizer

MERGES = (
    ("t", "h"),
    ("th", "e"),
    ("i", "n"),
    ("Ġ", "a"),
    ("e", "r"),
    ("s", "e"),
    ("Ġ", "the"),
    ("v", "e"),
    ("se", "ve"),
)
BOS, START, END = "<s>", "<|turn|>", "<|end|>"
FIRST_MARKER = 256 + len(MERGES)
TEMPLATE = (
    "<s>{% for message in messages %}<|turn|>{{ message['role'] }}\n\n{{ message['content'] }}<|end|>"
    "{% endfor %}{% if add_generation_prompt %}<|turn|>assistant\n\n{% endif %}"
)


def write_merging_tokenizer(directory: Path) -> None:
    """Ids 0 to 255 are bytes, then the merges, then the begin of a text and of a turn, and a turn's end."""
    write_tokenizer(directory)
    file, config_file = directory / "tokenizer.json", directory / "tokenizer_config.json"
    content = json.loads(file.read_text(encoding="utf-8"))
    content["model"]["vocab"] |= {left + right: 256 + rank for rank, (left, right) in enumerate(MERGES)}
    content["model"]["merges"] = [list(pair) for pair in MERGES]
    for index, (token, name) in enumerate(zip(content["added_tokens"], (BOS, START, END), strict=True)):
        token["content"], token["id"] = name, FIRST_MARKER + index
    file.write_text(json.dumps(content), encoding="utf-8")
    config = json.loads(config_file.read_text(encoding="utf-8"))
    config |= {"bos_token": BOS, "eos_token": END, "pad_token": END, "chat_template": TEMPLATE}
    config_file.write_text(json.dumps(config), encoding="utf-8")


def write_other_model(directory: Path, *, seed: int = 7) -> Path:
    """Save a random Llama with this tokenizer; returns the directory."""
    write_tiny_model(directory, seed=seed)
    write_merging_tokenizer(directory)
    return directory
