"""GET /metrics: counters of this process, and the store's figures read at every scrape."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, cast

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from atroposlib.api.metric_table import PROCESS_METRICS, STORE_METRICS
from atroposlib.store.protocol import RunState, StoreStats
from atroposlib.wire.posted import Format, GroupFacts

AGE_BUCKETS = (1, 3, 10, 30, 100, 300, 1000, 3000, 10_000)
STALENESS_BUCKETS = (0, 1, 2, 3, 5, 8, 16, 32, 64)


class Metrics:
    """The metrics of one API process; nothing is registered globally."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        declared = {metric.name: metric for metric in PROCESS_METRICS}

        def counter(name: str) -> Counter:
            return Counter(name, declared[name].help, declared[name].labels, registry=self.registry)

        def histogram(name: str, buckets: Sequence[float]) -> Histogram:
            return Histogram(name, declared[name].help, buckets=buckets, registry=self.registry)

        self._refused = counter("atropos_group_refused_total")
        self._bytes = counter("atropos_wire_bytes_total")
        self._waited = {
            "trainer": counter("atropos_trainer_wait_seconds_total"),
            "env": counter("atropos_env_wait_seconds_total"),
        }
        self._age = histogram("atropos_batch_age_seconds", AGE_BUCKETS)
        self._staleness = histogram("atropos_policy_staleness_steps", STALENESS_BUCKETS)

    def refuse(self, code: str) -> None:
        """A post of groups was refused with this error."""
        self._refused.labels(code).inc()

    @property
    def refused(self) -> int:
        """Posts of groups refused, whatever for."""
        (family,) = self._refused.collect()
        return int(sum(sample.value for sample in family.samples if sample.name.endswith("_total")))

    def move(self, codec: Format, direction: Literal["in", "out"], size: int) -> None:
        """Bytes of groups came in or went out."""
        self._bytes.labels(codec, direction).inc(size)

    def wait(self, who: Literal["trainer", "env"], seconds: float) -> None:
        """Somebody got at last what it had waited for."""
        self._waited[who].inc(seconds)

    def form(self, age_s: float) -> None:
        """A batch was formed when the oldest queued group was this old."""
        self._age.observe(age_s)

    def deliver(self, groups: Iterable[GroupFacts], step: int) -> None:
        """Groups were handed to a trainer at this step."""
        for group in groups:
            if group.policy_version is not None:
                self._staleness.observe(max(0, step - group.policy_version))

    def page(self, figures: Mapping[str, Any]) -> bytes:
        """The page in Prometheus's text format.

        Args:
            figures: Of :func:`store_figures`.
        """
        at_this_moment = CollectorRegistry()
        at_this_moment.register(cast(Any, _Figures(figures)))
        return generate_latest(at_this_moment) + generate_latest(self.registry)


def store_figures(stats: StoreStats, run: RunState, connected: int, now: float) -> dict[str, Any]:
    """The values of ``STORE_METRICS`` by name; of a metric with a label a mapping."""
    oldest = stats.oldest_queued_at
    return {
        "atropos_step": run.step,
        "atropos_queue_groups": stats.queued,
        "atropos_queue_sequences": stats.queued_sequences,
        "atropos_queue_age_seconds": 0.0 if oldest is None else max(0.0, now - oldest),
        "atropos_queue_bytes": stats.held_bytes,
        "atropos_leased_groups": stats.leased,
        "atropos_uncommitted_groups": stats.uncommitted,
        "atropos_dead_groups": stats.dead,
        "atropos_lease_outstanding": stats.leases,
        "atropos_lease_due": stats.due,
        "atropos_env_connected": connected,
        "atropos_group_received_total": stats.received,
        "atropos_group_duplicate_total": stats.duplicates,
        "atropos_group_trained_total": stats.trained,
        "atropos_group_dropped_total": dict(stats.dropped),
        "atropos_lease_expired_total": stats.expired,
    }


class _Figures:
    """What prometheus_client asks for the store's metrics."""

    def __init__(self, figures: Mapping[str, Any]) -> None:
        self._figures = figures

    def collect(self) -> Iterator[Metric]:
        for metric in STORE_METRICS:
            family_type = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
            family = family_type(metric.name, metric.help, labels=metric.labels)
            value = self._figures[metric.name]
            for label, number in value.items() if metric.labels else [(None, value)]:
                family.add_metric([] if label is None else [label], number)
            yield family
