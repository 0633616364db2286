"""Every metric of GET /metrics, in one table. Imports nothing, so that it can be listed at once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric.

    Attributes:
        name: As it is exposed.
        kind: Prometheus's type.
        help: What it measures, with its unit.
        labels: Names of its labels.
    """

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    labels: tuple[str, ...] = ()


STORE_METRICS: tuple[Metric, ...] = (
    Metric("atropos_step", "gauge", "Step of the run."),
    Metric("atropos_queue_groups", "gauge", "Groups queued."),
    Metric("atropos_queue_sequences", "gauge", "Sequences in all queued groups."),
    Metric("atropos_queue_age_seconds", "gauge", "Age of the oldest queued group; 0 when nothing is queued."),
    Metric("atropos_queue_bytes", "gauge", "Bytes of all groups kept: queued, leased, uncommitted, dead."),
    Metric("atropos_leased_groups", "gauge", "Groups in batches that are out or due again."),
    Metric("atropos_uncommitted_groups", "gauge", "Trained groups kept until their batch is committed."),
    Metric("atropos_dead_groups", "gauge", "Groups in dead letters."),
    Metric("atropos_lease_outstanding", "gauge", "Batches that are out."),
    Metric("atropos_lease_due", "gauge", "Batches that wait to be delivered again."),
    Metric("atropos_env_connected", "gauge", "Environments that take part."),
    Metric("atropos_group_received_total", "counter", "Distinct groups accepted."),
    Metric("atropos_group_duplicate_total", "counter", "Posts of a group that had been accepted before."),
    Metric("atropos_group_trained_total", "counter", "Groups of acked and committed batches."),
    Metric("atropos_group_dropped_total", "counter", "Accepted groups that no batch will hold.", ("reason",)),
    Metric("atropos_lease_expired_total", "counter", "Leases that expired."),
)
"""Read from the store at every scrape, so they are those of the run and not of one process."""

PROCESS_METRICS: tuple[Metric, ...] = (
    Metric(
        "atropos_group_refused_total", "counter", "Posts of groups that were refused, by error.", ("code",)
    ),
    Metric("atropos_wire_bytes_total", "counter", "Bytes of groups received and sent.", ("codec", "dir")),
    Metric("atropos_trainer_wait_seconds_total", "counter", "Seconds that trainers waited for a batch."),
    Metric(
        "atropos_env_wait_seconds_total",
        "counter",
        "Seconds that environments waited for a trainer, or for room in the queue.",
    ),
    Metric(
        "atropos_batch_age_seconds", "histogram", "Age of the oldest queued group when a batch was formed."
    ),
    Metric(
        "atropos_policy_staleness_steps",
        "histogram",
        "Steps between the weights that sampled a group and its delivery.",
    ),
)
"""Counted by this process since it was started."""

METRICS = (*STORE_METRICS, *PROCESS_METRICS)
