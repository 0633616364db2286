"""Small tokenizers of each family, as the dicts that tokenizer.json and tokenizer_config.json hold."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from atroposlib.align.tables.decoders import byte_characters

Part = dict[str, Any]
SIGN = "\u2581"
SPACE_TO_SIGN = {"type": "Replace", "pattern": {"String": " "}, "content": SIGN}
SIGN_TO_SPACE = {"type": "Replace", "pattern": {"String": SIGN}, "content": " "}
BYTE_PIECES = [f"<0x{byte:02X}>" for byte in range(256)]


def added(number: int, content: str, **flags: bool) -> Part:
    """An entry of ``added_tokens``; special unless told otherwise."""
    usual = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {"id": number, "content": content} | usual | flags


def whole(model: Part, decoder: Part | None, **parts: Any) -> Part:
    """A tokenizer.json of these parts."""
    empty = {"added_tokens": [], "normalizer": None, "pre_tokenizer": None, "post_processor": None}
    return (
        {"version": "1.0", "truncation": None, "padding": None}
        | empty
        | parts
        | {"decoder": decoder, "model": model}
    )


def bpe(pieces: list[str], merges: list[list[str]], **settings: Any) -> Part:
    """A BPE model over these pieces, numbered in order."""
    usual = {
        "dropout": None,
        "unk_token": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": False,
    }
    affixes = {"continuing_subword_prefix": None, "end_of_word_suffix": None}
    vocab = {piece: number for number, piece in enumerate(pieces)}
    return {"type": "BPE"} | usual | affixes | settings | {"vocab": vocab, "merges": merges}


def byte_level(*, add_prefix_space: bool = False) -> Part:
    """GPT-2's way: a character a byte; "th", " th", half of "é", and an added token with signs of no byte."""
    space, half = "Ġ", byte_characters()[0xC3]
    pieces = [*byte_characters(), "th", f"{space}th", f"{half}a"]
    level = {
        "type": "ByteLevel",
        "add_prefix_space": add_prefix_space,
        "trim_offsets": True,
        "use_regex": True,
    }
    return whole(
        bpe(pieces, [["t", "h"], [space, "th"], [half, "a"]]),
        {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        pre_tokenizer=level,
        added_tokens=[
            added(259, "<|end|>"),
            added(260, "<｜sign▁off｜>", special=False),
            added(261, "éé", special=False),
        ],
    )


def llama_like() -> Part:
    """SentencePiece BPE with byte fallback and a space before each section of text."""
    pieces = ["<unk>", "<s>", "</s>", *BYTE_PIECES, SIGN, "a", "b", f"{SIGN}a", f"{SIGN}{SIGN}", "ab"]
    merges = [[SIGN, "a"], [SIGN, SIGN], ["a", "b"]]
    strip = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
    return whole(
        bpe(pieces, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True),
        {"type": "Sequence", "decoders": [SIGN_TO_SPACE, {"type": "ByteFallback"}, {"type": "Fuse"}, strip]},
        normalizer={"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": SIGN}, SPACE_TO_SIGN]},
        added_tokens=[added(0, "<unk>"), added(1, "<s>"), added(2, "</s>")],
    )


def gemma_like() -> Part:
    """SentencePiece BPE with byte fallback, no space put in, and a run of spaces among the added tokens."""
    pieces = [
        "<pad>",
        "<eos>",
        "<bos>",
        *BYTE_PIECES,
        SIGN,
        "a",
        "b",
        f"{SIGN}a",
        f"{SIGN}{SIGN}",
        "<end_of_turn>",
    ]
    return whole(
        bpe(pieces, [[SIGN, "a"], [SIGN, SIGN]], byte_fallback=True),
        {"type": "Sequence", "decoders": [SIGN_TO_SPACE, {"type": "ByteFallback"}, {"type": "Fuse"}]},
        normalizer=SPACE_TO_SIGN,
        pre_tokenizer={
            "type": "Split",
            "pattern": {"String": " "},
            "behavior": "MergedWithPrevious",
            "invert": False,
        },
        added_tokens=[
            *(added(number, pieces[number]) for number in (0, 1, 2)),
            added(pieces.index(SIGN * 2), SIGN * 2, special=False),
            added(len(pieces) - 1, "<end_of_turn>"),
            added(len(pieces), "<image>"),
        ],
    )


def unigram(scheme: str = "always") -> Part:
    """T5's way: Metaspace on both sides, and what has no piece is unknown."""
    sign = {"type": "Metaspace", "replacement": SIGN, "prepend_scheme": scheme, "split": True}
    pieces = ["<pad>", "</s>", "<unk>", SIGN, "a", "b", f"{SIGN}a", "ab"]
    vocab = [[piece, -float(rank)] for rank, piece in enumerate(pieces)]
    return whole(
        {"type": "Unigram", "unk_id": 2, "vocab": vocab, "byte_fallback": False},
        sign,
        pre_tokenizer=sign,
        added_tokens=[added(number, pieces[number]) for number in (0, 1, 2)],
    )


def wordpiece() -> Part:
    """BERT's way: words with pieces inside them, and a decoder that puts the spaces back as it thinks fit."""
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "b", "##a", "##b", "ab", "."]
    return whole(
        {
            "type": "WordPiece",
            "unk_token": "[UNK]",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
            "vocab": {piece: number for number, piece in enumerate(pieces)},
        },
        {"type": "WordPiece", "prefix": "##", "cleanup": True},
        normalizer={
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": True,
            "strip_accents": None,
            "lowercase": True,
        },
        pre_tokenizer={"type": "BertPreTokenizer"},
        added_tokens=[added(number, pieces[number]) for number in (0, 1, 2, 3)],
    )


FAMILIES = {
    "byte_level": byte_level(),
    "byte_level_prefix": byte_level(add_prefix_space=True),
    "llama_like": llama_like(),
    "gemma_like": gemma_like(),
    "unigram_always": unigram("always"),
    "unigram_first": unigram("first"),
    "unigram_never": unigram("never"),
    "wordpiece": wordpiece(),
}


def write(directory: Path, tokenizer: Part, config: Part | None = None) -> Path:
    """Write the files of a tokenizer; returns the directory."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "tokenizer.json").write_text(json.dumps(tokenizer), encoding="utf-8")
    if config is not None:
        (directory / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return directory
