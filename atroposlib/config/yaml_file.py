"""YAML files that remember on which line every value stands."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from atroposlib.errors import UsageError

MERGE_TAG = "tag:yaml.org,2002:merge"


@dataclass(frozen=True)
class YamlFile:
    """The content of a YAML file.

    Attributes:
        path: The file as the user named it; None when no file was given.
        data: The top-level mapping, built as `yaml.safe_load` builds it.
    """

    path: Path | None = None
    data: dict[str, Any] = field(default_factory=dict)
    root: yaml.Node | None = field(default=None, repr=False)

    def line(self, *keys: str | int) -> int | None:
        """Line (from 1) of the value at `keys`, or of the nearest value around it when it is not there."""
        node = self.root
        found: int | None = None
        for key in keys:
            step = _child(node, key)
            if step is None:
                break
            found, node = step
        return found

    def where(self, *keys: str | int) -> str:
        """Place of the value at `keys` for an error message: `configs/x.yaml:12 env.teacher_topk`."""
        dotted = ".".join(str(key) for key in keys)
        if self.path is None:
            return dotted
        line = self.line(*keys)
        place = f"{self.path}:{line}" if line is not None else str(self.path)
        return f"{place} {dotted}".rstrip()


def _child(node: yaml.Node | None, key: str | int) -> tuple[int, yaml.Node] | None:
    """Line and node of one member of a mapping or sequence."""
    if isinstance(node, yaml.SequenceNode) and isinstance(key, int) and 0 <= key < len(node.value):
        item = node.value[key]
        return item.start_mark.line + 1, item
    if isinstance(node, yaml.MappingNode):
        # The last of equal keys counts: what a merge key (<<) brings in stands first.
        for key_node, value_node in reversed(node.value):
            if key_node.value == str(key):
                return key_node.start_mark.line + 1, value_node
    return None


class _Loader(yaml.SafeLoader):
    """The safe loader, with the place named where a value is not what its tag or its form promises."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        # The lookups of PyYAML's own constructors: a 13th month, `!!bool maybe`, `!!int ""`.
        except (ValueError, KeyError, IndexError, AttributeError) as error:
            raise yaml.constructor.ConstructorError(
                None, None, f"not a valid {node.tag.rpartition(':')[2]}: {node.value!r}", node.start_mark
            ) from error


def load_yaml(path: str | Path | None) -> YamlFile:
    """Read a YAML file; no path and an empty file both give an empty mapping.

    Raises:
        UsageError: `usage.file` when the file cannot be read; `usage.yaml`, with the line, when it is not
            YAML, names a key twice or is not a mapping.
    """
    if path is None:
        return YamlFile()
    file = Path(path)
    text = _read(file)
    try:
        # What yaml.safe_load does, with the nodes kept: they know their lines.
        loader = _Loader(text)
        root = loader.get_single_node()
        _refuse_duplicate_keys(file, root)
        data = loader.construct_document(root) if root is not None else None
    except yaml.YAMLError as error:
        raise _syntax_error(file, error) from error
    except RecursionError as error:
        raise UsageError("nested too deeply", code="usage.yaml", where=str(file)) from error
    if data is None:
        return YamlFile(file, {}, root)
    if not isinstance(data, dict):
        raise UsageError(
            "the top level must be a mapping",
            code="usage.yaml",
            where=str(file),
            got=f"a {type(data).__name__}",
            expected="`key: value` lines",
        )
    return YamlFile(file, data, root)


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8-sig")
    except FileNotFoundError as error:
        raise UsageError("no such file", code="usage.file", where=str(file)) from error
    except OSError as error:
        what = f"cannot be read: {error.strerror}"
        raise UsageError(what, code="usage.file", where=str(file)) from error
    except UnicodeDecodeError as error:
        raise UsageError("not UTF-8 text", code="usage.yaml", where=str(file)) from error


def _syntax_error(file: Path, error: yaml.YAMLError) -> UsageError:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        mark = error.problem_mark
        where = f"{file}:{mark.line + 1}:{mark.column + 1}"
        what = " ".join(part for part in (error.context, error.problem) if part)
        return UsageError(what, code="usage.yaml", where=where)
    what = getattr(error, "reason", None) or "not YAML"
    return UsageError(what, code="usage.yaml", where=str(file))


def _refuse_duplicate_keys(file: Path, root: yaml.Node | None) -> None:
    """YAML forbids a key twice, and safe_load silently keeps the last one."""
    for mapping in _mappings(root):
        first: dict[Hashable, int] = {}
        for key, _ in mapping.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag == MERGE_TAG:
                continue
            line = key.start_mark.line + 1
            if (key.tag, key.value) in first:
                raise UsageError(
                    f"key {key.value!r} is given twice",
                    code="usage.yaml",
                    where=f"{file}:{line}",
                    fix=f"it first stands on line {first[key.tag, key.value]}",
                )
            first[key.tag, key.value] = line


def _mappings(root: yaml.Node | None) -> Iterator[yaml.MappingNode]:
    """Every mapping below a node, each once however often an alias names it."""
    seen: set[int] = set()
    waiting = [root]
    while waiting:
        node = waiting.pop()
        if node is None or id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, yaml.MappingNode):
            yield node
            waiting.extend(part for pair in node.value for part in pair)
        elif isinstance(node, yaml.SequenceNode):
            waiting.extend(node.value)
