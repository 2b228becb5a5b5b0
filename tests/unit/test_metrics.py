"""Metrics of a service that had some of everything: none of them is empty for want of the right place to look."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from replayd.board import Board
from replayd.messages import Request, Sample
from replayd.metrics import OF_TABLES, OF_THE_SERVER, Exposition
from replayd.service import Service
from tests.unit.writer import StreamWriter, fifo, service
from tests.wire.test_protocol_md import busy_service


def at(report: Any, path: str) -> Any:
    for part in path.split("."):
        report = report[part] if isinstance(report, Mapping) and part in report else None
    return report


def families_of(board: Board, now: float) -> Iterator[Metric]:
    """What is scraped."""
    return text_string_to_metric_families(Exposition(board, lambda: now).text().decode())


def exposed(target: Service, now: float) -> dict[tuple[str, str], float]:
    """Values by name and table ("" for those of the server), as they are scraped."""
    board = Board()
    board.publish(target.report(now, brief=True), now)
    samples = [sample for family in families_of(board, now) for sample in family.samples]
    return {(sample.name, sample.labels.get("table", "")): sample.value for sample in samples}


@pytest.mark.parametrize(("name", "path"), [(name, path) for _, name, _, path in OF_THE_SERVER])
def test_each_metric_of_the_server_has_its_place_in_the_report(name: str, path: str) -> None:
    found = at(busy_service().report(2.0, brief=True), path)
    assert isinstance(found, int | float), f"{name}: nothing at {path}"


@pytest.mark.parametrize(("name", "path"), [(name, path) for _, name, _, path in OF_TABLES])
def test_each_metric_of_a_table_has_its_place_in_the_report(name: str, path: str) -> None:
    found = [at(table, path) for table in busy_service().report(2.0, brief=True)["tables"]]
    assert any(isinstance(value, int | float) for value in found), f"{name}: nothing at {path}"


def test_duplicates_orphans_and_what_left_undrawn_are_counted_each_by_its_metric() -> None:
    s = service(fifo(max_size=2))
    writer = StreamWriter()
    inserts = [writer.insert([b"abc"], [(n, 1)], keep_from=n + 1) for n in range(5)]
    # Three items leave, the first of them drawn before.
    requests: list[Request] = [inserts[0], Sample(1, "t", 1, 1, 60.0), *inserts[1:], inserts[-1], inserts[-1]]
    for request in [*requests, writer.insert([b"lonely"], keep_from=5)]:
        assert s.handle("peer", type(request).__name__.lower(), request, 1.0) is None
    s.drain()
    metrics = exposed(s, 2.0)
    assert metrics["replayd_duplicates_total", ""] == 2
    assert metrics["replayd_orphan_bytes", ""] == len(b"lonely")
    assert metrics["replayd_chunk_bytes", ""] == 2 * len(b"abc") + len(b"lonely")
    assert metrics["replayd_table_evictions_total", "t"] == 3
    assert metrics["replayd_table_evicted_unsampled_total", "t"] == 2


def test_versions_that_draws_lag_behind_are_a_histogram_of_the_tables_where_one_was_said() -> None:
    s, writer = service(fifo("said"), fifo("silent")), StreamWriter()
    requests: list[Request] = [
        writer.insert([b"x"], [(0, 1)], table="said", policy_version=5),
        writer.insert([b"x"], [(1, 1)], table="said", policy_version=8),
        writer.insert([b"x"], [(2, 1)], table="silent"),
        Sample(1, "said", 2, 2, 60.0),
        Sample(2, "silent", 1, 1, 60.0),
    ]
    for request in requests:
        assert s.handle("peer", type(request).__name__.lower(), request, 1.0) is None
    s.drain()
    metrics = exposed(s, 2.0)
    name = "replayd_table_sample_staleness_versions"
    # The oldest, three versions behind, is drawn twice.
    assert (metrics[f"{name}_count", "said"], metrics[f"{name}_sum", "said"]) == (2, 6)
    assert metrics["replayd_table_newest_policy_version", "said"] == 8
    assert not [key for key in metrics if key[1] == "silent" and ("staleness" in key[0] or "policy" in key[0])]


def test_the_time_in_which_inserts_wait_for_the_disk_is_added_up() -> None:
    s = service(fifo())
    s.durability.path = "/var/lib/replayd"
    for why, now, waited_s in [
        (None, 1.0, 0),
        ("70 MB wait", 2.0, 0),
        ("80 MB wait", 3.0, 1),
        (None, 5.0, 3),
        (None, 6.0, 3),
        ("70 MB wait", 7.0, 3),
    ]:
        s.durability.wait(why, now)
        assert exposed(s, now)["replayd_store_blocked_seconds_total", ""] == waited_s
    # Nobody looks at the disk in between.
    assert exposed(s, 9.0)["replayd_store_blocked_seconds_total", ""] == 5


MATTERS = {
    "limiter cursor and bounds": ("replayd_limiter_cursor", "replayd_limiter_min_diff", "replayd_limiter_max_diff"),
    "blocked seconds per side and reason": ("replayd_limiter_blocked_seconds{side,reason}",),
    "blocked by the disk": ("replayd_store_blocked_seconds",),
    "parked requests": ("replayd_parked_requests{side}", "replayd_oldest_parked_seconds{side}"),
    "bytes and chunks": ("replayd_table_bytes", "replayd_chunk_bytes", "replayd_chunks"),
    "orphan bytes": ("replayd_orphan_bytes",),
    "evicted before sampled": ("replayd_table_evicted_unsampled", "replayd_table_evictions"),
    "sample age": ("replayd_table_sample_age_seconds",),
    "staleness in policy versions": ("replayd_table_sample_staleness_versions",),
    "loop lag": ("replayd_loop_turn_seconds", "replayd_loop_slowest_turn_seconds", "replayd_bulletin_age_seconds"),
    "reply drops": ("replayd_replies_dropped",),
    "duplicates suppressed": ("replayd_duplicates",),
    "checkpoint age and duration": ("replayd_checkpoint_age_seconds", "replayd_checkpoint_duration_seconds"),
}
"""What an operator asks, the metrics that answer, and the labels that they have beside the table."""


def test_what_an_operator_asks_has_its_metric_with_help_and_labels() -> None:
    board = Board()
    board.publish(busy_service().report(2.0, brief=True), 2.0)
    families = {family.name: family for family in families_of(board, 3.0)}
    for question, names in MATTERS.items():
        for name, _, labels in (each.partition("{") for each in names):
            family = families[name]
            assert family.samples, f"{question}: {name} has no value"
            said = {label for sample in family.samples for label in sample.labels} - {"table", "le"}
            assert said == set(labels.rstrip("}").split(",")) - {""}, name
            assert all(sample.labels.keys() <= {*said, "table", "le"} for sample in family.samples), name


def test_help_says_what_is_meant_without_the_metric_above_it() -> None:
    board = Board()
    board.publish(busy_service().report(2.0, brief=True), 2.0)
    for family in families_of(board, 3.0):
        if not family.name.startswith("replayd_"):
            continue
        assert family.documentation.split()[0] not in ("It", "Its", "Their", "They", "Those", "Of"), family.name
        assert not re.search(r"\b(it|its) (took|wrote|may|keeps)\b", family.documentation), family.name
        assert family.documentation.endswith("."), family.name
        # A quantity has its base unit at the end of its name, and no other.
        for unit in ("second", "byte"):
            if re.search(rf"_{unit}s?(_|$)", family.name):
                assert re.search(rf"_{unit}s(_added)?$", family.name), family.name
