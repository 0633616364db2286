"""Settings of the trajectory API."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field

MEBIBYTE = 1 << 20
GIBIBYTE = 1 << 30


class ApiSettings(BaseModel):
    """Where the trajectory API listens, and its limits."""

    model_config = ConfigDict(extra="forbid")

    host: str = Field(
        "127.0.0.1", description="Address to listen on; anything but loopback is open to the network."
    )
    port: int = Field(8000, ge=0, le=65535, description="Port to listen on; 0 takes a free one.")
    max_queued_groups: int = Field(
        100_000, ge=1, description="Groups held at once; beyond it posts are answered with 503."
    )
    max_queued_bytes: int = Field(
        4 * GIBIBYTE, ge=1, description="Bytes of groups held at once; beyond it posts are answered with 503."
    )
    max_body_bytes: int = Field(
        64 * MEBIBYTE, ge=1, description="Largest body of a posted group as it comes over the wire, in bytes."
    )
    max_inflated_bytes: int = Field(
        256 * MEBIBYTE, ge=1, description="Largest body of a posted group after decompression, in bytes."
    )
    env_silent_s: float = Field(
        60.0,
        gt=0,
        description="Seconds without a call after which an environment counts as gone until it calls again.",
    )
    minimum_idle_s: float = Field(
        30.0,
        gt=0,
        description="Seconds without a group after which batches no longer wait for an environment's "
        "min_batch_allocation.",
    )
    delivery_timeout_s: float = Field(
        300.0,
        gt=0,
        description="Seconds a trainer may take to read a batch; then its groups go back to the queue.",
    )
    retry_after_s: int = Field(
        2, ge=1, description="Seconds a client is told to wait when the queue is full."
    )
