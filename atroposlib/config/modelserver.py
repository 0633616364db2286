"""Settings of the embedded model server, ``atropos model-server``."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field


class ModelServerSettings(BaseModel):
    """Which model is served, where, and within which limits."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=())

    model: str = Field(description="Model to serve: a directory or a hub id, with safetensors weights.")
    served_model_name: str | None = Field(
        None, description="Name that clients call the model by; model as given when omitted."
    )
    host: str = Field(
        "127.0.0.1", description="Address to listen on; anything but loopback is open to the network."
    )
    port: int = Field(8000, ge=0, le=65535, description="Port to listen on; 0 takes a free one.")
    dtype: Literal["auto", "float32", "bfloat16", "float16", "float64"] = Field(
        "auto", description="Type of the weights; auto is float32 on a CPU and bfloat16 on CUDA."
    )
    device: str = Field(
        "auto",
        pattern=r"^(auto|cpu|cuda(:\d+)?)$",
        description="auto, cpu, cuda or cuda:N; auto is CUDA where there is one.",
    )
    max_logprobs: int = Field(
        20,
        ge=-1,
        description="Most logprobs a request may ask for at a position; -1 is the whole vocabulary.",
    )
    max_model_len: int | None = Field(
        None,
        ge=2,
        description="Longest prompt and completion together, in tokens; the model's own when omitted.",
    )
    max_num_seqs: int = Field(64, ge=1, description="Most sequences generated at once.")
    max_num_batched_tokens: int = Field(
        2048, ge=1, description="Most padded prompt tokens in one forward pass; a longer prompt goes alone."
    )
    max_cached_tokens: int = Field(
        65_536, ge=1, description="Most padded tokens in the key-value cache; a longer sequence goes alone."
    )
    batch_wait_ms: float = Field(
        5.0,
        ge=0,
        description="Time an idle server waits for one more request before it starts, in milliseconds.",
    )
    seed: int = Field(0, ge=0, description="Seed of the requests that carry none.")
