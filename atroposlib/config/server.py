"""Settings of the model servers, student and teacher: Atropos's fields and defaults."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator


class ServerBaseline(BaseModel):
    """Settings that every model server has. On its own it means local servers on ports 9004 to 9007."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=())

    timeout: int = Field(1200, description="Seconds after which a request is given up.")
    num_max_requests_at_once: int = Field(512, description="Most training requests in flight.")
    num_requests_for_eval: int = Field(64, description="Most evaluation requests in flight.")
    model_name: str = Field("default", description="Model id that the server serves.")
    rolling_buffer_length: int = Field(1000, description="Requests kept for the timing statistics.")
    server_type: Literal["openai", "trl", "sglang", "vllm"] = Field(
        "openai", description="Kind of server; openai and vllm both mean vLLM's OpenAI routes."
    )
    tokenizer_name: str = Field(
        "none", description="Tokenizer of the model: hub id or directory; none takes model_name."
    )


class APIServerConfig(ServerBaseline):
    """One model server."""

    api_key: str = Field("", description="Bearer token of the server; never printed.", repr=False)
    base_url: str | None = Field("", description="URL of the server, with or without /v1.")
    n_kwarg_is_ignored: bool = Field(False, description="Send n single requests in place of one with n.")
    health_check: bool = Field(True, description="Ask the server's /health before work is sent to it.")

    @field_validator("api_key")
    @classmethod
    def _fits_a_header(cls, value: str) -> str:
        if not value.isprintable():
            raise ValueError("the key holds a line break or another character that no header may have")
        return value


class ServerManagerConfig(BaseModel):
    """Settings of all model servers together."""

    model_config = ConfigDict(extra="forbid")

    slurm: bool = Field(False, description="Find the servers by the Slurm environment variables.")
    testing: bool = Field(False, description="Start no servers; for tests of the environment alone.")
