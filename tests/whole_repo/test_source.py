"""What holds for every source file: sizes, and that error codes are told and used."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from atroposlib.errors import CODES

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "atroposlib").rglob("*.py"))
LONGEST_MODULE = 500
LONGEST_FUNCTION = 60


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_module_and_its_functions_are_small(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.count("\n") <= LONGEST_MODULE
    tree = ast.parse(text)
    long = {
        node.name: node.end_lineno - node.lineno + 1
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.end_lineno is not None
        and node.end_lineno - node.lineno + 1 > LONGEST_FUNCTION
    }
    assert not long


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_module_says_what_it_is_for(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))


def test_every_error_code_is_raised_somewhere() -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in SOURCES if path.name != "errors.py")
    defaults = re.findall(r'default_code = "([^"]+)"', (ROOT / "atroposlib/errors.py").read_text())
    unused = [code for code in CODES if f'"{code}"' not in text and code not in defaults]
    assert not unused
