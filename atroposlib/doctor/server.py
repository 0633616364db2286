"""What a server says of itself, and over which route it scores how many tokens."""

from __future__ import annotations

from dataclasses import replace

from atroposlib.doctor.check import REACHABLE, Check, failed
from atroposlib.doctor.subject import Scoring, Subject, as_ids, patiently
from atroposlib.errors import AtroposError, TeacherError, TeacherUnreachable
from atroposlib.teacher.probing import find_route
from atroposlib.teacher.protocol import Capabilities
from atroposlib.teacher.served import Served, read_served
from atroposlib.teacher.served_tokenizer import served_ids
from atroposlib.teacher.transport import TEACHER

ACCESS = "access"
MODEL = "model"
VERSION = "version"
CONTEXT = "context"
ROUTE = "route"
TOP_K = "top-k"

TEXT = " ".join(
    f"{number}. A server is asked for the scores of these words; {number * 37} of them are new to it."
    for number in range(1, 31)
)
"""Text that is scored, some 700 tokens."""

PLAIN_IDS = range(10, 200)
"""Ids that every vocabulary has, where nothing turns the text into ids."""


async def check_listing(subject: Subject) -> tuple[list[Check], Served | None]:
    """Does it answer, which version is it, and does it serve the model? None where it cannot be gone on."""
    anonymous = replace(subject.quick, model=None)
    try:
        served = await patiently(lambda: read_served(subject.session, anonymous))
    except AtroposError as error:
        refused = error.code == subject.peer.party.codes["refused"]
        return [failed(ACCESS if refused else REACHABLE, subject.name, error)], None
    model = _model(subject, served)
    version = Check(VERSION, subject.name, "ok", served.server) if served.server else None
    checks = [
        Check(REACHABLE, subject.name, "ok", subject.peer.root),
        version or Check(VERSION, subject.name, "skip", "the server does not say"),
        model,
    ]
    return checks, None if model.status == "fail" else served


def _model(subject: Subject, served: Served) -> Check:
    wanted, names = subject.peer.model, list(served.models)
    if not names:
        return Check(MODEL, subject.name, "skip", "the server lists no models")
    if wanted is None:
        return Check(MODEL, subject.name, "ok", f"{names[0]} (no model_name is set)")
    if wanted in names:
        return Check(MODEL, subject.name, "ok", wanted)
    detail = f"{wanted} is not served, but {', '.join(names)}"
    return Check(MODEL, subject.name, "fail", detail, "set model_name to a name that the server serves")


def check_context(subject: Subject, can: Capabilities, longest: int | None) -> Check:
    """Is there room for the longest sequence of a run, and for the one token that scoring samples?"""
    room = can.max_model_len
    if room is None:
        return Check(CONTEXT, subject.name, "skip", "the server does not say how long a sequence may be")
    facts = {"max_model_len": room}
    if longest is None or longest < room:
        beside = "" if longest is None else f", for sequences of {longest:,}"
        return Check(CONTEXT, subject.name, "ok", f"{room:,} tokens{beside}", facts=facts)
    return Check(
        CONTEXT,
        subject.name,
        "warn",
        f"{room:,} tokens for sequences of up to {longest:,}: the longest will not be scored",
        f"start the server with --max-model-len {longest + 1} or lower env.max_token_length",
        facts,
    )


async def find_scoring(subject: Subject) -> tuple[list[Check], Scoring | None]:
    """Which route works, and whether it gives the run's top-k; None when no route works."""
    try:
        found = await _route(subject, subject.top_k)
        return [_told(subject, found.can), _top_k(subject, found.can)], found
    except TeacherError as error:
        if isinstance(error, TeacherUnreachable) or subject.top_k <= 1:
            return [failed(ROUTE, subject.name, error)], None
    try:
        # Too large a k is refused on every route, and is another finding than no route at all.
        found = await _route(subject, 1)
    except TeacherError as error:
        return [failed(ROUTE, subject.name, error)], None
    checks = [_told(subject, found.can), await _refused_top_k(subject, found)]
    return checks, replace(found, k=min(subject.top_k, found.can.max_k or found.k))


async def _route(subject: Subject, k: int) -> Scoring:
    peer = replace(subject.peer, party=TEACHER)
    route, can = await patiently(lambda: find_route(subject.session, peer, k))
    return Scoring(subject, route, can, k, as_ids(await text_ids(subject)))


def _top_k(subject: Subject, can: Capabilities) -> Check:
    limit = "" if can.max_k is None else f"; the server gives up to {can.max_k:,}"
    facts = {"top_k": subject.top_k, "max_k": can.max_k}
    return Check(TOP_K, subject.name, "ok", f"{subject.top_k} answered{limit}", facts=facts)


async def _refused_top_k(subject: Subject, found: Scoring) -> Check:
    """What the server says to the run's top-k, which no route answered at first."""
    try:
        await found.score(found.ids[:3], k=subject.top_k)
    except AtroposError as error:
        return failed(TOP_K, subject.name, error)
    return _top_k(subject, found.can)


def _told(subject: Subject, can: Capabilities) -> Check:
    form = "binary" if can.binary else "JSON"
    extra = "; scores ids that the student names" if can.extra_ids else ""
    facts = {"route": can.route, "binary": can.binary, "start": can.start, "extra_ids": can.extra_ids}
    return Check(ROUTE, subject.name, "ok", f"{can.route}, answers {form}{extra}", facts=facts)


async def text_ids(subject: Subject) -> list[int]:
    """Ids of the text by the server's tokenizer, else by ours, else ids that every vocabulary has."""
    try:
        served = await patiently(lambda: served_ids(subject.session, subject.quick, TEXT))
    except AtroposError:
        # The check of the served tokenizer asks the same, and tells it.
        served = None
    if served is not None:
        return served
    tokenizer = subject.tokenizer if subject.tokenizer is not None else subject.student
    if tokenizer is not None:
        return list(tokenizer.encode(TEXT, add_special_tokens=False))
    return list(PLAIN_IDS)
