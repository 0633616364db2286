"""Loading the tokenizer: the same one as transformers gives, and clear errors."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from atroposlib.envs.tokenizer import load_tokenizer
from atroposlib.errors import UsageError

TEXT = "Grüße, 12 apples <|im_end|>\n"
SCRIPT = """
import sys
sys.modules["torch"] = None
from atroposlib.envs.tokenizer import load_tokenizer
print(load_tokenizer(sys.argv[1]).encode("ab"))
"""


def test_tokenizer_is_the_one_that_autotokenizer_gives(tokenizer_dir: Path) -> None:
    from transformers import AutoTokenizer

    ours, theirs = load_tokenizer(str(tokenizer_dir)), AutoTokenizer.from_pretrained(tokenizer_dir)
    assert ours.encode(TEXT) == theirs.encode(TEXT)
    assert ours.get_vocab() == theirs.get_vocab()
    assert ours.chat_template == theirs.chat_template
    assert ours.eos_token == theirs.eos_token


def test_plain_tokenizer_loads_without_torch(tokenizer_dir: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tokenizer_dir)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.stdout == "[97, 98]\n", done.stderr


def test_other_classes_are_left_to_autotokenizer(
    tokenizer_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "Qwen2Tokenizer"}))
    seen: list[Any] = []
    monkeypatch.setattr(
        "transformers.AutoTokenizer.from_pretrained", lambda name, **kwargs: seen.append((name, kwargs))
    )
    load_tokenizer(str(tmp_path))
    assert seen == [(str(tmp_path), {"use_fast": True})]


def test_directory_without_a_tokenizer_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"env\.tokenizer_name") as caught:
        load_tokenizer(str(tmp_path))
    assert caught.value.code == "usage.model"
