"""By how many policy versions draws lag behind: whose version counts, what is newest, and what outlives what."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from replayd.messages import Insert, Reset, Sample
from replayd.service import Service
from replayd.staleness import DRAWS_PER_BATCH, STALENESS_BOUNDS
from tests.unit.kept import Kept
from tests.unit.writer import StreamWriter, fifo, service


def tell(target: Service, request: Any) -> None:
    assert target.handle("peer", type(request).__name__.lower(), request, 0.0) is None
    target.drain()
    target.validate()


def inserted(
    writer: StreamWriter, version: int | None, *, chunks: int = 1, table: str = "t", keep_from: int | None = None
) -> Insert:
    """An insert of an item over so many new chunks, in which this version acted."""
    window = (writer.next_chunk, chunks)
    return writer.insert([b"x"] * chunks, [window], table=table, policy_version=version, keep_from=keep_from)


def drawn(n: int = 1, table: str = "t") -> Sample:
    return Sample(1, table, n, n, 60.0)


def report_of(target: Service, table: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = target.report(0.0)["tables"][table]
    return found


def counted(target: Service, table: int = 0) -> dict[float | str, int]:
    """Draws by the bound of their bucket."""
    counts = report_of(target, table)["staleness_versions"]["counts"]
    return {bound: n for bound, n in zip([*STALENESS_BOUNDS, "more"], counts, strict=True) if n}


def test_where_nobody_says_a_version_there_is_no_staleness() -> None:
    s, writer = service(fifo()), StreamWriter()
    tell(s, inserted(writer, None))
    tell(s, inserted(writer, 0))
    tell(s, drawn(3))
    assert not {"staleness_versions", "newest_policy_version"} & report_of(s).keys()


def test_a_draw_is_as_stale_as_the_newest_version_of_its_table_is_ahead() -> None:
    s, writer = service(fifo()), StreamWriter()
    tell(s, inserted(writer, 5))
    tell(s, drawn())
    for version in (6, 3, 45):
        tell(s, inserted(writer, version))
    tell(s, drawn(2))
    tell(s, inserted(writer, 5000))
    tell(s, drawn())
    # The oldest is drawn each time: at the newest version, forty behind twice, and far behind.
    assert counted(s) == {0.0: 1, 64.0: 2, "more": 1}
    assert report_of(s)["staleness_versions"]["sum"] == 0 + 2 * 40 + 4995
    assert report_of(s)["newest_policy_version"] == 5000


def test_an_item_is_as_stale_as_its_first_chunk() -> None:
    s, writer = service(fifo()), StreamWriter()
    tell(s, writer.insert([b"x"], policy_version=1))
    tell(s, writer.insert([b"x"], [(0, 2)], policy_version=9))
    tell(s, drawn())
    assert (counted(s), report_of(s)["newest_policy_version"]) == ({8.0: 1}, 9)


def test_draws_of_items_of_which_nobody_says_a_version_are_not_counted() -> None:
    s, writer = service(fifo()), StreamWriter()
    tell(s, inserted(writer, None))
    tell(s, inserted(writer, 7))
    tell(s, drawn(4))
    assert counted(s) == {}


def test_a_chunk_in_the_place_of_another_does_not_inherit_its_version() -> None:
    s, writer = service(fifo(max_size=1)), StreamWriter()
    for n in range(1, 50):
        tell(s, inserted(writer, n % 2, keep_from=writer.next_chunk + 1))
        tell(s, drawn())
    assert counted(s) == {0.0: 25}


def test_what_is_newest_is_so_in_its_table_alone() -> None:
    s, writer = service(fifo("t"), fifo("u")), StreamWriter()
    tell(s, inserted(writer, 10))
    tell(s, inserted(writer, 1000, table="u"))
    tell(s, drawn())
    tell(s, drawn(table="u"))
    assert (counted(s, 0), counted(s, 1)) == ({0.0: 1}, {0.0: 1})


def test_a_table_that_is_reset_may_begin_with_a_policy_of_its_own_again() -> None:
    s, writer = service(fifo()), StreamWriter()
    tell(s, inserted(writer, 100))
    tell(s, Reset(1, "t"))
    tell(s, inserted(writer, 1))
    tell(s, drawn())
    assert (counted(s), report_of(s)["newest_policy_version"]) == ({0.0: 1}, 1)


@pytest.mark.parametrize("n", [1, DRAWS_PER_BATCH, DRAWS_PER_BATCH + 1, 100, 257])
def test_counts_add_up_to_the_draws_though_a_part_of_each_batch_is_looked_at(n: int) -> None:
    s, writer = service(fifo()), StreamWriter()
    tell(s, inserted(writer, 3))
    tell(s, inserted(writer, 4))
    for _ in range(3):
        tell(s, drawn(n))
    assert counted(s) == {1.0: 3 * n}
    assert report_of(s)["staleness_versions"]["sum"] == pytest.approx(3 * n)


def test_versions_are_kept_of_more_chunks_than_there_was_room_for() -> None:
    s, writer = service(fifo(max_size=100_000)), StreamWriter()
    n = 3000
    for version in (1, 2):
        windows = [(writer.next_chunk + i, 1) for i in range(n)]
        tell(s, writer.insert([b"x"] * n, windows, policy_version=version))
    versions = s.chunks.policy_versions
    assert versions is not None
    live = s.tables["t"].items.chunk[s.tables["t"].items.in_order()]
    assert np.array_equal(versions[live], np.repeat([1, 2], n))


def test_what_a_restart_restores_has_its_versions(tmp_path: Path) -> None:
    with Kept(tmp_path) as kept:
        for version in (3, None, 9):
            kept.insert([b"x"], policy_version=version)
        kept.checkpoint()
    with Kept(tmp_path) as again:
        assert report_of(again.service)["newest_policy_version"] == 9
        again.draw()
        assert counted(again.service) == {8.0: 1}
        again.service.validate()


def test_what_was_saved_before_anybody_said_a_version_is_restored(tmp_path: Path) -> None:
    with Kept(tmp_path) as kept:
        kept.insert([b"x"])
        kept.checkpoint()
    with Kept(tmp_path) as again:
        again.writer = StreamWriter(b"v" * 16)
        again.insert([b"y"], policy_version=2)
        again.draw(2)
        assert report_of(again.service)["newest_policy_version"] == 2
        assert counted(again.service) == {}
