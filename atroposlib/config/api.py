"""Settings of the trajectory API."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

MEBIBYTE = 1 << 20
GIBIBYTE = 1 << 30

Role = Literal["env", "trainer", "admin"]


class ApiSettings(BaseModel):
    """Where the trajectory API listens, what it keeps groups in, and its limits."""

    model_config = ConfigDict(extra="forbid")

    host: str = Field(
        "127.0.0.1", description="Address to listen on; anything but loopback is open to the network."
    )
    port: int = Field(8000, ge=0, le=65535, description="Port to listen on; 0 takes a free one.")
    store: str = Field(
        "sqlite:///atropos.sqlite3",
        description="Where groups and the run's state are kept: memory, or sqlite:///PATH.",
    )
    durability: Literal["normal", "full"] = Field(
        "normal",
        description="What an accepted group survives in SQLite: normal a kill -9, full a power cut too.",
    )
    fresh: bool = Field(False, description="Forget what the store holds before serving.")
    tokens: Path | None = Field(
        None, description="File of token hashes made by `atropos token`; then every call needs a token."
    )
    insecure: bool = Field(False, description="Listen on a public address without tokens.")
    max_queued_groups: int = Field(
        100_000, ge=1, description="Groups held at once; beyond it posts are told to come again."
    )
    max_queued_bytes: int = Field(
        4 * GIBIBYTE,
        ge=1,
        description="Bytes of groups held at once; beyond it posts are told to come again.",
    )
    max_body_bytes: int = Field(
        64 * MEBIBYTE, ge=1, description="Largest body of a post as it comes over the wire, in bytes."
    )
    max_pending_bytes: int = Field(
        1 * GIBIBYTE,
        ge=1,
        description="Bytes of all bodies that are being read and checked; beyond it posts are told to come "
        "again.",
    )
    max_connections: int = Field(
        900,
        ge=2,
        description="Open connections, fewer than the files that a process may open; beyond it requests are "
        "answered with 503.",
    )
    head_timeout_s: float = Field(
        10.0, gt=0, description="Seconds a client may take to send the head of a request."
    )
    body_idle_s: float = Field(
        30.0, gt=0, description="Seconds between two pieces of a request body; then it is answered with 408."
    )
    body_total_s: float = Field(
        120.0, gt=0, description="Seconds for a whole request body; then it is answered with 408."
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


class TokenSettings(BaseModel):
    """Make a token for the trajectory API: prints it once, keeps its hash in a file for `--tokens`."""

    model_config = ConfigDict(extra="forbid")

    role: Role = Field(
        description="What the token is for: env posts groups, trainer takes batches, admin may do all."
    )
    name: str = Field(min_length=1, max_length=64, description="Name of the token, to tell it from others.")
    file: Path = Field(Path("tokens.yaml"), description="YAML file of token hashes; made when it is missing.")
