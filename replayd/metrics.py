"""Metrics: a bulletin in prometheus_client's families, for its exposition.

Owns their names, which dashboards and alerts rely on. Labels are tables, sides and terms, never peers, so there are as
many series as the configuration says. Seconds and bytes, as Prometheus has it; counters begin anew where a table is
reset. A metric of which the report has nothing is there without a value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from platform import python_version
from typing import Any

import zmq
from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeHistogramMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from replayd import __version__
from replayd.board import Board, Bulletin
from replayd.rendered import Rendered

Report = Mapping[str, Any]
Family = type[GaugeMetricFamily] | type[CounterMetricFamily]
Plain = tuple[Family, str, str, str]
"""Kind, name without `_total`, help, and where the value stands in the report or in a table's part of it."""

OF_TABLES: Sequence[Plain] = (
    (GaugeMetricFamily, "replayd_table_items", "Items in the table.", "size"),
    (GaugeMetricFamily, "replayd_table_max_items", "Most items the table may have.", "max_size"),
    (GaugeMetricFamily, "replayd_table_bytes", "Payload that items of the table show, each chunk once.", "bytes"),
    (
        GaugeMetricFamily,
        "replayd_table_full_bytes",
        "What replayd_table_held_bytes will be when the table is full of items like those that came lately.",
        "bytes_when_full",
    ),
    (
        GaugeMetricFamily,
        "replayd_table_held_bytes",
        "What counts against its max_bytes: replayd_table_bytes and a share for each item.",
        "held_bytes",
    ),
    (GaugeMetricFamily, "replayd_table_max_bytes", "Most the table may hold; no value: unlimited.", "max_bytes"),
    (GaugeMetricFamily, "replayd_table_episodes", "Episodes of which the table shows something.", "episodes"),
    (
        GaugeMetricFamily,
        "replayd_table_newest_policy_version",
        "Newest policy version that came into the table; no value: none is said.",
        "newest_policy_version",
    ),
    (CounterMetricFamily, "replayd_table_inserts", "Items inserted.", "limiter.inserts"),
    (CounterMetricFamily, "replayd_table_samples", "Items drawn.", "limiter.samples"),
    (CounterMetricFamily, "replayd_table_deletes", "Items that left.", "limiter.deletes"),
    (CounterMetricFamily, "replayd_table_unique_samples", "Items drawn at least once.", "unique_samples"),
    (CounterMetricFamily, "replayd_table_evictions", "Items that the remover took.", "evictions"),
    (
        CounterMetricFamily,
        "replayd_table_evicted_unsampled",
        "Items that the remover took and nobody had ever drawn: experience wasted.",
        "evicted_unsampled",
    ),
    (CounterMetricFamily, "replayd_table_extension_faults", "Faults of the table's extensions.", "extension_faults"),
    (GaugeMetricFamily, "replayd_limiter_cursor", "inserts * samples_per_insert - samples.", "limiter.cursor"),
    (
        GaugeMetricFamily,
        "replayd_limiter_min_diff",
        "Samples wait at this cursor; no value: unlimited.",
        "limiter.min_diff",
    ),
    (
        GaugeMetricFamily,
        "replayd_limiter_max_diff",
        "Inserts wait at this cursor; no value: unlimited.",
        "limiter.max_diff",
    ),
    (
        GaugeMetricFamily,
        "replayd_limiter_samples_per_insert",
        "Samples per insert that are aimed at.",
        "limiter.samples_per_insert",
    ),
    (
        GaugeMetricFamily,
        "replayd_limiter_min_size_to_sample",
        "Items from which on samples pass.",
        "limiter.min_size_to_sample",
    ),
)

OF_THE_SERVER: Sequence[Plain] = (
    (GaugeMetricFamily, "replayd_uptime_seconds", "Time since the start, by the newest bulletin.", "uptime_s"),
    (GaugeMetricFamily, "replayd_chunks", "Chunks held.", "chunks.count"),
    (GaugeMetricFamily, "replayd_chunk_bytes", "Payload of the chunks held.", "chunks.bytes"),
    (
        GaugeMetricFamily,
        "replayd_orphan_bytes",
        "Payload of chunks in no item yet, held for their writers.",
        "chunks.orphan_bytes",
    ),
    (CounterMetricFamily, "replayd_chunks_added", "Chunks received.", "chunks.added"),
    (CounterMetricFamily, "replayd_chunk_bytes_added", "Payload of the chunks received.", "chunks.bytes_added"),
    # Of its own: ProcessCollector says nothing where /proc/stat is hidden, as under ProcSubset=pid of the unit.
    (
        GaugeMetricFamily,
        "replayd_resident_memory_bytes",
        "Memory of the process that is in RAM, by the newest bulletin.",
        "memory.resident_bytes",
    ),
    (
        GaugeMetricFamily,
        "replayd_full_memory_bytes",
        "What replayd_resident_memory_bytes will be when all tables are full of items like those that came lately.",
        "memory.bytes_when_full",
    ),
    (
        GaugeMetricFamily,
        "replayd_memory_limit_bytes",
        "Memory that the process may have, of the machine or its control group.",
        "memory.limit_bytes",
    ),
    (
        GaugeMetricFamily,
        "replayd_held_bytes",
        "What counts against the server's max_bytes: payload that items show, and a share for each item.",
        "memory.held_bytes",
    ),
    (GaugeMetricFamily, "replayd_max_bytes", "Most the server may hold; no value: unlimited.", "memory.max_bytes"),
    (
        GaugeMetricFamily,
        "replayd_transit_bytes",
        "Payload that no item shows: of open writers, and of inserts that wait.",
        "memory.transit_bytes",
    ),
    (GaugeMetricFamily, "replayd_streams", "Open streams: writers.", "streams.open"),
    (CounterMetricFamily, "replayd_streams_expired", "Streams whose lease ran out.", "streams.expired"),
    (GaugeMetricFamily, "replayd_leased_bytes", "Payload that writers keep for items to come.", "leases.bytes"),
    (
        GaugeMetricFamily,
        "replayd_max_leased_bytes",
        "Most of it that all may keep, but for those below their share.",
        "leases.max_bytes",
    ),
    (
        CounterMetricFamily,
        "replayd_leases_refused",
        "Inserts refused, pushed ones included, since writers keep as much as they may.",
        "leases.refused",
    ),
    (GaugeMetricFamily, "replayd_connections", "Open connections.", "peers.connected"),
    (GaugeMetricFamily, "replayd_peers_waiting", "Peers with unanswered requests.", "peers.waiting"),
    (GaugeMetricFamily, "replayd_unread_bytes", "Payload of replies that peers have not read.", "peers.unread_bytes"),
    (
        GaugeMetricFamily,
        "replayd_held_samples",
        "Samples that wait until their peer has read earlier replies.",
        "peers.held_samples",
    ),
    (CounterMetricFamily, "replayd_requests", "Requests that could be read.", "counters.requests"),
    (CounterMetricFamily, "replayd_requests_refused", "Requests answered with an error.", "counters.refused"),
    (CounterMetricFamily, "replayd_unreadable", "Messages that could not be read.", "counters.unreadable"),
    (CounterMetricFamily, "replayd_pushes_refused", "Pushed messages refused.", "counters.pushes_refused"),
    (CounterMetricFamily, "replayd_push_gaps", "Pushed messages before which others were lost.", "counters.push_gaps"),
    (CounterMetricFamily, "replayd_duplicates", "Inserts that had been accepted before.", "counters.duplicates"),
    (CounterMetricFamily, "replayd_priority_updates", "Priorities set.", "counters.priority_updates"),
    (
        CounterMetricFamily,
        "replayd_replies_dropped",
        "Replies that a peer's full queue did not take: should stay 0.",
        "counters.replies_dropped",
    ),
    (
        CounterMetricFamily,
        "replayd_connections_refused",
        "Connections whose key was not known, or for another server.",
        "counters.connections_refused",
    ),
    (
        CounterMetricFamily,
        "replayd_handshakes_abandoned",
        "Connections whose peer hung up before it was let in.",
        "counters.handshakes_abandoned",
    ),
    (
        CounterMetricFamily,
        "replayd_replies_to_the_gone",
        "Replies whose peer had disconnected.",
        "counters.replies_to_the_gone",
    ),
    (
        GaugeMetricFamily,
        "replayd_loop_slowest_turn_seconds",
        "Longest turn of the loop of the last 10 to 20 seconds.",
        "loop.slowest_turn_s",
    ),
    (
        GaugeMetricFamily,
        "replayd_durable_age_seconds",
        "How much of the last time a crash would take: since the last checkpoint, or what the journal lacks.",
        "store.durable_age_s",
    ),
    (
        GaugeMetricFamily,
        "replayd_checkpoint_age_seconds",
        "Time since the moment that the last checkpoint saved, or since the start if there was none since.",
        "store.checkpoint_age_s",
    ),
    (
        GaugeMetricFamily,
        "replayd_checkpoint_duration_seconds",
        "What the last checkpoint took.",
        "store.last.duration_s",
    ),
    (GaugeMetricFamily, "replayd_checkpoint_bytes", "What the last checkpoint wrote.", "store.last.bytes"),
    (CounterMetricFamily, "replayd_checkpoints", "Checkpoints written.", "store.checkpoints"),
    (CounterMetricFamily, "replayd_checkpoint_failures", "Checkpoints that the disk did not take.", "store.failures"),
    (CounterMetricFamily, "replayd_journal_commits", "Times the journal was written.", "store.journal.commits"),
    (
        CounterMetricFamily,
        "replayd_journal_failures",
        "Times the journal broke, until the next checkpoint: should stay 0.",
        "store.journal.failures",
    ),
    (
        GaugeMetricFamily,
        "replayd_journal_bytes",
        "Size of the journal since the last checkpoint.",
        "store.journal.size_bytes",
    ),
    (
        GaugeMetricFamily,
        "replayd_journal_pending_bytes",
        "What of the journal is not on the disk yet.",
        "store.journal.pending_bytes",
    ),
    (
        GaugeMetricFamily,
        "replayd_journal_held_replies",
        "Replies held back until what they promise is on the disk.",
        "store.journal.held_replies",
    ),
    (
        GaugeMetricFamily,
        "replayd_lost_items",
        "Items that damage of the store took from what the server began with; no value: it began empty.",
        "store.lost_items",
    ),
    (GaugeMetricFamily, "replayd_lost_chunks", "Chunks that damage of the store took.", "store.lost_chunks"),
    (
        GaugeMetricFamily,
        "replayd_lost_requests",
        "Requests of the journal that could not be repeated.",
        "store.lost_requests",
    ),
    (
        CounterMetricFamily,
        "replayd_store_blocked_seconds",
        "Seconds in which inserts waited for the disk, which had too much to take.",
        "store.blocked_s",
    ),
    (GaugeMetricFamily, "replayd_store_size_bytes", "Size of the store on the disk.", "store.size_bytes"),
    (
        GaugeMetricFamily,
        "replayd_checkpoint_running_seconds",
        "Time since the checkpoint began that is being written; no value: none is.",
        "store.running.elapsed_s",
    ),
)


class Exposition:
    """What a scraper is given: of the newest bulletin, rendered once for all who ask in its second, and of now."""

    def __init__(self, board: Board, clock: Callable[[], float]) -> None:
        self._board = board
        self._now = CollectorRegistry()
        ProcessCollector(registry=self._now)
        self._now.register(_Now(board, clock))
        self._of_bulletin = Rendered(_of_bulletin)

    def text(self) -> bytes:
        """In Prometheus's text format."""
        bulletin = self._board.newest
        return generate_latest(self._now) + (b"" if bulletin is None else self._of_bulletin.get(bulletin))


class _Now(Collector):
    """What holds for the moment of a scrape: also of a loop that is stuck."""

    def __init__(self, board: Board, clock: Callable[[], float]) -> None:
        self._board = board
        self._clock = clock

    def collect(self) -> Iterator[Metric]:
        versions = {"version": __version__, "python": python_version(), "libzmq": zmq.zmq_version()}
        yield InfoMetricFamily("replayd_build", "Versions.", versions)
        bulletin = self._board.newest
        if bulletin is not None:
            age_s = self._clock() - bulletin.taken_at
            yield GaugeMetricFamily("replayd_bulletin_age_seconds", "Time since the loop last said how it is.", age_s)


class _Of(Collector):
    """One bulletin."""

    def __init__(self, bulletin: Bulletin) -> None:
        self._bulletin = bulletin

    def collect(self) -> Iterator[Metric]:
        yield from _of_the_server(self._bulletin)
        yield from _of_tables(self._bulletin.report["tables"])


def _of_bulletin(bulletin: Bulletin) -> bytes:
    registry = CollectorRegistry()
    registry.register(_Of(bulletin))
    return generate_latest(registry)


def _of_the_server(bulletin: Bulletin) -> Iterator[Metric]:
    for family, name, text, key in OF_THE_SERVER:
        metric = family(name, text, labels=())
        value = _value(bulletin.report, key)
        if value is not None:
            metric.add_metric((), value)
        yield metric
    turns = HistogramMetricFamily(
        "replayd_loop_turn_seconds",
        "Turns of the loop, which is how long a request may wait for others; their sum is busy time.",
        labels=(),
    )
    _add_histogram(turns, (), bulletin.report["loop"]["turn_s"])
    yield turns


def _of_tables(tables: Sequence[Report]) -> Iterator[Metric]:
    for family, name, text, key in OF_TABLES:
        metric = family(name, text, labels=("table",))
        for table in tables:
            value = _value(table, key)
            if value is not None:
                metric.add_metric((table["name"],), value)
        yield metric
    yield from _of_who_waits(tables)
    ages = HistogramMetricFamily(
        "replayd_table_sample_age_seconds", "Age of items when they were drawn.", labels=("table",)
    )
    times = GaugeHistogramMetricFamily(
        "replayd_table_times_sampled",
        "How often items of the table were drawn, of up to 2048 of them.",
        labels=("table",),
    )
    behind = HistogramMetricFamily(
        "replayd_table_sample_staleness_versions",
        "Policy versions by which drawn items lagged behind the newest in their table; no value: none is said.",
        labels=("table",),
    )
    for table in tables:
        _add_histogram(ages, (table["name"],), table["sample_age_s"])
        _add_histogram(times, (table["name"],), table["times_sampled"])
        if "staleness_versions" in table:
            _add_histogram(behind, (table["name"],), table["staleness_versions"])
    yield from (ages, times, behind)


def _of_who_waits(tables: Sequence[Report]) -> Iterator[Metric]:
    blocked = CounterMetricFamily(
        "replayd_limiter_blocked_seconds",
        "Seconds in which requests waited, by the term that held the first.",
        labels=("table", "side", "reason"),
    )
    sides = ("table", "side")
    parked = GaugeMetricFamily("replayd_parked_requests", "Requests that wait.", labels=sides)
    items = GaugeMetricFamily(
        "replayd_parked_items", "Items that requests that wait would insert or still ask for.", labels=sides
    )
    oldest = GaugeMetricFamily(
        "replayd_oldest_parked_seconds", "How long the oldest request that waits has done so.", labels=sides
    )
    paused = GaugeMetricFamily("replayd_paused", "1: an operator holds this side back.", labels=sides)
    for table in tables:
        name = table["name"]
        waiting = {entry["side"]: entry for entry in table["waiting"]}
        for side, terms in table["blocked_by_s"].items():
            for term, seconds in terms.items():
                blocked.add_metric((name, side, term), seconds)
            entry = waiting.get(side, {})
            parked.add_metric((name, side), entry.get("requests", 0))
            items.add_metric((name, side), entry.get("items", 0))
            oldest.add_metric((name, side), entry.get("waited_s", 0.0))
            paused.add_metric((name, side), float(side in table["paused"]))
    yield from (blocked, parked, items, oldest, paused)


def _add_histogram(
    family: HistogramMetricFamily | GaugeHistogramMetricFamily, labels: Sequence[str], histogram: Report
) -> None:
    bounds = [*map(str, histogram["bounds"]), "+Inf"]
    buckets, count = [], 0
    for bound, counted in zip(bounds, histogram["counts"], strict=True):
        count += counted
        buckets.append((bound, float(count)))
    family.add_metric(labels, buckets, histogram["sum"])


def _value(report: Report, key: str) -> float | None:
    value: Any = report
    for part in key.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return None if value is None else float(value)
