"""Atropos's import path of the shared types."""

from atroposlib.types import GameHistory, Item, Message, number

__all__ = ["GameHistory", "Item", "Message", "number"]
