"""The held-out measures across tokenizers against a plain float64 computation.

The student's tokens are single bytes, so outcomes common to both vocabularies are the first bytes of the
teacher's tokens, and the end of a turn.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerFast

from atroposlib.collate.across.pair import TokenizerPair
from atroposlib.demo.heldout import Text, load_model
from atroposlib.demo.heldout_across import LISTED, AcrossVocabularies
from atroposlib.demo.paired_texts import PairedReader, PairedText, coverage
from atroposlib.errors import UsageError
from tests.support.tiny_teacher import FIRST_MARKER, MERGES, write_merging_tokenizer, write_other_model

STUDENT_END, TEACHER_END = 258, FIRST_MARKER + 2
PROMPTS = [[{"role": "user", "content": text}] for text in ("What is seven?", "And the other?")]
TEXTS = ("there is a\n\nthin seventh", "in the end 7", "x")
TOKENS = (
    [b"the", b"r", b"e", b" ", b"i", b"s", b" a", b"\n", b"\n", b"th", b"in", b" ", b"seve", b"n"],
    [b"in", b" the", b" ", b"e", b"n", b"d", b" ", b"7", b""],
    [b"x", b""],
)
"""The teacher's of each text: the first is cut off, so that its last word is left out, the others end."""
WRITTEN = ["".join(pair).replace("Ġ", " ") for pair in MERGES]
WITHIN = {two for token in WRITTEN for two in zip(token.encode(), token.encode()[1:], strict=False)}
BLANKS = b" \t\n\v\f\r"


@pytest.fixture(scope="module")
def teacher_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base model with another tokenizer than the tiny one."""
    directory = write_other_model(tmp_path_factory.mktemp("other") / "model")
    file = directory / "tokenizer_config.json"
    config = json.loads(file.read_text())
    del config["chat_template"]
    file.write_text(json.dumps(config))
    return directory


@pytest.fixture(scope="module")
def reader(tiny_model_dir: Path, teacher_dir: Path) -> PairedReader:
    tokenizers = [PreTrainedTokenizerFast.from_pretrained(place) for place in (tiny_model_dir, teacher_dir)]
    return PairedReader(*tokenizers, PROMPTS)


@pytest.fixture(scope="module")
def pair(tiny_model_dir: Path, teacher_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> TokenizerPair:
    return TokenizerPair.load(tiny_model_dir, teacher_dir, cache_dir=tmp_path_factory.mktemp("quotients"))


@pytest.fixture(scope="module")
def models(tiny_model_dir: Path, teacher_dir: Path) -> tuple[PreTrainedModel, PreTrainedModel]:
    """Student and teacher."""
    student, teacher = (load_model(place, torch.device("cpu")) for place in (tiny_model_dir, teacher_dir))
    return student, teacher


@pytest.fixture(scope="module")
def texts(reader: PairedReader) -> list[PairedText]:
    return [
        reader.paired(0, TEXTS[0], ended=False),
        reader.paired(1, TEXTS[1], ended=True),
        reader.paired(1, TEXTS[2], ended=True),
    ]


def dense(directory: Path, text: Text) -> NDArray[np.float64]:
    """Probabilities [T, V] before each continuation token, by a float64 forward pass."""
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float64)
    logits = model(torch.tensor([text.prompt + text.continuation])).logits[0].detach().numpy()
    exp = np.exp(logits - logits.max(-1, keepdims=True))
    before = slice(len(text.prompt) - 1, len(text.prompt) + len(text.continuation) - 1)
    return (exp / exp.sum(-1, keepdims=True))[before]


def written(number: int, *, by_teacher: bool) -> bytes | None:
    """The bytes of an id; None for a marker and for an id that has no token."""
    if number < 256:
        return bytes([number])
    merged = number - 256
    return WRITTEN[merged].encode() if by_teacher and merged < len(WRITTEN) else None


def outcomes(row: NDArray[np.float64], before: int, *, by_teacher: bool) -> dict[object, float]:
    """Probability of each first byte, of the end of a turn, and of all else, behind a byte."""
    end = TEACHER_END if by_teacher else STUDENT_END
    found: Counter[object] = Counter()
    for number, probability in enumerate(row):
        spelled = written(number, by_teacher=by_teacher)
        if spelled is None:
            found["end" if number == end else "else"] += float(probability)
        elif not is_within(before, spelled[0]):
            found[spelled[0]] += float(probability)
    total = sum(found.values())
    return {key: value / total for key, value in found.items()}


def is_within(before: int, behind: int) -> bool:
    """Whether a token could reach over the boundary between two bytes."""
    return (before, behind) in WITHIN or (before in BLANKS and behind in BLANKS)


def expected_kl(
    directories: tuple[Path, Path], text: PairedText, said: bytes, tokens: list[bytes]
) -> list[float]:
    """The KL at every safe cut of one text; ``tokens`` are the teacher's, whose prompt ends with a line."""
    ours, theirs = (
        dense(place, side) for place, side in zip(directories, (text.student, text.teacher), strict=True)
    )
    values, at = [], 0
    for index, token in enumerate(tokens):
        before = said[at - 1] if at else 10
        if not token or not is_within(before, token[0]):
            q = outcomes(theirs[index], before, by_teacher=True)
            p = outcomes(ours[at], before, by_teacher=False)
            listed = sorted((key for key in q if key != "else"), key=lambda key: -q[key])[:LISTED]
            terms = [(q[key], p[key]) for key in listed]
            rest = (1 - sum(a for a, _ in terms), 1 - sum(b for _, b in terms))
            values.append(sum(a * math.log(a / b) for a, b in [*terms, rest]))
        at += len(token)
    return values


def test_the_kl_equals_a_float64_computation(
    tiny_model_dir: Path,
    teacher_dir: Path,
    pair: TokenizerPair,
    models: tuple[PreTrainedModel, PreTrainedModel],
    texts: list[PairedText],
) -> None:
    directories = (tiny_model_dir, teacher_dir)
    values = [
        expected_kl(directories, text, said.encode(), own)
        for text, said, own in zip(texts, TEXTS, TOKENS, strict=True)
    ]
    measured = AcrossVocabularies(models[1], pair, texts).of(models[0])
    every = [value for of_text in values for value in of_text]
    assert measured["cuts"] == len(every)
    assert measured["kl"] == pytest.approx(float(np.mean(every)), rel=1e-4)


def test_bits_are_those_of_the_bytes_in_chunks(
    tiny_model_dir: Path,
    teacher_dir: Path,
    pair: TokenizerPair,
    models: tuple[PreTrainedModel, PreTrainedModel],
    texts: list[PairedText],
) -> None:
    bits = [0.0, 0.0]
    for text, tokens in zip(texts, TOKENS, strict=True):
        for side, place, count in (
            (0, tiny_model_dir, sum(len(token) or 1 for token in tokens)),
            (1, teacher_dir, len(tokens)),
        ):
            own = (text.student, text.teacher)[side]
            rows = dense(place, own)
            bits[side] -= sum(math.log2(rows[at, own.continuation[at]]) for at in range(count))
    measured = AcrossVocabularies(models[1], pair, texts).of(models[0])
    assert measured["bytes"] == len("there is a\n\nthin seven") + len(TEXTS[1]) + len(TEXTS[2])
    assert measured["bits_per_byte"] == pytest.approx(bits[0] / measured["bytes"], rel=1e-5)
    assert measured["teacher_bits_per_byte"] == pytest.approx(bits[1] / measured["bytes"], rel=1e-5)


def test_a_model_has_no_distance_to_itself(
    teacher_dir: Path, models: tuple[object, PreTrainedModel], texts: list[PairedText]
) -> None:
    own = [
        replace(text, student=text.teacher, student_chunk_id=text.teacher_chunk_id, masked=Counter())
        for text in texts
    ]
    pair = TokenizerPair.load(teacher_dir, teacher_dir, cache_dir=teacher_dir / "quotients")
    measured = AcrossVocabularies(models[1], pair, own).of(models[1])
    assert measured["kl"] == pytest.approx(0.0, abs=1e-12)
    assert measured["bits_per_byte"] == measured["teacher_bits_per_byte"]


def test_texts_without_a_cut_are_refused(
    pair: TokenizerPair, models: tuple[object, PreTrainedModel], reader: PairedReader
) -> None:
    with pytest.raises(UsageError, match="nothing that can be compared"):
        AcrossVocabularies(models[1], pair, [reader.paired(0, "x", ended=False)])


def test_a_base_teacher_reads_the_bare_prompt(reader: PairedReader) -> None:
    said = [
        b"".join(written(number, by_teacher=True) or b"?" for number in ids) for ids in reader.teacher_prompts
    ]
    assert said == [b"What is seven?\n\n", b"And the other?\n\n"]


def test_a_teacher_with_a_template_reads_the_prompt_in_it(tiny_model_dir: Path, tmp_path: Path) -> None:
    write_merging_tokenizer(tmp_path)
    tokenizers = [PreTrainedTokenizerFast.from_pretrained(place) for place in (tiny_model_dir, tmp_path)]
    prompt = PairedReader(*tokenizers, PROMPTS).teacher_prompts[0]
    assert tokenizers[1].decode(prompt) == ("<s><|turn|>user\n\nWhat is seven?<|end|><|turn|>assistant\n\n")


def test_what_the_teacher_samples_is_what_both_read(
    reader: PairedReader, models: tuple[object, PreTrainedModel]
) -> None:
    texts = reader.written_by(models[1], 12, seed=3)
    assert [text.student.prompt for text in texts] == reader.student_prompts
    for text in texts:
        ours, theirs = text.student.continuation, text.teacher.continuation
        spelled = b"".join(written(number, by_teacher=False) or b"" for number in ours)
        assert spelled == b"".join(written(number, by_teacher=True) or b"" for number in theirs)


def test_an_unfinished_character_is_no_part_of_the_text(reader: PairedReader) -> None:
    assert reader.text([120, *"é".encode()[:1]]) == "x"
    assert reader.text([120, *"é".encode()]) == "xé"


def test_a_cut_off_end_does_not_lower_the_coverage_and_a_hole_does(texts: list[PairedText]) -> None:
    assert coverage(texts) == {
        "text_tokens": sum(map(len, TEXTS)) + 2,
        "masked": {"cut_end": 2},
        "chunk_coverage": 1.0,
    }
    holed = replace(texts[1], masked=Counter(not_equal=2, cut_end=3))
    assert coverage([holed])["chunk_coverage"] == pytest.approx((13 - 5) / (13 - 3))
