"""Does the teacher speak in the student's ids, and do both end a turn with the same token?"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from atroposlib.align.views.templates import write
from atroposlib.doctor.alignable import are_paired, covered
from atroposlib.doctor.check import Check
from atroposlib.doctor.subject import Scoring, Subject, patiently
from atroposlib.envs.teacher_loading import served_tokenizer
from atroposlib.errors import AlignError, AtroposError
from atroposlib.teacher.served_tokenizer import agrees
from atroposlib.teacher.tokenizers import TokenizerMatch, compare, fingerprint

TOKENIZER = "tokenizer"
SERVED = "served tokenizer"
END_OF_TURN = "end of turn"
VOCABULARY = "vocabulary"

ALIGNABLE = "alignable"
LEAST_COVERAGE = 0.99
"""Share of bytes in chunks of both below which something of the two tokenizers is worth a look."""

OTHER_TEACHER = "use a teacher with the student's tokenizer, or correct tokenizer_name"
NO_STUDENT = "no student tokenizer to compare with: give --env.tokenizer_name"
_REPLY = "Certainly."


async def with_served_tokenizer(subject: Subject) -> Subject:
    """A teacher's server with the tokenizer that it hands out, where the settings name none that loads."""
    named = subject.config.tokenizer_name not in ("", "none")
    if subject.student is None or subject.tokenizer is not None or named:
        return subject
    try:
        tokenizer = await served_tokenizer(subject.session, subject.peer)
    except AtroposError as error:
        return replace(subject, trouble=f"{subject.trouble or 'no tokenizer is named'}, and {error}")
    return subject if tokenizer is None else replace(subject, tokenizer=tokenizer, trouble="")


def check_tokenizer(subject: Subject) -> list[Check]:
    """The teacher's own tokenizer against the student's: what the ids say, and the end of turn."""
    name, student, teacher = subject.name, subject.student, subject.tokenizer
    if student is None:
        return [Check(TOKENIZER, name, "skip", NO_STUDENT)]
    if teacher is None:
        trouble = subject.trouble or "the settings name neither tokenizer_name nor model_name"
        fix = "set tokenizer_name to a hub id in reach or a directory with tokenizer.json"
        return [Check(TOKENIZER, name, "fail", trouble, fix)]
    match = compare(student, teacher)
    verdict = match.verdict if subject.align or match.verdict == "same" else "refused"
    facts = {
        "verdict": verdict,
        "overlap": match.overlap,
        "differing": match.differing,
        "fingerprint": fingerprint(teacher),
    }
    if verdict == "same":
        detail = (
            f"same {len(student.get_vocab()):,} tokens as the student's; fingerprint {facts['fingerprint']}"
        )
        found = Check(TOKENIZER, name, "ok", detail, facts=facts)
    elif verdict == ALIGNABLE:
        found = _alignable(subject, facts)
    else:
        found = _refused(name, match, facts)
    return [found, _end_of_turn(subject, aligned=verdict == ALIGNABLE)]


def _alignable(subject: Subject, facts: dict[str, Any]) -> Check:
    """How much of a text the two have in common, token by token, where each reads it in its own ids."""
    facts["coverage"] = coverage = covered(subject.student, subject.tokenizer)
    detail = (
        f"another tokenizer, with {facts['overlap']:.1%} of the student's tokens; alignable: {coverage:.1%} "
        "of a text's bytes are in chunks of both"
    )
    if coverage >= LEAST_COVERAGE:
        return Check(TOKENIZER, subject.name, "ok", detail, facts=facts)
    fix = "one of them changes text (such as NFC or NFKC), and what is changed is masked"
    return Check(TOKENIZER, subject.name, "warn", detail, fix, facts)


def _refused(name: str, match: TokenizerMatch, facts: dict[str, Any]) -> Check:
    detail = (
        f"refused: {match.differing:,} ids stand for other tokens than the student's, of whose tokens the "
        f"teacher has {match.overlap:.1%}"
    )
    if match.verdict == "refused":
        return Check(TOKENIZER, name, "fail", f"{detail}; {match.reason}", OTHER_TEACHER, facts)
    fix = f"set env.alignment to auto, or {OTHER_TEACHER}"
    return Check(TOKENIZER, name, "fail", detail, fix, facts)


def _end_of_turn(subject: Subject, *, aligned: bool) -> Check:
    """What a student's samples end with against what the teacher learned to end a turn with."""
    name = subject.name
    ours, theirs = subject.student.eos_token, turn_end(subject.tokenizer)
    facts = {"student": ours, "teacher": theirs}
    if ours is None or theirs is None:
        who = "student" if ours is None else "teacher"
        return Check(END_OF_TURN, name, "skip", f"the {who}'s tokenizer names no end", facts=facts)
    if ours == theirs and not aligned:
        return Check(END_OF_TURN, name, "ok", f"both end with {ours!r}", facts=facts)
    if aligned and are_paired(subject.student, ours, subject.tokenizer, theirs):
        return Check(END_OF_TURN, name, "ok", f"{ours!r} and {theirs!r} are aligned", facts=facts)
    return Check(
        END_OF_TURN,
        name,
        "warn",
        f"the student ends with {ours!r}, the teacher's turns with {theirs!r}, which makes replies grow",
        f"give the student's tokenizer and generation config the end token {theirs!r}"
        if not aligned
        else "the end of a reply is masked: give the student's tokenizer the end token of its turns",
        facts,
    )


def turn_end(tokenizer: Any) -> str | None:
    """The token that the chat template writes after a reply; the end of text where there is no template."""
    end: str | None = tokenizer.eos_token
    if not getattr(tokenizer, "chat_template", None):
        return end
    turns = [{"role": "user", "content": "question"}, {"role": "assistant", "content": _REPLY}]
    try:
        text = write(tokenizer, turns, None, "teacher")
    except AlignError:
        # It writes no such turns, so it tells no end of one.
        return end
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
    if subject.student is None or subject.other:
        why = "it is asked in its own ids" if subject.other else NO_STUDENT
        return [Check(VOCABULARY, subject.name, "skip", why)]
    highest = max(subject.student.get_vocab().values())
    ids = server.ids[:4].copy()
    ids[-2] = highest
    await server.score(ids)
    return [Check(VOCABULARY, subject.name, "ok", f"takes the student's highest id, {highest:,}")]
