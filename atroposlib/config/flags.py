"""The command line read against the options of a command: every mistake at once, nothing abbreviated.

argparse is not used: it ends at the first mistake, takes `-1e-3` for an option, and knows no suggestions.
"""

from __future__ import annotations

import json
import re
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import TypeAdapter, ValidationError

from atroposlib.config.annotations import (
    alternatives,
    choices,
    is_optional,
    is_switch,
    sequence_item,
)
from atroposlib.config.options import ANY_NAME, SEPARATOR, Option
from atroposlib.config.suggest import did_you_mean
from atroposlib.errors import ConfigError

HELP = ("-h", "--help")
NULL = ("None", "null")
NEGATED = "no_"
TEXT_LIST = re.compile(r'\s*\[\s*["\]]')
FAMILY_NAME = re.compile(r"[A-Za-z0-9_-]+")


@dataclass
class Parsed:
    """What was typed: values by field (nested models as mappings), mistakes, and whether help is wanted."""

    values: dict[str, Any] = field(default_factory=dict)
    mistakes: list[ConfigError] = field(default_factory=list)
    help: bool = False


@dataclass(frozen=True)
class _Typed:
    """One option as typed, with the values that follow it."""

    spelled: str
    option: Option
    texts: list[str]


def parse(argv: Sequence[str], options: Mapping[str, Option]) -> Parsed:
    """Read the arguments of a command.

    Args:
        argv: Arguments after the command's name.
        options: The command's options by name.

    Returns:
        Raw values (text, or decoded JSON) that the settings class still has to validate. An option given
        twice counts as given last; a list grows with every repetition.
    """
    parsed = Parsed(help=any(word in HELP for word in argv))
    by_spelling = {_spelling(name): option for name, option in options.items()}
    lists: dict[str, list[Any]] = {}
    for typed in _split(argv, by_spelling, parsed.mistakes):
        try:
            value = _value(typed)
        except ConfigError as mistake:
            parsed.mistakes.append(mistake)
            continue
        if isinstance(value, list) and sequence_item(typed.option.field.annotation) is not None:
            value = lists.setdefault(typed.option.name, []) + value
            lists[typed.option.name] = value
        _put(parsed.values, typed.option.path, value)
    return parsed


def _spelling(name: str) -> str:
    return name.replace("-", "_")


def _put(values: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    for key in path[:-1]:
        values = values.setdefault(key, {})
    values[path[-1]] = value


def _split(
    argv: Sequence[str], options: Mapping[str, Option], mistakes: list[ConfigError]
) -> Iterable[_Typed]:
    """The typed options one by one; what is no option goes to the mistakes."""
    words = deque(argv)
    hide = False
    while words:
        word = words.popleft()
        if word in HELP:
            continue
        if not word.startswith("--") or word == "--":
            mistakes.append(_misplaced(word, options, hide=hide))
            if word.startswith("-"):
                _take(words, None)
            continue
        name, equals, text = word.removeprefix("--").partition("=")
        option, spelled = _find(name, options), f"--{name}"
        following = [text] if equals else _take(words, option)
        if option is None:
            mistakes.append(_unknown(spelled, options))
            continue
        hide = option.secret
        yield _Typed(spelled, option, following)


def _find(name: str, options: Mapping[str, Option]) -> Option | None:
    option = options.get(_spelling(name)) or _member(name, options)
    if option is None and _spelling(name).startswith(NEGATED):
        rest = name[len(NEGATED) :]
        positive = options.get(_spelling(rest)) or _member(rest, options)
        option = positive if positive and is_switch(positive.field.annotation) else None
    return option


def _member(name: str, options: Mapping[str, Option]) -> Option | None:
    """The option of a member that the user has named, whose name is kept as it is spelled."""
    steps = name.split(SEPARATOR)
    for place, step in enumerate(steps):
        template = SEPARATOR.join([*steps[:place], ANY_NAME, *steps[place + 1 :]])
        option = options.get(_spelling(template))
        if option is not None and FAMILY_NAME.fullmatch(step):
            return option.named(step)
    return None


def _take(words: deque[str], option: Option | None) -> list[str]:
    """Take the values that follow an option: one, or all for a list (and for an unknown option)."""
    several = option is None or sequence_item(option.field.annotation) is not None
    taken: list[str] = []
    while words and not words[0].startswith("--") and words[0] not in HELP:
        if taken and not several:
            break
        taken.append(words.popleft())
    return taken


def _value(typed: _Typed) -> Any:
    annotation = typed.option.field.annotation
    spelling = _spelling(typed.spelled.removeprefix("--"))
    if is_switch(annotation):
        if spelling != _spelling(typed.option.name):
            return _negation(typed)
        if not typed.texts:
            return True
    if not typed.texts:
        raise ConfigError(
            "a value is missing",
            code="usage.missing_value",
            where=typed.spelled,
            expected=typed.option.kind,
            fix=f"a value that begins with -- is written {typed.spelled}=VALUE",
        )
    text = typed.texts[0]
    if typed.texts == [text] and text in NULL and is_optional(annotation) and text not in choices(annotation):
        return None
    if sequence_item(annotation) is not None:
        return [item for each in typed.texts for item in _items(typed, each)]
    return _decoded(typed, annotation, text)


def _negation(typed: _Typed) -> bool:
    if typed.texts:
        raise ConfigError(
            "the option takes no value", where=typed.spelled, fix=f"write --{typed.option.name} VALUE"
        )
    return False


def _items(typed: _Typed, text: str) -> list[Any]:
    """The items that one word of a list option stands for: a JSON list, or the word itself."""
    item = sequence_item(typed.option.field.annotation)
    # In a list of texts `[INST]` is a text, `["a", "b"]` is JSON.
    is_json = TEXT_LIST.match(text) if item is str else text.lstrip().startswith("[")
    if is_json:
        decoded: list[Any] = _json(typed, text)
        return decoded
    return [_decoded(typed, item, text)]


def _decoded(typed: _Typed, annotation: Any, text: str) -> Any:
    """The text itself, or the JSON value it spells where the annotation wants one."""
    members = [member for member in alternatives(annotation) if member is not type(None)]
    if str in members and len(members) == 1:
        return text
    if len(members) == 1 and text.lstrip().startswith(("{", "[")):
        return _json(typed, text)
    if len(members) > 1 or Any in members:
        return _first_fitting(annotation, text)
    return text


def _first_fitting(annotation: Any, text: str) -> Any:
    """The JSON value the text spells when the annotation takes it, else the text."""
    try:
        decoded = json.loads(text)
        TypeAdapter(annotation).validate_python(decoded)
    except (ValueError, ValidationError):
        return text
    return decoded


def _json(typed: _Typed, text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise ConfigError(
            f"not JSON: {error.msg} at character {error.pos + 1}",
            code="usage.bad_value",
            where=typed.spelled,
            expected=typed.option.kind,
        ) from error


def _unknown(spelled: str, options: Mapping[str, Option]) -> ConfigError:
    name = spelled.lstrip("-")
    meant = [_as_typed(option, name) for option in options.values()]
    switches = [option.name for option in meant if is_switch(option.field.annotation)]
    known = [*(option.name for option in meant), *(f"no-{switch}" for switch in switches)]
    fix = did_you_mean(name, known, mark="--")
    if fix is None and name.startswith("no-"):
        fix = did_you_mean(name.removeprefix("no-"), known, mark="--")
    return ConfigError(
        "unknown option",
        code="usage.unknown_option",
        where=spelled,
        fix=fix or "--help lists the options",
    )


def _as_typed(option: Option, typed: str) -> Option:
    """An option of a family with the name that stands in its place in what was typed."""
    if not option.is_family:
        return option
    place = option.name.split(SEPARATOR).index(ANY_NAME)
    steps = typed.split(SEPARATOR)
    fits = place < len(steps) and FAMILY_NAME.fullmatch(steps[place]) is not None
    return option.named(steps[place]) if fits else option


def _names(options: Mapping[str, Option]) -> list[str]:
    return [option.name for option in options.values()]


def _misplaced(word: str, options: Mapping[str, Option], *, hide: bool) -> ConfigError:
    """A word that follows no option: often an option without its two dashes.

    After the value of a secret option it may be a part of the secret, so it is not shown.
    """
    name = word.lstrip("-").partition("=")[0]
    if word.startswith("-") and name and not hide:
        return _unknown(f"-{name}", options)
    return ConfigError(
        "no option takes this word",
        code="usage.unknown_option",
        where="command line",
        got=None if hide else repr(word),
        fix=(None if hide else did_you_mean(name, _names(options), mark="--")) or "options begin with --",
    )
