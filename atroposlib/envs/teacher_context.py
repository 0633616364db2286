"""Context that only a teacher sees: its prompt is rendered anew, and the student's tokens follow verbatim.

A system prompt or a hint in the teacher's prompt moves every token of the student's sequence. The teacher
reads its own prompt and then the student's ids from the first trained position on, so its rows speak of the
student's positions, shifted by the difference of the two prompts' lengths.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from atroposlib.config.teacher import OWN_TEMPLATE, TeacherConfig
from atroposlib.config.teachers import place_of
from atroposlib.envs.teacher_reading import Part, Reading, plain_part
from atroposlib.errors import ConfigError
from atroposlib.teacher.targets import Positions

MISMATCH = "teacher_context_mismatch"
CONTEXT = "teacher_context"

Messages = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True)
class ContextRenderer:
    """Renders prompts for one teacher.

    Attributes:
        student: The student's tokenizer, whose template made the student's prompts.
        teacher: The teacher's tokenizer; both have one vocabulary.
        template: The teacher's chat template, None for plain text before the student's tokens.
        arguments: What the template is given besides the messages.
    """

    student: Any
    teacher: Any
    template: str | None
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def part(
        self,
        tokens: Sequence[int],
        mask: Sequence[int] | None,
        positions: Positions,
        messages: Messages,
        context: str,
    ) -> Part:
        """What the teacher reads of a sequence, with ``context`` in its prompt.

        Positions before the first trained one have no target: the teacher's own prompt stands there. Masked
        with ``teacher_context_mismatch`` unless ``messages`` rendered without the context are exactly the
        student's tokens before that position.
        """
        plain = plain_part(tokens, mask, positions)
        if plain.reading is None:
            return plain
        if self.template is None:
            return Part(plain.kept, self._after_text(tokens, plain.reading, context))
        trained = plain_part(tokens, mask, "completion")
        if trained.reading is None:
            return trained
        first, kept = trained.reading.first, plain.kept.copy()
        kept[:first] = False
        prompt = self._prompt(messages, list(tokens[:first]), context)
        if prompt is None:
            return Part(kept, None, MISMATCH)
        end = plain.reading.end
        return Part(kept, Reading([*prompt, *tokens[first:end]], first, end, len(prompt) - first))

    def _after_text(self, tokens: Sequence[int], plain: Reading, context: str) -> Reading:
        """Plain text before the student's tokens, behind their first one where that begins a text."""
        text = self.teacher.encode(context, add_special_tokens=False)
        bos = getattr(self.student, "bos_token_id", None)
        head = 1 if bos is not None and tokens[0] == bos else 0
        ids = [*tokens[:head], *text, *tokens[head : plain.end]]
        return Reading(ids, plain.first, plain.end, len(text))

    def _prompt(self, messages: Messages, student_ids: list[int], context: str) -> list[int] | None:
        """The teacher's prompt; None where the messages are not what the student's ids say."""
        for prompt in _prompts(messages):
            if _rendered(self.student, prompt, {}) == student_ids:
                arguments = {"chat_template": self.template, **self.arguments}
                return _rendered(self.teacher, _with_system(prompt, context), arguments)
        return None


def _prompts(messages: Messages) -> Iterator[list[dict[str, Any]]]:
    """The conversation up to each of its replies, and all of it: what a first reply may be an answer to."""
    ends = [index for index, message in enumerate(messages) if message.get("role") == "assistant"]
    for end in (*ends, len(messages)):
        if end:
            yield [dict(message) for message in messages[:end]]


def _with_system(messages: list[dict[str, Any]], context: str) -> list[dict[str, Any]]:
    """The messages with ``context`` before what their system prompt says."""
    if messages[0].get("role") != "system":
        return [{"role": "system", "content": context}, *messages]
    own = messages[0]
    return [{**own, "content": f"{context}\n\n{own.get('content') or ''}".rstrip()}, *messages[1:]]


def _rendered(
    tokenizer: Any, messages: list[dict[str, Any]], arguments: Mapping[str, Any]
) -> list[int] | None:
    """Ids of a prompt as the template writes it; None where there is none, or it refuses the messages."""
    from jinja2 import TemplateError

    if "chat_template" not in arguments and getattr(tokenizer, "chat_template", None) is None:
        return None
    try:
        text = tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True, **arguments
        )
    except (TemplateError, TypeError, ValueError):
        # What a template raises for messages it was not written for.
        return None
    # The template has written the special tokens already.
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False)
    return ids


def context_of(config: TeacherConfig, group: Mapping[str, Any], index: int) -> str:
    """What only this teacher sees of sequence ``index``; empty for nothing.

    Its ``system_prompt``, then ``teacher_context`` of the group's overrides, then that of the sequence's.

    Raises:
        ConfigError: A ``teacher_context`` that is no text.
    """
    own = group.get("overrides") or ()
    members = [group.get("group_overrides") or {}, (own[index] if index < len(own) else None) or {}]
    texts = [config.system_prompt, *(member.get(CONTEXT) for member in members)]
    for text in texts:
        if text is not None and not isinstance(text, str):
            raise ConfigError(f"{CONTEXT} must be text", where="overrides", got=type(text).__name__)
    return "\n\n".join(text for text in texts if text)


def template_of(name: str, config: TeacherConfig, tokenizer: Any) -> str | None:
    """The teacher's chat template as text; None when its context is plain text before the student's tokens.

    Raises:
        ConfigError: The file that the settings name cannot be read.
    """
    if config.chat_template == OWN_TEMPLATE:
        own = getattr(tokenizer, "chat_template", None)
        return own if isinstance(own, str) else None
    if config.chat_template is None:
        return None
    try:
        return Path(config.chat_template).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            "the teacher's chat template cannot be read",
            code="usage.file",
            where=f"{place_of(name)}.chat_template",
            got=f"{config.chat_template}: {error}",
            expected="a file, auto or null",
        ) from error
