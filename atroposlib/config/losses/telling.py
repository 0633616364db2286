"""A loss for people: what `atropos losses NAME` prints."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from atroposlib.config.annotations import describe
from atroposlib.config.losses.base import LossSettings
from atroposlib.config.usage import plain

WIDTH = 110
INDENT = 2


def told(settings: type[LossSettings]) -> str:
    """Summary, formula, needs, bias, use and settings of a loss."""
    about = settings.told
    parts = [f"{settings.model_fields['name'].default}: {settings.__doc__}", ""]
    parts += [*textwrap.indent(about.formula, " " * INDENT).splitlines(), ""]
    for title, text in (("needs", about.needs), ("bias", about.bias), ("use", about.use)):
        parts += _entry(title, text)
    return "\n".join([*parts, "", "settings:", *_settings(settings)])


def _settings(settings: type[LossSettings]) -> Iterator[str]:
    for name, field in settings.model_fields.items():
        if name != "name":
            kind = describe(field.annotation, field.metadata)
            text = f"{kind}, {plain(field.get_default())}: {field.description}"
            yield from _entry(name, text)


def _entry(title: str, text: str) -> list[str]:
    label = " " * INDENT + title + "  "
    return textwrap.wrap(
        label + text,
        WIDTH,
        subsequent_indent=" " * 2 * INDENT,
        break_long_words=False,
        break_on_hyphens=False,
    )
