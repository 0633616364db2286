"""The tokenizers of an environment's teachers beside the student's, and what is made of each pair."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from atroposlib.config.server import APIServerConfig
from atroposlib.config.teacher import OWN_TEMPLATE, TOOLS, TeacherConfig
from atroposlib.config.teachers import called, place_of
from atroposlib.envs.teacher_context import template_of
from atroposlib.envs.teacher_exact import exact_ids
from atroposlib.envs.teacher_loading import read_as_written, served_tokenizer, tokenizer_name, unloadable
from atroposlib.errors import ConfigError, TeacherError
from atroposlib.teacher.tokenizers import compare, fingerprint
from atroposlib.teacher.transport import TEACHER, open_session, peer_of

if TYPE_CHECKING:
    from atroposlib.align.views.viewer import TeacherViewer


@dataclass(frozen=True, slots=True)
class Kin:
    """A teacher's tokenizer beside the student's.

    Attributes:
        tokenizer: The teacher's; the student's own object where both have one name.
        same: Whether every id says the same to both, so that positions are one to one.
        fingerprint: Of the teacher's; empty where it is the student's.
        overlap: Share of the student's tokens that the teacher's vocabulary has too.
    """

    tokenizer: Any
    same: bool
    fingerprint: str = ""
    overlap: float = 1.0


class TeacherTokenizers:
    """The tokenizers of all teachers that are compared with the student's.

    A teacher's tokenizer is that of ``tokenizer_name``, else that of ``model_name``, else what its server
    hands out. The last can only be asked for once the servers are there: :meth:`complete` does it.

    Args:
        student: The student's tokenizer.
        configs: The teachers' settings by name.

    Raises:
        ConfigError: A tokenizer that ``tokenizer_name`` names cannot be loaded, or cannot be aligned.
    """

    def __init__(self, student: Any, configs: Mapping[str, TeacherConfig]) -> None:
        self._student = student
        self._configs = configs
        self._viewers: dict[str, TeacherViewer] = {}
        self._exact_ids: dict[str, NDArray[np.int32]] = {}
        self._turn = asyncio.Lock()
        named = {name: _named(student, name, config) for name, config in configs.items()}
        self._kin = {name: kin for name, kin in named.items() if kin is not None}

    def of(self, name: str) -> Kin | None:
        """The tokenizer of a teacher; None while it is not known, or where nobody compares it."""
        return self._kin.get(name)

    def fingerprint(self, name: str, students: str) -> str:
        """Of a teacher's tokenizer, empty while it is not known.

        ``students`` where it says what the student's says, and where nobody compares it.
        """
        if name not in self._configs:
            return students
        kin = self._kin.get(name)
        return "" if kin is None else students if kin.same else kin.fingerprint

    async def complete(self, name: str) -> None:
        """Ask a teacher's server for its tokenizer where the settings do not tell it.

        Raises:
            TeacherError: The server does not answer, or refuses.
            ConfigError: It hands out none, or one that cannot be aligned.
        """
        async with self._turn:
            if name in self._kin or name not in self._configs:
                return
            tokenizer = await _served(name, self._configs[name].servers())
            where = f"{place_of(name)}.tokenizer_name"
            self._kin[name] = await asyncio.to_thread(_related, self._student, tokenizer, where, called(name))

    async def viewer(self, name: str) -> TeacherViewer:
        """What writes the student's sequences in a teacher's tokens; made once."""
        async with self._turn:
            if name not in self._viewers:
                self._viewers[name] = await asyncio.to_thread(self._make_viewer, name)
        return self._viewers[name]

    def _make_viewer(self, name: str) -> TeacherViewer:
        from atroposlib.align.views.viewer import TeacherViewer

        config, theirs = self._configs[name], self._kin[name].tokenizer
        own = config.chat_template == OWN_TEMPLATE and getattr(theirs, "chat_template", None)
        return TeacherViewer(
            self._student,
            theirs,
            chat_template=OWN_TEMPLATE if own else template_of(name, config, theirs),
            # The viewer is given the tools with each sequence.
            template_arguments={
                name: value for name, value in config.chat_template_kwargs.items() if name != TOOLS
            },
        )

    async def exact_ids(self, name: str) -> NDArray[np.int32]:
        """:func:`atroposlib.envs.teacher_exact.exact_ids` of the student and a teacher; made once."""
        async with self._turn:
            if name not in self._exact_ids:
                theirs = self._kin[name].tokenizer
                self._exact_ids[name] = await asyncio.to_thread(exact_ids, self._student, theirs)
        return self._exact_ids[name]


def _named(student: Any, name: str, config: TeacherConfig) -> Kin | None:
    """The tokenizer that a teacher's settings name; None where only its server can tell."""
    where = f"{place_of(name)}.tokenizer_name"
    found: Kin | None = None
    for server in {tokenizer_name(server): server for server in config.servers()}.values():
        tokenizer = _load(student, server, where)
        if tokenizer is None:
            continue
        kin = _related(student, tokenizer, where, tokenizer_name(server))
        if found is not None and compare(found.tokenizer, kin.tokenizer).verdict != "same":
            raise ConfigError(
                "the servers of one teacher have different tokenizers",
                where=where,
                got=tokenizer_name(server),
                fix="name them as several teachers",
            )
        found = found or kin
    return found


def _load(student: Any, server: APIServerConfig, where: str) -> Any:
    """The tokenizer that a server's settings name; None where its model's name names none."""
    wanted = tokenizer_name(server)
    if wanted == getattr(student, "name_or_path", None):
        return student
    if wanted in ("", "default"):
        return None
    try:
        return read_as_written(wanted)
    except (OSError, ValueError) as error:
        if wanted != server.tokenizer_name:
            # A model may be served under any name; its server knows the tokenizer.
            return None
        raise unloadable(where, wanted, error) from error


async def _served(name: str, servers: Sequence[APIServerConfig]) -> Any:
    """The tokenizer that one of a teacher's servers hands out; one that is away leaves it to the next."""
    troubles: list[TeacherError] = []
    async with open_session() as session:
        for server in servers:
            try:
                tokenizer = await served_tokenizer(session, peer_of(server, TEACHER))
            except TeacherError as error:
                troubles.append(error)
                continue
            if tokenizer is not None:
                return tokenizer
    if troubles:
        raise troubles[0]
    raise ConfigError(
        f"nobody tells which tokenizer {called(name)} has",
        where=f"{place_of(name)}.tokenizer_name",
        got=f"model_name {servers[0].model_name!r} names none in reach, and its servers hand out none",
        fix="set tokenizer_name to a hub id in reach or a directory with tokenizer.json",
    )


def _related(student: Any, tokenizer: Any, where: str, named: str) -> Kin:
    """How a teacher's tokenizer stands to the student's; one object is not compared with itself."""
    if tokenizer is student:
        return Kin(tokenizer, same=True)
    match = compare(student, tokenizer)
    if match.verdict == "refused":
        raise ConfigError(
            "the teacher's tokenizer is not the student's, and the two cannot be aligned",
            code="align.unsupported",
            where=where,
            got=f"{named}: {match.reason}",
            expected="fast tokenizers (tokenizer.json), or one vocabulary",
        )
    same = match.verdict == "same"
    return Kin(tokenizer, same, "" if same else fingerprint(tokenizer), match.overlap)


def require_same(student: Any, tokenizer: Any, where: str, named: str) -> None:
    """Refuse a teacher whose ids do not say what the student's say.

    Raises:
        ConfigError: They do not.
    """
    match = compare(student, tokenizer)
    if match.verdict != "same":
        name = getattr(student, "name_or_path", None) or type(student).__name__
        raise ConfigError(
            "Cross-tokenizer distillation is not supported: the vocabularies differ",
            where=where,
            got=f"{named}: {match.reason}",
            expected=f"the vocabulary of {name}",
        )
