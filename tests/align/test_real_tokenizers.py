"""Byte tables of real tokenizers, against the library's own encoder and decoder."""

from __future__ import annotations

import random
import unicodedata

import numpy as np
import pytest
from tokenizers import Tokenizer

from atroposlib.align.vocabulary import SPECIAL, TEXT, Vocabulary
from tests.support.real_tokenizers import byte_table, missing, real_tokenizers
from tests.support.real_tokenizers import library as real_library

HERE = real_tokenizers()

TEXTS = [
    "The capital of France is Paris; it's 1,234.5 km away, isn't it?",
    "def f(x):\n    return {'a': [x ** 2 for x in range(100)]}\t# done\r\n\n\n        end",
    "$\\frac{1}{2} \\cdot \\sqrt{x^2 + 201} \\neq 3.14159$ and 20240229",
    "Москва, 東京, 서울, القاهرة, กรุงเทพ, नई दिल्ली, İstanbul, naïve café",
    "👩‍👩‍👧‍👦 🏳️‍🌈 👍🏽 🇫🇷 ❤️ 🤷🏿‍♀️",
    "   leading,  double   and trailing spaces   \n \n\t\t",
    "e\u0301 decomposed, \ufb01 ligature, \uff21 full width, \u00a0 no-break",
    "literal <0x0A> and Ġ and ## and </w> signs",
    " ",
    "\n",
]


KNOWN_LOSSES = {"nfc", "nfkc", "charsmap", "space_sign", "byte_pieces", "unknown", "unmatched", "added_strip"}
MOST_IDS = 20_000


def random_texts(count: int) -> list[str]:
    """Strings of assigned characters from all planes, of blanks, and of everyday letters."""
    draw = random.Random(6)
    assigned = [
        chr(code)
        for code in range(0x20, 0x20000)
        if unicodedata.category(chr(code)) not in ("Cn", "Cs", "Co") and chr(code) != "\u2581"
    ]
    pools = [assigned, list(" \n\t\u00a0a0"), list("abcdefghij klmnop 0123456789 .,")]
    return ["".join(draw.choices(draw.choice(pools), k=draw.randint(1, 40))) for _ in range(count)]


def test_all_known_tokenizers_were_looked_at() -> None:
    if absent := missing():
        pytest.skip(
            f"not here: {', '.join(absent)}; run `python -m tests.support.assets` once, or set TOKENIZERS_DIR"
        )


@pytest.fixture(scope="module", params=sorted(HERE))
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def library(name: str) -> Tokenizer:
    return real_library(name)


@pytest.fixture(scope="module")
def vocabulary(name: str) -> Vocabulary:
    return byte_table(name)


def read_back(text: str, vocabulary: Vocabulary, library: Tokenizer) -> str:
    """What is left of a text by the losses that the table declares."""
    if "charsmap" in vocabulary.lossy:
        return library.normalizer.normalize_str(text).replace("\u2581", " ")
    if "nfkc" in vocabulary.lossy:
        # Python's tables of compatible characters are those of another version of Unicode.
        return str(library.normalizer.normalize_str(text))
    return unicodedata.normalize("NFC", text) if "nfc" in vocabulary.lossy else text


def test_texts_come_back_byte_for_byte_but_for_declared_losses(
    vocabulary: Vocabulary, library: Tokenizer
) -> None:
    assert set(vocabulary.lossy) <= KNOWN_LOSSES
    unknown = vocabulary.roles["unk"] if "unknown" in vocabulary.lossy else None
    spelt_bytes = "byte_pieces" in vocabulary.lossy
    texts = [text for text in TEXTS + random_texts(400) if not (spelt_bytes and "<0x" in text)]
    compared = 0
    for add_special_tokens in (False, True):
        encoded = library.encode_batch(texts, add_special_tokens=add_special_tokens)
        for text, tokens in zip(texts, encoded, strict=True):
            if unknown not in tokens.ids:
                assert vocabulary.text(tokens.ids) == read_back(text, vocabulary, library).encode(), text
                compared += 1
    assert compared >= 500


def test_ids_read_as_the_library_decodes_them(vocabulary: Vocabulary, library: Tokenizer) -> None:
    ids = np.flatnonzero(vocabulary.kinds == TEXT).tolist()
    if len(ids) > MOST_IDS:
        # The last ids are where the added tokens stand.
        ids = random.Random(6).sample(ids, MOST_IDS - 500) + ids[-500:]
    decoded = library.decode_batch([[number] for number in ids], skip_special_tokens=False)
    ours = [vocabulary.text([number]).decode(errors="replace") for number in ids]
    assert [pair for pair in zip(ids, ours, decoded, strict=True) if pair[1] != pair[2]] == []


def test_every_token_of_the_library_has_bytes_or_is_special(
    vocabulary: Vocabulary, library: Tokenizer
) -> None:
    tokens = library.get_vocab(with_added_tokens=True)
    assert len(vocabulary) == max(tokens.values()) + 1
    kinds = vocabulary.kinds[sorted(tokens.values())]
    assert np.isin(kinds, (TEXT, SPECIAL)).all()
    assert np.count_nonzero(vocabulary.kinds) == len(tokens)
    assert all(tokens[name] == number for number, name in vocabulary.names.items())


def test_a_token_that_ends_a_turn_is_known_and_special(vocabulary: Vocabulary) -> None:
    if "eos" not in vocabulary.roles:
        pytest.skip("the configuration names no eos")
    assert vocabulary.kinds[vocabulary.roles["end_of_turn"]] == SPECIAL


ROLE_NAMES = {
    "qwen3": {"eos": "<|im_end|>", "end_of_turn": "<|im_end|>", "pad": "<|endoftext|>"},
    "llama3_1": {"bos": "<|begin_of_text|>", "eos": "<|eot_id|>", "end_of_turn": "<|eot_id|>"},
    "gemma3": {"bos": "<bos>", "end_of_turn": "<end_of_turn>", "pad": "<pad>"},
    "deepseek_v3": {"bos": "<｜begin▁of▁sentence｜>", "end_of_turn": "<｜end▁of▁sentence｜>"},
    "gptoss": {"eos": "<|return|>", "end_of_turn": "<|end|>"},
    "smollm2": {"bos": "<|im_start|>", "eos": "<|im_end|>", "end_of_turn": "<|im_end|>"},
}


@pytest.mark.parametrize("name", sorted(ROLE_NAMES.keys() & HERE.keys()))
def test_roles_of_known_families(name: str) -> None:
    vocabulary = byte_table(name)
    found = {role: vocabulary.names.get(number) for role, number in vocabulary.roles.items()}
    assert found.items() >= ROLE_NAMES[name].items()


@pytest.mark.skipif("qwen3" not in HERE, reason="the tokenizer qwen3 is not here")
def test_thinking_markers_of_qwen3_are_text_with_a_role() -> None:
    vocabulary = byte_table("qwen3")
    markers = [vocabulary.bytes_of(vocabulary.roles[role]) for role in ("think_open", "think_close")]
    assert markers == [b"<think>", b"</think>"]
