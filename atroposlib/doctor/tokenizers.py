"""Does the teacher speak in the student's ids, and do both end a turn with the same token?"""

from __future__ import annotations

from typing import Any

from atroposlib.doctor.check import Check
from atroposlib.doctor.subject import Scoring, Subject, patiently
from atroposlib.teacher.served_tokenizer import agrees
from atroposlib.teacher.tokenizers import compare, fingerprint

TOKENIZER = "tokenizer"
SERVED = "served tokenizer"
END_OF_TURN = "end of turn"
VOCABULARY = "vocabulary"

NO_STUDENT = "no student tokenizer to compare with: give --env.tokenizer_name"
_REPLY = "Certainly."


def check_tokenizer(subject: Subject) -> list[Check]:
    """The teacher's own tokenizer against the student's: vocabulary and end of turn."""
    name, student, teacher = subject.name, subject.student, subject.tokenizer
    if student is None:
        return [Check(TOKENIZER, name, "skip", NO_STUDENT)]
    if teacher is None:
        trouble = subject.trouble or "the settings name neither tokenizer_name nor model_name"
        fix = "set tokenizer_name to a hub id in reach or a directory with tokenizer.json"
        return [Check(TOKENIZER, name, "fail", trouble, fix)]
    match = compare(student, teacher)
    facts = {
        "verdict": match.verdict,
        "overlap": match.overlap,
        "differing": match.differing,
        "fingerprint": fingerprint(teacher),
    }
    if match.verdict == "same":
        detail = (
            f"same {len(student.get_vocab()):,} tokens as the student's; fingerprint {facts['fingerprint']}"
        )
        return [Check(TOKENIZER, name, "ok", detail, facts=facts), _end_of_turn(subject)]
    detail = (
        f"refused: {match.differing:,} ids stand for other tokens than the student's, of whose tokens the "
        f"teacher has {match.overlap:.1%}"
    )
    fix = "use a teacher with the student's vocabulary, or correct tokenizer_name"
    return [Check(TOKENIZER, name, "fail", detail, fix, facts), _end_of_turn(subject)]


def _end_of_turn(subject: Subject) -> Check:
    """What a student's samples end with against what the teacher learned to end a turn with."""
    name = subject.name
    ours, theirs = subject.student.eos_token, turn_end(subject.tokenizer)
    facts = {"student": ours, "teacher": theirs}
    if ours is None or theirs is None:
        who = "student" if ours is None else "teacher"
        return Check(END_OF_TURN, name, "skip", f"the {who}'s tokenizer names no end", facts=facts)
    if ours == theirs:
        return Check(END_OF_TURN, name, "ok", f"both end with {ours!r}", facts=facts)
    return Check(
        END_OF_TURN,
        name,
        "warn",
        f"the student ends with {ours!r}, the teacher's turns with {theirs!r}, which makes replies grow",
        f"give the student's tokenizer and generation config the end token {theirs!r}",
        facts,
    )


def turn_end(tokenizer: Any) -> str | None:
    """The token that the chat template writes after a reply; the end of text where there is no template."""
    end: str | None = tokenizer.eos_token
    if not getattr(tokenizer, "chat_template", None):
        return end
    turns = [{"role": "user", "content": "question"}, {"role": "assistant", "content": _REPLY}]
    text: str = tokenizer.apply_chat_template(turns, tokenize=False)
    rest = text.rpartition(_REPLY)[2]
    ids = tokenizer.encode(rest, add_special_tokens=False)
    # Tokens that no text makes; some tokenizers give the one at the end of a turn no role.
    specials = {*tokenizer.all_special_tokens, *tokenizer.get_added_vocab()}
    tokens = tokenizer.convert_ids_to_tokens(ids)
    return next((token for token in tokens if token in specials), end)


async def check_served_tokenizer(subject: Subject) -> list[Check]:
    """Whether the server's own ids mean what the tokenizer that the settings name says."""
    tokenizer = subject.tokenizer if subject.tokenizer is not None else subject.student
    if tokenizer is None:
        return [Check(SERVED, subject.name, "skip", "no tokenizer to compare with")]
    same = await patiently(lambda: agrees(subject.session, subject.quick, tokenizer))
    if same is None:
        return [Check(SERVED, subject.name, "skip", "the server has no /tokenize")]
    if same:
        return [Check(SERVED, subject.name, "ok", "the server's ids are those of the tokenizer")]
    detail = "the server's ids stand for other texts than those of the tokenizer that the settings name"
    fix = "correct model_name or tokenizer_name of this server"
    return [Check(SERVED, subject.name, "fail", detail, fix)]


async def check_vocabulary(server: Scoring) -> list[Check]:
    """Whether the server takes the student's highest id. Raises TeacherError where it does not."""
    subject = server.subject
    if subject.student is None:
        return [Check(VOCABULARY, subject.name, "skip", NO_STUDENT)]
    highest = max(subject.student.get_vocab().values())
    ids = server.ids[:4].copy()
    ids[-2] = highest
    await server.score(ids)
    return [Check(VOCABULARY, subject.name, "ok", f"takes the student's highest id, {highest:,}")]
