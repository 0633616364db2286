"""The media types that groups travel under."""

from __future__ import annotations

FRAME_TYPE = "application/vnd.atropos.frame"
"""One group as a frame (:mod:`atroposlib.wire.frame`)."""

BATCH_TYPE = "application/vnd.atropos.batch"
"""Several frames (:mod:`atroposlib.wire.batch`)."""
