"""Extensions: told of all that happens, able to wish, and unable to harm."""

from __future__ import annotations

import asyncio
import random
import sys
from typing import Any

import numpy as np
import pytest

from replayd import rate_limiters
from replayd.extensions import InsertOnSample, ItemsView, PriorityDiffusion, TableAccess
from replayd.hooks import NEIGHBOUR_REACH
from replayd.limits import WISH_ROUNDS
from replayd.messages import Info, Reset, Sample, Update
from replayd.service import Service
from replayd.table import Table
from replayd_client.specs import TensorSpec
from tests.unit.writer import StreamWriter, fifo, service

NO_KEYS = np.zeros(0, np.uint64)


def ask(target: Service, request: Any) -> list[Any]:
    target.handle("peer", type(request).__name__.lower(), request, 0.0)
    target.validate()
    return [reply for _, reply in target.drain()]


def priorities(table: Table) -> dict[int, float]:
    live = table.items.in_order()
    return dict(zip(table.items.key[live].tolist(), table.items.priority[live].tolist(), strict=True))


def update(table: str, **changes: float) -> Update:
    keys = np.array([int(key[1:]) for key in changes], np.uint64)
    return Update(1, table, keys, np.array(list(changes.values())), NO_KEYS)


class Recorder:
    """Writes down what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[str, list[int], list[float], list[int]]] = []

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("on_"):
            raise AttributeError(name)

        def record(access: TableAccess, items: ItemsView | None = None) -> None:
            if items is None:
                self.told.append((name, [], [], []))
            else:
                told = (items.keys.tolist(), items.priorities.tolist(), items.times_sampled.tolist())
                self.told.append((name, *told))

        return record


def test_an_extension_hears_of_everything_in_batches(made: list[Service]) -> None:
    recorder = Recorder()
    made.append(s := service(fifo(max_size=2, max_times_sampled=2, extensions=[recorder])))
    writer = StreamWriter()
    ask(s, writer.insert([b"a", b"b", b"c"], [(0, 1), (1, 1), (2, 1)]))
    ask(s, update("t", k2=5.0))
    ask(s, Sample(1, "t", 3, 1, 0.0))
    ask(s, Reset(1, "t"))
    assert recorder.told == [
        ("on_insert", [1, 2, 3], [1.0, 1.0, 1.0], [0, 0, 0]),
        ("on_delete", [1], [1.0], [0]),
        ("on_update", [2], [5.0], [0]),
        ("on_sample", [2, 2, 3], [5.0, 5.0, 1.0], [1, 2, 1]),
        ("on_delete", [2], [5.0], [2]),
        ("on_reset", [], [], []),
    ]


class _Sync:
    def on_insert(self, access: Any, items: Any) -> None: ...


class _Async:
    async def on_insert(self, access: Any, items: Any) -> None: ...


@pytest.mark.parametrize(
    "extensions", ["abc", [_Sync], [object()], [_Async()], 3, [type("Typo", (), {"on_insret": 1})()]]
)
def test_what_would_never_be_called_is_no_extension(extensions: Any) -> None:
    with pytest.raises(TypeError):
        fifo(extensions=extensions)


@pytest.mark.parametrize("error", [KeyboardInterrupt, GeneratorExit, SystemExit, asyncio.CancelledError, BaseException])
def test_nothing_that_a_hook_raises_ends_the_daemon(made: list[Service], error: type[BaseException]) -> None:
    class Faulty:
        def on_insert(self, access: Any, items: Any) -> None:
            raise error

    made.append(s := service(fifo(extensions=[Faulty()])))
    ask(s, StreamWriter().insert([b"a"], [(0, 1)]))
    assert s.tables["t"].size == 1
    assert len(s.faults) == 1


@pytest.mark.parametrize("hook", ["on_insert", "on_sample", "on_update", "on_delete", "on_reset"])
def test_a_hook_that_raises_harms_neither_table_nor_its_neighbours(made: list[Service], hook: str) -> None:
    class Faulty:
        pass

    def fail(*arguments: Any) -> None:
        raise RuntimeError("broken on purpose")

    faulty, recorder = Faulty(), Recorder()
    setattr(faulty, hook, fail)
    made.append(s := service(fifo(max_size=1, extensions=[faulty, recorder])))
    writer = StreamWriter()
    ask(s, writer.insert([b"a", b"b"], [(0, 1), (1, 1)]))
    ask(s, update("t", k2=5.0))
    [sampled] = ask(s, Sample(1, "t", 1, 1, 0.0))
    assert [*map(bytes, sampled.shown.body)] == [b"b"]
    ask(s, Reset(1, "t"))
    [info] = ask(s, Info(1))
    assert info.fields["tables"][0]["extension_faults"] == 1
    assert hook in [told[0] for told in recorder.told]
    assert [str(fault.error) for fault in s.faults] == ["broken on purpose"]


def test_a_hook_cannot_reach_the_tables_own_arrays(made: list[Service]) -> None:
    class Vandal:
        def on_insert(self, access: TableAccess, items: ItemsView) -> None:
            items.keys[:] = 0
            items.priorities[:] = -1.0

        on_sample = on_update = on_insert

    made.append(s := service(fifo(extensions=[Vandal()])))
    ask(s, StreamWriter().insert([b"a"], [(0, 1)], priority=3.0))
    ask(s, update("t", k1=4.0))
    [sampled] = ask(s, Sample(1, "t", 1, 1, 0.0))
    assert (sampled.shown.keys.tolist(), sampled.shown.priorities.tolist()) == ([1], [4.0])


def test_a_wish_for_a_bad_priority_is_its_extensions_fault(made: list[Service]) -> None:
    class Wrong:
        def on_insert(self, access: TableAccess, items: ItemsView) -> None:
            access.set_priorities(items.keys, np.full(len(items.keys), np.nan))

    made.append(s := service(fifo(extensions=[Wrong()])))
    ask(s, StreamWriter().insert([b"a"], [(0, 1)]))
    assert priorities(s.tables["t"]) == {1: 1.0}
    assert s.tables["t"].hooks.faults == 1


# --- neighbours -------------------------------------------------------------------------------------------------------


def neighbours_by_hand(table: Table, keys: list[int], distance: int) -> list[list[int]]:
    """One item after the other, as the contract says it."""
    order = table.items.in_order()
    order_keys = table.items.key[order].tolist()
    streams = table._chunks.stream[table.items.chunk[order]].tolist()
    found = []
    for key in keys:
        row = [0] * (2 * distance)
        if key in order_keys:
            at = order_keys.index(key)
            near = range(max(at - NEIGHBOUR_REACH, 0), min(at + NEIGHBOUR_REACH + 1, len(order_keys)))
            own = [order_keys[i] for i in near if streams[i] == streams[at]]
            here = own.index(key)
            before, behind = own[max(here - distance, 0) : here], own[here + 1 : here + 1 + distance]
            row[distance - len(before) : distance + len(behind)] = before + behind
        found.append(row)
    return found


@pytest.mark.parametrize("distance", [1, 2, 16, NEIGHBOUR_REACH])
def test_neighbours_are_the_nearest_of_the_same_stream_within_reach(made: list[Service], distance: int) -> None:
    rng = random.Random(distance)
    made.append(s := service(fifo(max_size=400)))
    writers = [StreamWriter(bytes([i]) * 16) for i in range(3)]
    for _ in range(150):
        writer = rng.choice(writers[: rng.choice((1, 3))])
        first, n = writer.next_chunk, rng.randint(1, 5)
        ask(s, writer.insert([b"a"] * n, [(first + i, 1) for i in range(n)]))
    table = s.tables["t"]
    ask(s, Update(1, "t", NO_KEYS, np.zeros(0), np.array(rng.sample(range(1, 500), 60), np.uint64)))
    keys = rng.sample(range(1, 520), 100)
    found = table.hooks.access.neighbours(np.array(keys, np.uint64), distance)
    assert found.tolist() == neighbours_by_hand(table, keys, distance)


@pytest.mark.parametrize("distance", [0, -1, NEIGHBOUR_REACH + 1, 10**6, 10**30])
def test_neighbours_farther_than_the_reach_are_refused(made: list[Service], distance: int) -> None:
    class Greedy:
        def on_update(self, access: TableAccess, items: ItemsView) -> None:
            access.neighbours(items.keys, distance)

    made.append(s := service(fifo(extensions=[Greedy()])))
    ask(s, StreamWriter().insert([b"a"], [(0, 1)]))
    ask(s, update("t", k1=2.0))
    assert [str(fault.error) for fault in s.faults] == [f"distance must be between 1 and 128, got {distance}"]
    assert priorities(s.tables["t"]) == {1: 2.0}


def test_a_distance_is_an_integer_of_any_kind(made: list[Service]) -> None:
    made.append(s := service(fifo()))
    ask(s, StreamWriter().insert([b"a"] * 3, [(0, 1), (1, 1), (2, 1)]))
    access, keys = s.tables["t"].hooks.access, np.array([2], np.uint64)
    assert access.neighbours(keys, np.int32(1)).tolist() == [[1, 3]]
    for distance in (1.0, "1", None):
        with pytest.raises(TypeError):
            access.neighbours(keys, distance)  # type: ignore[arg-type]


# --- priority diffusion -----------------------------------------------------------------------------------------------


def test_an_update_spreads_to_neighbours_of_the_same_stream_only(made: list[Service]) -> None:
    made.append(s := service(fifo(extensions=[PriorityDiffusion(decay=0.5, distance=2)])))
    one, two = StreamWriter(b"1" * 16), StreamWriter(b"2" * 16)
    for i in range(5):
        ask(s, one.insert([b"a"], [(i, 1)], priority=0.0))
        ask(s, two.insert([b"b"], [(i, 1)], priority=0.0))
    # Keys 1, 3, 5, 7, 9 are of the first stream.
    ask(s, update("t", k5=8.0))
    assert priorities(s.tables["t"]) == {1: 2.0, 2: 0, 3: 4.0, 4: 0, 5: 8.0, 6: 0, 7: 4.0, 8: 0, 9: 2.0, 10: 0}


def test_spreading_moves_towards_the_update_and_passes_over_what_has_gone(made: list[Service]) -> None:
    made.append(s := service(fifo(extensions=[PriorityDiffusion(decay=0.25)])))
    writer = StreamWriter()
    ask(s, writer.insert([b"a"] * 4, [(0, 1), (1, 1), (2, 1), (3, 1)], priority=4.0))
    ask(s, Update(1, "t", NO_KEYS, np.zeros(0), np.array([2], np.uint64)))
    ask(s, update("t", k3=0.0))
    assert priorities(s.tables["t"]) == {1: 3.0, 3: 0.0, 4: 3.0}


def test_items_of_the_update_itself_keep_its_values_and_the_largest_spread_wins(made: list[Service]) -> None:
    made.append(s := service(fifo(extensions=[PriorityDiffusion(decay=1.0)])))
    ask(s, StreamWriter().insert([b"a"] * 4, [(0, 1), (1, 1), (2, 1), (3, 1)], priority=0.0))
    ask(s, update("t", k1=3.0, k3=9.0))
    assert priorities(s.tables["t"]) == {1: 3.0, 2: 9.0, 3: 9.0, 4: 9.0}
    ask(s, update("t", k1=1.0, k2=2.0))
    assert priorities(s.tables["t"]) == {1: 1.0, 2: 2.0, 3: 2.0, 4: 9.0}


@pytest.mark.parametrize(("decay", "distance"), [(0.0, 1), (1.1, 1), (0.5, 0), (0.5, 17)])
def test_values_that_make_no_sense_are_refused(decay: float, distance: int) -> None:
    with pytest.raises(ValueError, match="must be"):
        PriorityDiffusion(decay, distance)


# --- insert on sample -------------------------------------------------------------------------------------------------


def test_an_item_is_copied_the_first_time_it_is_drawn_and_shares_its_chunks(made: list[Service]) -> None:
    made.append(s := service(fifo(extensions=[InsertOnSample("seen")]), fifo("seen")))
    ask(s, StreamWriter().insert([b"abc"], [(0, 1)], priority=7.0, keep_from=1))
    ask(s, Sample(1, "t", 3, 1, 0.0))
    ask(s, Sample(1, "t", 1, 1, 0.0))
    assert priorities(s.tables["seen"]) == {2: 7.0}
    assert len(s.chunks) == 1
    [sampled] = ask(s, Sample(1, "seen", 1, 1, 0.0))
    assert [*map(bytes, sampled.shown.body)] == [b"abc"]


def test_a_copy_outlives_an_item_that_leaves_with_its_first_sample(made: list[Service]) -> None:
    made.append(s := service(Table.queue("t", 5, extensions=[InsertOnSample("seen")]), fifo("seen")))
    ask(s, StreamWriter().insert([b"abc"], [(0, 1)], keep_from=1))
    ask(s, Sample(1, "t", 1, 1, 0.0))
    assert (s.tables["t"].size, s.tables["seen"].size, len(s.chunks)) == (0, 1, 1)


def test_a_copy_waits_for_the_other_tables_limiter(made: list[Service]) -> None:
    made.append(s := service(fifo(extensions=[InsertOnSample("seen")]), Table.queue("seen", 1)))
    ask(s, StreamWriter().insert([b"a", b"b"], [(0, 1), (1, 1)], keep_from=2))
    s.tables["t"].replace_sampler(type(s.tables["t"].sampler)())
    ask(s, Sample(1, "t", 1, 1, 0.0))
    ask(s, Update(1, "t", NO_KEYS, np.zeros(0), np.array([1], np.uint64)))
    ask(s, Sample(1, "t", 1, 1, 0.0))
    assert (s.tables["seen"].size, s.tables["seen"].pending_items) == (1, 1)
    ask(s, Sample(1, "seen", 1, 1, 0.0))
    assert (s.tables["seen"].size, s.tables["seen"].pending_items) == (1, 0)


@pytest.mark.parametrize("to", ["nowhere", "strict"])
def test_a_copy_that_cannot_be_made_is_counted_and_let_go(made: list[Service], to: str) -> None:
    strict = fifo("strict", signature=TensorSpec((1,), np.float32))
    made.append(s := service(fifo(extensions=[CopyAgain("on_sample", to)]), strict))
    ask(s, StreamWriter().insert([b"a"], [(0, 1)], keep_from=1))
    ask(s, Sample(1, "t", 1, 1, 0.0))
    ask(s, Reset(1, "t"))
    assert (len(s.chunks), s.tables["t"].hooks.faults, len(s.faults)) == (0, 1, 1)


def test_two_tables_that_copy_to_each_other_come_to_rest(made: list[Service]) -> None:
    limiter = rate_limiters.MinSize
    made.append(
        s := service(
            fifo("t", extensions=[InsertOnSample("u")], rate_limiter=limiter(1)),
            fifo("u", extensions=[InsertOnSample("t")], rate_limiter=limiter(1)),
        )
    )
    ask(s, Sample(1, "u", 1, 1, 10.0))
    ask(s, StreamWriter().insert([b"a"], [(0, 1)]))
    ask(s, Sample(2, "t", 1, 1, 0.0))
    assert (s.tables["t"].size, s.tables["u"].size) == (2, 1)


# --- what foreign code may do wrong -----------------------------------------------------------------------------------


BAD_WISHES = {
    "lengths differ": lambda access, items: access.set_priorities(items.keys, np.ones(len(items.keys) + 1)),
    "two dimensions": lambda access, items: access.set_priorities(items.keys[None], items.priorities[None]),
    "keys that are no integers": lambda access, items: access.set_priorities(items.keys + 0.5, items.priorities),
    "complex priorities": lambda access, items: access.set_priorities(items.keys, items.priorities + 1j),
    "bool priorities": lambda access, items: access.set_priorities(items.keys, items.priorities > 0),
    "text": lambda access, items: access.set_priorities("keys", "priorities"),
    "nothing": lambda access, items: access.set_priorities(None, None),
    "a table that is a list": lambda access, items: access.copy_to(["t"], items.keys, items.priorities),
    "a table that is not there": lambda access, items: access.copy_to("nowhere", items.keys, items.priorities),
    "an exit": lambda access, items: sys.exit(3),
}


@pytest.mark.parametrize("wish", BAD_WISHES.values(), ids=BAD_WISHES.keys())
@pytest.mark.parametrize("hook", ["on_insert", "on_sample", "on_update", "on_delete"])
def test_a_wish_that_makes_no_sense_is_its_extensions_fault(made: list[Service], hook: str, wish: Any) -> None:
    extension = type("Rude", (), {hook: staticmethod(wish)})()
    made.append(s := service(fifo(max_size=2, extensions=[extension])))
    ask(s, StreamWriter().insert([b"a"] * 3, [(0, 1), (1, 1), (2, 1)]))
    ask(s, update("t", k3=5.0))
    ask(s, Sample(1, "t", 1, 1, 0.0))
    assert s.tables["t"].hooks.faults >= 1
    assert priorities(s.tables["t"]) == {2: 1.0, 3: 5.0}


def test_of_a_key_wished_for_twice_the_last_priority_stands(made: list[Service]) -> None:
    class Eager:
        def on_sample(self, access: TableAccess, items: ItemsView) -> None:
            access.set_priorities(items.keys, np.arange(len(items.keys)) + 5.0)

    made.append(s := service(fifo(extensions=[Eager()])))
    ask(s, StreamWriter().insert([b"a", b"b"], [(0, 1), (1, 1)]))
    ask(s, Sample(1, "t", 3, 1, 0.0))
    assert priorities(s.tables["t"]) == {1: 7.0, 2: 1.0}
    ask(s, update("t", k1=0.5))
    assert s.tables["t"].max_priority == 1.0


def test_each_extension_has_a_view_of_its_own(made: list[Service]) -> None:
    class Vandal:
        def on_insert(self, access: TableAccess, items: ItemsView) -> None:
            items.keys[:] = 7

    recorder = Recorder()
    made.append(s := service(fifo(extensions=[Vandal(), recorder])))
    ask(s, StreamWriter().insert([b"a"], [(0, 1)]))
    assert recorder.told == [("on_insert", [1], [1.0], [0])]


class CopyAgain:
    """Answers every change with a copy: it would never come to rest."""

    def __init__(self, hook: str, to: str) -> None:
        setattr(self, hook, lambda access, items: access.copy_to(to, items.keys, items.priorities))


@pytest.mark.parametrize("hook", ["on_insert", "on_delete"])
def test_an_extension_that_sets_itself_off_is_stopped(made: list[Service], hook: str) -> None:
    made.append(s := service(fifo(max_size=2, extensions=[CopyAgain(hook, "t")])))
    ask(s, StreamWriter().insert([b"a"] * 3, [(0, 1), (1, 1), (2, 1)]))
    assert s.tables["t"].hooks.faults == 1
    assert ["rounds of wishes" in str(fault.error) for fault in s.faults] == [True]


def test_extensions_that_set_each_other_off_are_stopped(made: list[Service]) -> None:
    tables = fifo("t", extensions=[CopyAgain("on_insert", "u")]), fifo("u", extensions=[CopyAgain("on_insert", "t")])
    made.append(s := service(*tables))
    ask(s, StreamWriter().insert([b"a"], [(0, 1)]))
    assert sum(table.hooks.faults for table in s.tables.values()) == 1
    assert s.tables["t"].size + s.tables["u"].size == WISH_ROUNDS.value + 1
