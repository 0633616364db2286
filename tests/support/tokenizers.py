"""A byte-level tokenizer in which "ab" is one token, so that one text has several tokenizations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.support.tiny import write_tokenizer

AB = 256
END = 259


def merging_tokenizer(directory: Path, chat_template: str | None = None) -> Any:
    """The tokenizer of ``tiny`` with one merge, id 256 for "ab", and another chat template if given."""
    from transformers import AutoTokenizer

    write_tokenizer(directory)
    (directory / "config.json").write_text(json.dumps({"model_type": "llama"}), encoding="utf-8")
    file = directory / "tokenizer.json"
    content = json.loads(file.read_text(encoding="utf-8"))
    content["model"]["vocab"]["ab"] = AB
    content["model"]["merges"] = [["a", "b"]]
    for token in content["added_tokens"]:
        token["id"] += 1
    file.write_text(json.dumps(content), encoding="utf-8")
    tokenizer = AutoTokenizer.from_pretrained(str(directory))
    if chat_template is not None:
        tokenizer.chat_template = chat_template
    return tokenizer
