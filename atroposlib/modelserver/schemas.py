"""The requests, as vLLM reads them: unknown fields are ignored, null often means the default."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from atroposlib.modelserver.refusals import Refusal

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
TokenId = Annotated[int, Field(ge=0)]
StopStrings = str | Annotated[list[str], Field(max_length=4)] | None

NEUTRAL: dict[str, tuple[Any, ...]] = {
    "stream": (None, False),
    "suffix": (None,),
    "prompt_embeds": (None,),
    "use_beam_search": (None, False),
    "logit_bias": (None, {}),
    "logprob_token_ids": (None, []),
    "allowed_token_ids": (None,),
    "bad_words": (None, []),
    "frequency_penalty": (None, 0),
    "presence_penalty": (None, 0),
    "repetition_penalty": (None, 1),
    "truncate_prompt_tokens": (None,),
    "structured_outputs": (None,),
    "response_format": (None, {"type": "text"}),
    "repetition_detection": (None,),
}
"""Fields that a stock vLLM acts on and this server does not, with the values that ask for nothing."""


class ServerRequest(BaseModel):
    """What every request has: the model's name, and fields that nobody knows."""

    model_config = ConfigDict(extra="allow", protected_namespaces=())

    model: str | None = None


class SamplingRequest(ServerRequest):
    """The sampling fields that completions and chat completions share."""

    n: int | None = 1
    seed: int | None = Field(None, ge=INT64_MIN, le=INT64_MAX)
    stop: StopStrings = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    min_tokens: int = 0
    skip_special_tokens: bool = True
    prompt_logprobs: int | None = None
    return_tokens_as_token_ids: bool | None = None
    return_token_ids: bool | None = None

    @model_validator(mode="before")
    @classmethod
    def _check_logprobs(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        for name in cls._logprob_fields():
            check_logprob_count(name, data.get(name))
        if data.get("stream") and data.get("prompt_logprobs"):
            raise Refusal("`prompt_logprobs` are not available when `stream=True`.", "prompt_logprobs")
        if data.get("stream_options") and not data.get("stream"):
            raise Refusal("Stream options can only be defined when `stream=True`.", "stream_options")
        return data

    @classmethod
    def _logprob_fields(cls) -> tuple[str, ...]:
        return ("prompt_logprobs",)

    def refuse_unsupported(self) -> None:
        """Refuse what would otherwise be ignored in silence; raises Refusal."""
        for name, value in (self.model_extra or {}).items():
            if value not in NEUTRAL.get(name, (value,)):
                raise Refusal(f"`{name}` is not supported by the embedded model server.", name)


class CompletionRequest(SamplingRequest):
    """Body of POST /v1/completions."""

    prompt: list[TokenId] | list[list[TokenId]] | str | list[str] | None = None
    echo: bool | None = False
    logprobs: int | None = None
    max_tokens: int = 16
    add_special_tokens: bool = True

    @model_validator(mode="before")
    @classmethod
    def _check_prompt(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        if data.get("prompt") in (None, "") and not data.get("prompt_embeds"):
            raise Refusal("Either prompt or prompt_embeds must be provided and non-empty.", "prompt")
        if data.get("max_tokens", 0) is None:
            return {key: value for key, value in data.items() if key != "max_tokens"}
        return data

    @classmethod
    def _logprob_fields(cls) -> tuple[str, ...]:
        return ("prompt_logprobs", "logprobs")


class Message(BaseModel):
    """One message of a conversation; other keys go to the template untouched."""

    model_config = ConfigDict(extra="allow")

    role: str
    content: Any = None


class ChatRequest(SamplingRequest):
    """Body of POST /v1/chat/completions."""

    messages: list[Message]
    logprobs: bool | None = False
    top_logprobs: int | None = 0
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    add_special_tokens: bool = False
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    tools: list[dict[str, Any]] | None = None
    tool_choice: Any = None

    @model_validator(mode="before")
    @classmethod
    def _check_chat(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        if "messages" in data and data["messages"] is None:
            raise Refusal("'NoneType' object is not iterable")
        if data.get("top_logprobs") and not data.get("logprobs"):
            raise Refusal("when using `top_logprobs`, `logprobs` must be set to true.", "top_logprobs")
        check_continuation(data)
        return data

    @classmethod
    def _logprob_fields(cls) -> tuple[str, ...]:
        return ("prompt_logprobs", "top_logprobs")


class TokenizeTextRequest(ServerRequest):
    """Body of POST /tokenize for a text."""

    prompt: str
    add_special_tokens: bool = True
    return_token_strs: bool | None = False


class TokenizeChatRequest(ServerRequest):
    """Body of POST /tokenize for a conversation."""

    messages: list[Message]
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    add_special_tokens: bool = False
    return_token_strs: bool | None = False
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    tools: list[dict[str, Any]] | None = None

    @model_validator(mode="before")
    @classmethod
    def _check_chat(cls, data: Any) -> Any:
        if isinstance(data, dict):
            check_continuation(data)
        return data


class DetokenizeRequest(ServerRequest):
    """Body of POST /detokenize."""

    tokens: list[Annotated[int, Field(ge=0, le=INT64_MAX)]]


def check_logprob_count(name: str, value: Any) -> None:
    """Refuse a count of logprobs that is no number, or negative and not -1."""
    if value is None:
        return
    if not isinstance(value, int | float):
        raise Refusal(f"`{name}` must be an integer.", name, value)
    if value < 0 and value != -1:
        raise Refusal(f"`{name}` must be a positive value or -1.", name, value)


def check_continuation(data: dict[str, Any]) -> None:
    """Refuse a conversation that is to be both continued and answered."""
    if data.get("continue_final_message") and data.get("add_generation_prompt"):
        raise Refusal("Cannot set both `continue_final_message` and `add_generation_prompt` to True.")
