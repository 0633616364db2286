"""Exceptions in one line for the log, whoever raised them."""

from __future__ import annotations

from atroposlib.errors import AtroposError


def one_line(error: BaseException) -> str:
    """Our own errors as they tell themselves, others with their type."""
    return str(error) if isinstance(error, AtroposError) else f"{type(error).__name__}: {error}"


def kind_of(error: BaseException) -> str:
    """What sort of failure it is: the error's code, or its type."""
    return error.code if isinstance(error, AtroposError) else type(error).__name__


def first_line(error: BaseException) -> str:
    """The first line of what a library's error says, or its type when it says nothing."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]
