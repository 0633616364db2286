"""Collators over real and small tokenizers, and what a rendering says about them by plain searching."""

from __future__ import annotations

import copy
import functools
from typing import Any

from tests.support.real_tokenizers import directory_of

SETTINGS = (
    "mode",
    "include_thinking_in_loss",
    "native_thinking_alignment",
    "kd_alignment_regions",
    "num_packed_rows",
)


@functools.cache
def own(name: str) -> Any:
    """A real tokenizer that only the collator's tests use, since a collator sets how it pads.

    ``a+b`` is tokenizer a with the chat template of b.
    """
    from transformers import PreTrainedTokenizerFast

    name, _, template = name.partition("+")
    tokenizer = PreTrainedTokenizerFast.from_pretrained(str(directory_of(name)))
    if template:
        tokenizer.chat_template = own(template).chat_template
    return tokenizer


@functools.cache
def pair(student: str, teacher: str) -> Any:
    """The aligner of two real tokenizers."""
    from atroposlib.align.aligner import TokenAligner

    return TokenAligner(table(own(student)), table(own(teacher)))


@functools.cache
def table(tokenizer: Any) -> Any:
    """What stands in for vocabulary_of, which reads the whole vocabulary each time."""
    from atroposlib.align.vocabulary import vocabulary_of

    return vocabulary_of(tokenizer)


@functools.cache
def _encoder(tokenizer: Any) -> Any:
    from atroposlib.align.views.encoding import TextEncoder

    return TextEncoder(tokenizer, table(tokenizer))


def encoder(tokenizer: Any, vocabulary: Any) -> Any:
    """What stands in for TextEncoder: making one takes seconds for the largest vocabularies."""
    return _encoder(tokenizer)


def collator(student: Any, teachers: list[Any], aligners: list[Any], **changes: Any) -> Any:
    """A collator with room for 512 tokens on each side, but for these changes of settings and arguments."""
    from atroposlib.collate.cross_tokenizer import CrossTokenizerCollator, CrossTokenizerCollatorConfig

    config = CrossTokenizerCollatorConfig(**{name: changes.pop(name) for name in SETTINGS if name in changes})
    arguments = {
        "ctx_length_student": 512,
        "ctx_length_teachers": [512] * len(aligners),
        "drop_first_assistant_chunk_kl_by_teacher": [False] * len(aligners),
    }
    return CrossTokenizerCollator(
        config=config,
        student_tokenizer=student,
        teacher_tokenizers=teachers,
        aligners=aligners,
        **arguments | changes,
    )


def real_collator(student: str, *teachers: str, **changes: Any) -> Any:
    """A collator over real tokenizers; a teacher that is called as the student has the student's own."""
    aligners = [None if teacher == student else pair(student, teacher) for teacher in teachers]
    return collator(own(student), [own(teacher) for teacher in teachers], aligners, **changes)


def row(*contents: str, idx: int = 0, **changes: Any) -> dict[str, Any]:
    """A row whose messages are, from the last back, of assistant and user in turns."""
    roles = ["assistant", "user"]
    messages = [
        {"role": roles[(len(contents) - 1 - at) % 2], "content": content}
        for at, content in enumerate(contents)
    ]
    return {"message_log": messages, "idx": idx, "loss_multiplier": 1.0} | changes


def tokens_between(tokenizer: Any, text: str, begin: int, end: int) -> list[int]:
    """Positions of the tokens that lie between two characters, by the library's own offsets (ASCII only)."""
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    return [at for at, (first, last) in enumerate(encoded["offset_mapping"]) if begin <= first < last <= end]


def positions(mask: Any) -> list[int]:
    """Where a row of a mask is set."""
    found: list[int] = mask.nonzero().flatten().tolist()
    return found


def decoded(tokenizer: Any, ids: Any) -> str:
    """What ids are to the library."""
    text: str = tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    return text


def chunk_texts(batch: dict[str, Any], at: int, i: int, student: Any, teacher: Any) -> list[tuple[str, str]]:
    """What the valid chunks of one row are to the library, on both sides."""
    found = []
    for chunk in positions(batch[f"alignment_{i}_pair_valid"][at]):
        ours = batch["input_ids"][at][batch[f"alignment_{i}_student_chunk_id"][at] == chunk]
        theirs = batch[f"teacher_{i}_input_ids"][at][batch[f"alignment_{i}_teacher_chunk_id"][at] == chunk]
        found.append((decoded(student, ours), decoded(teacher, theirs)))
    return found


def small_pair(directory: Any) -> tuple[Any, Any]:
    """Two small tokenizers with one ChatML template; one token more for "ab" in the first."""
    from transformers import AutoTokenizer

    from tests.support.tiny import write_tokenizer
    from tests.support.tokenizers import merging_tokenizer

    first, second = directory / "merging", directory / "bytes"
    first.mkdir()
    second.mkdir()
    merging = merging_tokenizer(first)
    write_tokenizer(second)
    (second / "config.json").write_text('{"model_type": "llama"}', encoding="utf-8")
    return merging, AutoTokenizer.from_pretrained(str(second))


def without_padding_token(tokenizer: Any) -> Any:
    """A copy that has nothing to pad with."""
    bare = copy.deepcopy(tokenizer)
    bare.pad_token = None
    return bare
