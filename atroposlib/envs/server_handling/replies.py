"""What chat_completion and completion return: OpenAI's attribute names, other fields kept."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field


class _Reply(BaseModel):
    model_config = ConfigDict(extra="allow", protected_namespaces=())


class Usage(_Reply):
    """Tokens that a request cost."""

    prompt_tokens: int = 0
    completion_tokens: int | None = None
    total_tokens: int = 0


class ChatMessage(_Reply):
    """The assistant's message; ``content`` is None where the server only called tools."""

    role: str = "assistant"
    content: str | None = None
    tool_calls: list[Any] | None = None


class ChatChoice(_Reply):
    """One sampled chat answer."""

    index: int
    message: ChatMessage
    finish_reason: str | None = None


class TextChoice(_Reply):
    """One sampled continuation of a text prompt."""

    index: int
    text: str
    finish_reason: str | None = None


class ChatCompletion(_Reply):
    """Answer of ``/v1/chat/completions``, choices in the order of their index."""

    id: str = ""
    created: int = 0
    model: str = ""
    object: str = "chat.completion"
    choices: list[ChatChoice]
    usage: Usage | None = Field(default_factory=Usage)


class TextCompletion(_Reply):
    """Answer of ``/v1/completions``, choices in the order of their index."""

    id: str = ""
    created: int = 0
    model: str = ""
    object: str = "text_completion"
    choices: list[TextChoice]
    usage: Usage | None = Field(default_factory=Usage)
