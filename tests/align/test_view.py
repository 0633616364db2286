"""Views of hand-made tokenizers: what the teacher reads, which tokens belong together, and what is masked."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from atroposlib.align.aligner import TokenAligner
from atroposlib.align.views.reasons import REASONS
from atroposlib.align.views.viewer import TeacherView, TeacherViewer
from atroposlib.errors import AlignError
from tests.support.tiny import CHAT_TEMPLATE
from tests.support.tokenizer_files import SIGN, added, bpe, gemma_like, write
from tests.support.tokenizers import AB, END, merging_tokenizer

START = END - 1
GEMMA = (
    "{{ bos_token }}{% for m in messages %}{{ '<start>' + m.role + '\n' + (m.content | trim) }}"
    "{{ '<end_of_turn>\n' }}{% endfor %}{% if add_generation_prompt %}<start>assistant\n{% endif %}"
)
THINKING = CHAT_TEMPLATE.replace(
    "{{ message['content'] }}",
    "{{ message['content'] if message['role'] != 'assistant' or loop.last else "
    "message['content'].split('</think>')[-1] }}",
).replace("<|im_start|>assistant\n{% endif %}", "<|im_start|>assistant\n<think>\n{% endif %}")


def student_like(directory: Path) -> Any:
    """Bytes with one token for "ab", written in ChatML."""
    return merging_tokenizer(directory)


def gemma(directory: Path, *, nfc: bool = False, start_is_special: bool = True) -> Any:
    """Characters with "ab" and " a" in one token, "ba" too, written in a template like Gemma's that trims."""
    file = copy.deepcopy(gemma_like())
    pieces = [*file["model"]["vocab"], "ba", "<start>"]
    merges = [[SIGN, "a"], ["b", "a"], [SIGN, SIGN]]
    file["model"] = bpe(pieces, merges, byte_fallback=True)
    file["added_tokens"] = [
        *(added(pieces.index(name), name) for name in ("<pad>", "<eos>", "<bos>", "<end_of_turn>")),
        added(pieces.index("<start>"), "<start>", special=start_is_special),
    ]
    if nfc:
        file["normalizer"] = {"type": "Sequence", "normalizers": [{"type": "NFC"}, file["normalizer"]]}
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<bos>",
        "eos_token": "<end_of_turn>",
        "chat_template": GEMMA,
    }
    return PreTrainedTokenizerFast.from_pretrained(str(write(directory, file, config)))


class Case:
    """A student and a teacher."""

    def __init__(self, student: Any, teacher: Any) -> None:
        self.student, self.teacher = student, teacher

    def viewer(self, **settings: Any) -> TeacherViewer:
        return TeacherViewer(self.student, self.teacher, **settings)

    def shown(self, view: TeacherView) -> str:
        """What the teacher reads, with the names of markers."""
        text: str = self.teacher.decode(
            view.ids, skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        return text


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    """A student in ChatML, and a teacher like Gemma."""
    directory = tmp_path_factory.mktemp("case")
    for name in ("student", "teacher"):
        (directory / name).mkdir()
    return Case(student_like(directory / "student"), gemma(directory / "teacher"))


@pytest.fixture(scope="module")
def viewer(case: Case) -> TeacherViewer:
    """With the settings of none."""
    return case.viewer()


def chat(*turns: tuple[str, bytes | list[int], bool]) -> tuple[list[int], npt.NDArray[np.bool_]]:
    """Ids and kept positions of turns in ChatML: role, ids, and whether these and the end are trained."""
    ids: list[int] = []
    kept: list[bool] = []
    for role, content, trained in turns:
        head = [START, *role.encode(), ord("\n")]
        body = [*content, END]
        ids += [*head, *body, ord("\n")]
        kept += [False] * len(head) + [trained] * len(body) + [False]
    return ids[:-1], np.array(kept[:-1])


def student_bytes(number: int) -> bytes:
    """What an id of the student stands for."""
    return {AB: b"ab", END: b"\0end"}.get(number) or bytes((number,))


def teacher_bytes(piece: str) -> bytes:
    """What a piece of the teacher's vocabulary stands for."""
    if piece == "<end_of_turn>":
        return b"\0end"
    return bytes((int(piece[3:5], 16),)) if piece.startswith("<0x") else piece.replace(SIGN, " ").encode()


def joined(parts: Sequence[bytes], chunk_ids: npt.NDArray[np.int32]) -> list[bytes]:
    """The bytes of each chunk."""
    chunks = [b""] * (max(chunk_ids.tolist(), default=-1) + 1)
    for part, chunk in zip(parts, chunk_ids.tolist(), strict=True):
        if chunk >= 0:
            chunks[chunk] += part
    return chunks


def paired(view: TeacherView, ids: Sequence[int]) -> list[bytes]:
    """The bytes of each chunk on the student's side."""
    in_chunks = view.student_chunk_id >= 0
    return joined(
        [student_bytes(ids[at]) for at in np.flatnonzero(in_chunks)], view.student_chunk_id[in_chunks]
    )


def check(view: TeacherView, case: Case, ids: Sequence[int], kept: npt.NDArray[np.bool_]) -> None:
    """What holds of every view."""
    ours = paired(view, ids)
    pieces = case.teacher.convert_ids_to_tokens(view.ids.tolist())
    assert ours == joined([teacher_bytes(piece) for piece in pieces], view.teacher_chunk_id)
    assert all(ours)
    assert not (view.student_chunk_id[~kept] >= 0).any()
    assert kept.sum() == (view.student_chunk_id >= 0).sum() + sum(view.masked.values())
    assert set(view.masked) <= set(REASONS)
    assert (view.ids.dtype, view.student_chunk_id.dtype, view.teacher_chunk_id.dtype) == (
        np.dtype("int32"),
    ) * 3


def test_the_answer_stands_in_the_teachers_template(viewer: TeacherViewer, case: Case) -> None:
    ids, kept = chat(("user", b" hi ", False), ("assistant", b"b ab", True))
    view = viewer.view(ids, kept)
    check(view, case, ids, kept)
    assert case.shown(view) == "<bos><start>user\nhi<end_of_turn>\n<start>assistant\nb ab<end_of_turn>"
    assert not view.masked
    # The student has one token for "ab" only where it was written so; here each byte is one.
    assert paired(view, ids) == [b"b", b" a", b"b", b"\0end"]


def test_all_answers_are_aligned(viewer: TeacherViewer, case: Case) -> None:
    ids, kept = chat(
        ("user", b"1", False),
        ("assistant", b"one", True),
        ("user", b"2", False),
        ("assistant", b"two", False),
        ("user", b"3", False),
        ("assistant", b"three", True),
    )
    view = viewer.view(ids, kept)
    check(view, case, ids, kept)
    assert not view.masked
    assert case.shown(view).count("two") == 1
    assert b"".join(paired(view, ids)) == b"one\0endthree\0end"


def test_an_answer_is_not_trimmed(viewer: TeacherViewer, case: Case) -> None:
    ids, kept = chat(("user", b"1", False), ("assistant", b"\n one\n\n", True))
    view = viewer.view(ids, kept)
    check(view, case, ids, kept)
    assert not view.masked
    assert case.shown(view).endswith("<start>assistant\n\n one\n\n<end_of_turn>")


def test_names_of_markers_are_text_on_both_sides(viewer: TeacherViewer, case: Case) -> None:
    ids, kept = chat(("user", b"<end_of_turn><|im_end|>", False), ("assistant", b"<|im_end|>\n<bos>", True))
    view = viewer.view(ids, kept)
    check(view, case, ids, kept)
    assert not view.masked
    markers = [number for number in view.ids.tolist() if number in case.teacher.all_special_ids]
    assert case.teacher.convert_ids_to_tokens(markers).count("<end_of_turn>") == 2
    assert case.teacher.convert_ids_to_tokens(markers).count("<bos>") == 1


@pytest.mark.parametrize("said", ["question", "answer"])
def test_markers_of_turns_are_text_in_contents_though_the_files_do_not_call_them_special(
    said: str, tmp_path: Path
) -> None:
    for name in ("student", "teacher"):
        (tmp_path / name).mkdir()
    other = Case(student_like(tmp_path / "student"), gemma(tmp_path / "teacher", start_is_special=False))
    contents = {"question": b"1", "answer": b"x"} | {said: b"ab<start>user\nb"}
    ids, kept = chat(("user", contents["question"], False), ("assistant", contents["answer"], True))
    view = other.viewer().view(ids, kept)
    check(view, other, ids, kept)
    assert not view.masked
    assert other.shown(view).count("<start>") == 3
    assert other.teacher.convert_ids_to_tokens(view.ids.tolist()).count("<start>") == 2


def test_a_word_that_is_cut_off_is_masked(viewer: TeacherViewer, case: Case) -> None:
    ids, kept = chat(("user", b"1", False), ("assistant", b"x ab", True))
    view = viewer.view(ids[:-1], kept[:-1])
    check(view, case, ids[:-1], kept[:-1])
    assert case.shown(view).endswith("<start>assistant\nx ab")
    assert view.masked == {"cut_end": 1}
    assert paired(view, ids[:-1]) == [b"x", b" a"]


def test_a_character_that_is_cut_off_is_left_out(viewer: TeacherViewer, case: Case) -> None:
    ids, kept = chat(("user", b"1", False), ("assistant", b"xyz" + "👩".encode()[:3], True))
    view = viewer.view(ids[:-1], kept[:-1])
    check(view, case, ids[:-1], kept[:-1])
    assert case.shown(view).endswith("<start>assistant\nxyz")
    assert view.masked == {"cut_end": 1, "cut_character": 3}


def test_a_character_that_the_student_ended_in_is_left_out(viewer: TeacherViewer, case: Case) -> None:
    ids, kept = chat(("user", b"1", False), ("assistant", b"xyz" + "👩".encode()[:3], True))
    view = viewer.view(ids, kept)
    check(view, case, ids, kept)
    assert case.shown(view).endswith("<start>assistant\nxyz<end_of_turn>")
    assert view.masked == {"cut_character": 3}


def test_bytes_that_are_no_characters_are_masked(viewer: TeacherViewer, case: Case) -> None:
    ids, kept = chat(("user", b"1", False), ("assistant", b"x\xffyz", True))
    view = viewer.view(ids, kept)
    check(view, case, ids, kept)
    assert view.masked == {"not_equal": 1}
    assert "x\ufffdyz<end" in case.shown(view)


def test_text_that_the_teacher_normalises_is_masked(tmp_path: Path) -> None:
    for name in ("student", "teacher"):
        (tmp_path / name).mkdir()
    lossy = Case(student_like(tmp_path / "student"), gemma(tmp_path / "teacher", nfc=True))
    ids, kept = chat(("user", b"1", False), ("assistant", "zu e\u0301 du".encode(), True))
    view = lossy.viewer().view(ids, kept)
    check(view, lossy, ids, kept)
    assert view.masked == {"not_equal": 3}
    assert "zu é du" in lossy.shown(view)


def test_a_marker_that_the_teacher_lacks_is_masked(viewer: TeacherViewer, case: Case) -> None:
    ids, kept = chat(("user", b"1", False), ("assistant", [*b"xy", START, *b"z"], True))
    view = viewer.view(ids, kept)
    check(view, case, ids, kept)
    assert view.masked == {"lone_marker": 1}
    assert "xyz<end_of_turn>" in case.shown(view)


def test_another_end_than_the_templates_is_masked(viewer: TeacherViewer, case: Case) -> None:
    ids, kept = chat(("user", b"1", False), ("assistant", b"xyz", True))
    view = viewer.view([*ids[:-1], 257], kept)
    check(view, case, [*ids[:-1], 257], kept)
    assert view.masked == {"lone_marker": 1}
    assert case.shown(view).endswith("xyz")


def test_a_chunk_that_is_trained_in_part_is_masked(viewer: TeacherViewer, case: Case) -> None:
    ids, kept = chat(("user", b"1", False), ("assistant", b"x a", True))
    # " a" is one token of the teacher.
    kept[np.flatnonzero(kept)[1]] = False
    view = viewer.view(ids, kept)
    check(view, case, ids, kept)
    assert view.masked == {"border": 1}


def test_kept_tokens_of_the_template_have_no_view(viewer: TeacherViewer, case: Case) -> None:
    ids, _ = chat(("user", b"hello", False), ("assistant", b"world", True), ("user", b"bye", False))
    kept = np.ones(len(ids), dtype=np.bool_)
    view = viewer.view(ids, kept)
    check(view, case, ids, kept)
    assert view.masked == {"no_view": len(b"?user\n\n?assistant\n\n?user\n")}
    written = b"".join(paired(view, ids))
    assert written == b"hello\0endworld\0endbye\0end"
    assert case.shown(view).endswith("world<end_of_turn>\n<start>user\nbye<end_of_turn>")


def test_a_sequence_of_which_the_teacher_reads_nothing_is_masked(viewer: TeacherViewer) -> None:
    view = viewer.view([9999, 257], np.array([True, True]))
    assert len(view.ids) == 0
    assert view.masked == {"not_equal": 1, "lone_marker": 1}


def test_an_aligner_of_loaded_tokenizers_makes_the_same_view(viewer: TeacherViewer, case: Case) -> None:
    ids, kept = chat(("user", b"1", False), ("assistant", b"x ab", True))
    view = TokenAligner(case.student, case.teacher).teacher_view(ids, kept, context="Hint.")
    expected = viewer.view(ids, kept, context="Hint.")
    assert view.ids.tolist() == expected.ids.tolist()
    assert view.teacher_chunk_id.tolist() == expected.teacher_chunk_id.tolist()


def test_nothing_kept_is_nothing_shown(viewer: TeacherViewer) -> None:
    ids, kept = chat(("user", b"1", False), ("assistant", b"xyz", False))
    view = viewer.view(ids, kept)
    assert (len(view.ids), view.masked, view.problem) == (0, Counter(), "")


@pytest.mark.parametrize("given_messages", [True, False])
def test_the_teachers_system_prompt_goes_first(given_messages: bool, case: Case) -> None:
    ids, kept = chat(("system", b"Mine.", False), ("user", b"1", False), ("assistant", b"xyz", True))
    messages = [{"role": "system", "content": "Mine."}, {"role": "user", "content": "1"}]
    view = case.viewer(system_prompt="Yours.").view(
        ids, kept, messages=messages if given_messages else None, context="Hint."
    )
    check(view, case, ids, kept)
    assert not view.masked
    assert case.shown(view).startswith(
        "<bos><start>system\nYours.\n\nHint.\n\nMine.<end_of_turn>\n<start>user\n1<"
    )


def test_a_system_prompt_can_be_the_first_message(case: Case) -> None:
    ids, kept = chat(("user", b"1", False), ("assistant", b"xyz", True))
    view = case.viewer(system_prompt="Yours.").view(ids, kept)
    check(view, case, ids, kept)
    assert case.shown(view).startswith("<bos><start>system\nYours.<end_of_turn>\n<start>user\n1<")


def test_what_messages_say_besides_reaches_the_template(case: Case) -> None:
    template = GEMMA.replace("m.role + '\n'", "m.role + (m.mood or '') + '\n'")
    ids, kept = chat(("user", b"1", False), ("assistant", b"xyz", True))
    messages = [{"role": "user", "content": "1", "mood": "!"}, {"role": "assistant", "content": "xyz"}]
    view = case.viewer(chat_template=template).view(ids, kept, messages=messages)
    check(view, case, ids, kept)
    assert "<start>user!\n1<" in case.shown(view)


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "user", "content": "other"}, {"role": "assistant", "content": "xyz"}],
        [{"role": "user", "content": "1"}, {"role": "assistant", "content": "other"}],
        [{"role": "user", "content": "xyz"}],
        [{"role": "assistant", "content": "xyz"}],
    ],
    ids=["another question", "another answer", "no question", "the answer alone"],
)
def test_messages_that_the_ids_do_not_say_are_not_believed(
    messages: list[dict[str, Any]], viewer: TeacherViewer, case: Case
) -> None:
    ids, kept = chat(("user", b"1", False), ("assistant", b"xyz", True))
    view = viewer.view(ids, kept, messages=messages)
    check(view, case, ids, kept)
    assert case.shown(view) == "<bos><start>user\n1<end_of_turn>\n<start>assistant\nxyz<end_of_turn>"


def test_of_two_fitting_answers_the_later_is_meant(viewer: TeacherViewer, case: Case) -> None:
    ids, kept = chat(
        ("user", b"1", False), ("assistant", b"4", False), ("user", b"2", False), ("assistant", b"44", True)
    )
    said = ["1", "4", "2", "44"]
    messages = [{"role": ("user", "assistant")[at % 2], "content": one} for at, one in enumerate(said)]
    view = viewer.view(ids, kept, messages=messages)
    check(view, case, ids, kept)
    assert "user\n2<end_of_turn>\n<start>assistant\n44<" in case.shown(view)


def test_a_template_that_refuses_masks_the_sequence(case: Case) -> None:
    ids, kept = chat(("user", b"1", False), ("assistant", b"xyz", True))
    view = case.viewer(chat_template="{{ raise_exception('never') }}").view(ids, kept)
    check(view, case, ids, kept)
    assert view.masked == {"no_view": 4}
    assert "never" in view.problem


def test_a_changed_message_with_the_name_of_a_marker_masks_the_sequence(case: Case) -> None:
    template = GEMMA.replace("(m.content | trim)", "(m.content | replace('sly', 'a b'))")
    ids, kept = chat(("user", b"sly <end_of_turn> 1", False), ("assistant", b"xyz", True))
    view = case.viewer(chat_template=template).view(ids, kept)
    check(view, case, ids, kept)
    assert view.masked == {"no_view": 4}
    assert "<end_of_turn>" in view.problem


def test_the_name_of_a_marker_in_a_call_masks_the_sequence(case: Case) -> None:
    template = GEMMA.replace("(m.content | trim)", "(m.content | trim) + (m.call or '')")
    ids, kept = chat(("user", b"1", False), ("assistant", b"xyz", True))
    messages = [{"role": "user", "content": "1", "call": "f('<end_of_turn>')"}]
    view = case.viewer(chat_template=template).view(ids, kept, messages=messages)
    assert view.masked == {"no_view": 4}
    assert "teacher message 0" in view.problem


def test_a_teacher_without_a_template_reads_plain_text(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(case.teacher, "chat_template", None)
    ids, kept = chat(("user", b"1", False), ("assistant", b"xyz", True))
    view = case.viewer().view(ids, kept)
    check(view, case, ids, kept)
    assert case.shown(view) == "1\n\nxyz<end_of_turn>"


def test_reasoning_that_the_template_drops_stays_in_answers(case: Case) -> None:
    ids, kept = chat(
        ("user", b"1", False),
        ("assistant", b"<think>\nwhy</think>one", True),
        ("user", b"2", False),
        ("assistant", b"<think>\nhow</think>two", True),
    )
    teacher = case.viewer(chat_template=THINKING.replace("<|im_end|>", "<end_of_turn>"))
    view = teacher.view(ids, kept)
    check(view, case, ids, kept)
    # The template opens the thought itself, so what the student wrote of that is not shown twice.
    assert view.masked == {"no_view": 2 * len("<think>\n")}
    shown = case.shown(view)
    assert shown.count("<think>\nwhy</think>one") == shown.count("<think>\nhow</think>two") == 1
    assert shown.count("<think>") == 2


def test_a_thought_that_was_begun_for_the_student_is_shown(viewer: TeacherViewer, case: Case) -> None:
    ids, kept = chat(("user", b"1", False), ("assistant", b"<think>\nwhy</think>one", True))
    kept[np.flatnonzero(kept)[: len("<think>\n")]] = False
    messages = [{"role": "user", "content": "1"}, {"role": "assistant", "content": "one"}]
    for said in (None, messages):
        view = viewer.view(ids, kept, messages=said)
        check(view, case, ids, kept)
        assert not view.masked
        assert case.shown(view).endswith("<start>assistant\n<think>\nwhy</think>one<end_of_turn>")


def test_a_thought_in_the_midst_of_an_answer_begins_nothing(viewer: TeacherViewer, case: Case) -> None:
    ids, kept = chat(("user", b"1", False), ("assistant", b"Hm. <think>why</think>one", True))
    kept[np.flatnonzero(kept)[: len("Hm. <think>")]] = False
    view = viewer.view(ids, kept)
    check(view, case, ids, kept)
    assert not view.masked
    assert case.shown(view).endswith("<start>assistant\nHm. <think>why</think>one<end_of_turn>")


def test_an_empty_thought_that_was_written_for_the_student_is_not_shown(
    viewer: TeacherViewer, case: Case
) -> None:
    thought = b"<think>\n\n</think>\n\n"
    ids, kept = chat(
        ("user", b"1", False),
        ("assistant", thought + b"one", False),
        ("user", b"2", False),
        ("assistant", thought + b"two", True),
    )
    kept[np.flatnonzero(kept)[: len(thought)]] = False
    view = viewer.view(ids, kept)
    check(view, case, ids, kept)
    assert not view.masked
    assert "think" not in case.shown(view)


def test_the_begin_of_an_answer_that_the_student_was_given_is_shown(
    viewer: TeacherViewer, case: Case
) -> None:
    ids, kept = chat(("user", b"1", False), ("assistant", b"Sure: xyz", True))
    kept[np.flatnonzero(kept)[: len("Sure: ")]] = False
    view = viewer.view(ids, kept)
    check(view, case, ids, kept)
    assert not view.masked
    assert case.shown(view).endswith("<start>assistant\nSure: xyz<end_of_turn>")


def test_a_system_message_that_messages_leave_out_is_shown(viewer: TeacherViewer, case: Case) -> None:
    ids, kept = chat(("system", b"Rhyme.", False), ("user", b"1", False), ("assistant", b"xyz", True))
    view = viewer.view(ids, kept, messages=[{"role": "user", "content": "1"}])
    check(view, case, ids, kept)
    assert case.shown(view).startswith("<bos><start>system\nRhyme.<end_of_turn>\n<start>user\n1<")


@pytest.mark.parametrize("trained", [[6, 7, 8, 9], [7], [9]], ids=["the rest", "a letter", "the end"])
def test_of_an_answer_that_is_trained_in_part_all_is_shown(
    trained: list[int], viewer: TeacherViewer, case: Case
) -> None:
    ids, kept = chat(("user", b"1", False), ("assistant", b"Sure: xyz", True))
    kept[np.delete(np.flatnonzero(kept), trained)] = False
    question = {"role": "user", "content": "1"}
    for said in (None, [question], [question, {"role": "assistant", "content": "Sure: xyz"}]):
        view = viewer.view(ids, kept, messages=said)
        check(view, case, ids, kept)
        assert not view.masked
        assert (
            case.shown(view) == "<bos><start>user\n1<end_of_turn>\n<start>assistant\nSure: xyz<end_of_turn>"
        )


def test_an_answer_without_a_word_is_its_end(viewer: TeacherViewer, case: Case) -> None:
    ids, kept = chat(("user", b"1", False), ("assistant", b"", True))
    for said in (None, [{"role": "user", "content": "1"}]):
        view = viewer.view(ids, kept, messages=said)
        check(view, case, ids, kept)
        assert not view.masked
        assert case.shown(view).endswith("<start>assistant\n<end_of_turn>")


def test_a_lone_end_says_nothing_of_turns_that_cannot_be_read(viewer: TeacherViewer, case: Case) -> None:
    """Before it there may be an answer, which messages do not hold."""
    ids = [*b"Q: 1 A: xyz", END]
    kept = np.arange(len(ids)) == len(ids) - 1
    view = viewer.view(ids, kept, messages=[{"role": "user", "content": "1"}])
    check(view, case, ids, kept)
    assert case.shown(view) == "Q: 1 A: xyz<end_of_turn>"


def test_messages_tell_turns_that_cannot_be_read(viewer: TeacherViewer, case: Case) -> None:
    ids = [*b"Q: 1 A: xyz", END]
    kept = np.arange(len(ids)) >= len(b"Q: 1 A: ")
    view = viewer.view(ids, kept, messages=[{"role": "user", "content": "1"}])
    check(view, case, ids, kept)
    assert case.shown(view) == "<bos><start>user\n1<end_of_turn>\n<start>assistant\nxyz<end_of_turn>"
    alone = viewer.view(ids, kept, messages=[{"role": "assistant", "content": "xyz"}])
    assert case.shown(alone) == "Q: 1 A: xyz<end_of_turn>"


@pytest.mark.parametrize("template", ["auto", None])
def test_half_a_surrogate_pair_masks_the_sequence(template: str | None, case: Case) -> None:
    ids, kept = chat(("user", b"1", False), ("assistant", b"xyz", True))
    view = case.viewer(chat_template=template).view(ids, kept, context="a\ud83d")
    assert view.masked == {"no_view": 4}
    assert "surrogate" in view.problem


def test_flags_of_another_length_are_refused(viewer: TeacherViewer) -> None:
    ids, kept = chat(("user", b"1", False), ("assistant", b"xyz", True))
    with pytest.raises(AlignError, match="kept") as caught:
        viewer.view(ids, kept[1:])
    assert caught.value.code == "align.sequence"


def test_as_plain_text_contents_follow_each_other(case: Case) -> None:
    ids, kept = chat(
        ("user", b"1", False), ("assistant", b"one", True), ("user", b"2", False), ("assistant", b"two", True)
    )
    view = case.viewer(chat_template=None, system_prompt="Yours.").view(ids, kept)
    check(view, case, ids, kept)
    assert case.shown(view) == "Yours.\n\n1\n\none\n\n2\n\ntwo<end_of_turn>"
    # Between plain texts there is no end of a turn.
    assert view.masked == {"lone_marker": 1}


def test_a_sequence_without_turns_is_plain_text(viewer: TeacherViewer, case: Case) -> None:
    ids = [*b"some text", END]
    kept = np.arange(len(ids)) >= 5
    view = viewer.view(ids, kept, context="Hint.")
    check(view, case, ids, kept)
    assert case.shown(view) == "Hint.\n\nsome text<end_of_turn>"
    assert not view.masked
    cut = viewer.view(ids[:-1], kept[:-1])
    check(cut, case, ids[:-1], kept[:-1])
    assert cut.masked == {"cut_end": 1}


TOKENS = st.lists(
    st.one_of(
        st.sampled_from([*b"ab  \nx", 256, 257, START, END, 9999]),
        st.integers(0, 255),
        st.sampled_from(["é", "👩‍👩", "日本", "ab", "<|im_end|>", "<bos>", "e\u0301"]).map(str.encode),
    ),
    max_size=14,
).map(lambda parts: [one for part in parts for one in (part if isinstance(part, bytes) else [part])])


@settings(deadline=None, derandomize=True)
@given(
    contents=st.lists(TOKENS, min_size=1, max_size=4),
    seed=st.integers(0, 99),
    cut=st.integers(0, 3),
    plain=st.booleans(),
)
def test_no_pair_is_wrong_whatever_was_sampled(
    contents: list[list[int]],
    seed: int,
    cut: int,
    plain: bool,
    views: Callable[[bool], tuple[TeacherViewer, Case]],
) -> None:
    viewer, case = views(plain)
    ids, kept = chat(
        *((("user", "assistant")[at % 2], content, at % 2 == 1) for at, content in enumerate(contents))
    )
    kept &= np.random.default_rng(seed).random(len(ids)) < 0.8
    length = len(ids) - cut
    view = viewer.view(ids[:length], kept[:length])
    check(view, case, ids[:length], kept[:length])
    assert not view.problem or set(view.masked) == {"no_view"}


WORDS = st.lists(
    st.sampled_from(["ab", "1", "?", "Sure:", "<think>", "</think>", "<|im_end|>", "zqxanswer1"]),
    min_size=1,
    max_size=4,
).map(" ".join)


@settings(deadline=None, derandomize=True)
@given(contents=st.lists(WORDS, min_size=2, max_size=6), data=st.data())
def test_whatever_messages_are_given_the_teacher_reads_all_that_was_said(
    contents: list[str], data: st.DataObject, viewer: TeacherViewer, case: Case
) -> None:
    roles = ["user", "assistant"] * 3
    if data.draw(st.booleans()):
        roles.insert(0, "system")
    messages = [{"role": role, "content": content} for role, content in zip(roles, contents, strict=False)]
    ids, kept = chat(
        *((one["role"], one["content"].encode(), one["role"] == "assistant") for one in messages)
    )
    kept &= np.random.default_rng(data.draw(st.integers(0, 99))).random(len(ids)) < 0.3
    begin, end = data.draw(st.integers(0, 2)), data.draw(st.integers(1, len(messages)))
    view = viewer.view(ids, kept, messages=messages[begin:end])
    check(view, case, ids, kept)
    assert not view.problem
    whole = "".join(f"<start>{one['role']}\n{one['content']}<end_of_turn>\n" for one in messages)
    assert f"<bos>{whole}".startswith(case.shown(view))


@pytest.fixture(scope="module")
def views(case: Case) -> Callable[[bool], tuple[TeacherViewer, Case]]:
    """The viewer in the teacher's template, or that of plain text."""
    made = {True: case.viewer(chat_template=None), False: case.viewer()}
    return lambda plain: (made[plain], case)
