"""A vectorised writer without a server: its items are those that a loop over environments and steps would make."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from replayd_client import vector_buffer, vector_log
from replayd_client.columns import Column, Schema
from replayd_client.errors import DataError, PriorityError
from replayd_client.final_observations import final_values
from replayd_client.structured import create_reference_step
from replayd_client.vector_buffer import autoreset_mode_of
from replayd_client.vector_items import VectorItem
from replayd_client.vector_log import VectorLog
from tests.unit.message_store import Store

OBS, ACTION, DONE = Column(("obs",), np.dtype("f4"), (2,)), Column(("a",), np.dtype("i2"), ()), Column(("d",), "?", ())
SCHEMA = Schema((ACTION, DONE, OBS))
Row = tuple[int, bool, float]
"""action, done, and what both entries of obs are."""


class Run:
    """N environments that end when they are told to, each with the mode's way of resetting itself; and what a plain
    loop makes of their steps."""

    def __init__(self, envs: int, items: list[VectorItem], mode: str, observes: bool, chunk_length: int | None) -> None:
        self.log = VectorLog(envs, items, autoreset_mode_of(mode), chunk_length)
        self.log.begin(SCHEMA, [False, False, observes])
        self.envs, self.items, self.mode, self.observes = envs, items, mode, observes
        self.store = Store()
        self.episodes: list[list[list[Row]]] = [[[]] for _ in range(envs)]
        self.is_closed: list[list[bool]] = [[False] for _ in range(envs)]
        self.resetting = [False] * envs
        self.clock = 0

    def step(self, ends: list[bool]) -> None:
        self.clock += 1
        obs = np.array([[1000.0 * env + self.clock] * 2 for env in range(self.envs)], "f4")
        action = np.array([100 * env + self.clock for env in range(self.envs)], "i2")
        final = [-obs[np.array(ends)]] if self.observes and any(ends) and self.mode != "next_step" else []
        self.append([action, np.array(ends), obs], np.array(ends), final)
        # What was handed in may change at once.
        obs[:], action[:] = -1, -1
        for env, end in enumerate(ends):
            self._step_of(env, end)
        self.ship()

    def append(self, leaves: list[Any], ends: Any, final: list[Any]) -> None:
        self.log.append(leaves, ends, final, 0.0)

    def _step_of(self, env: int, end: bool) -> None:
        row = (100 * env + self.clock, end, 1000.0 * env + self.clock)
        episode = self.episodes[env][-1]
        if self.resetting[env]:
            self.resetting[env] = False
            if self.observes:
                episode.append((0, False, row[2]))
                self._close(env)
            return
        episode.append(row)
        if end and self.mode == "next_step":
            self.resetting[env] = True
        elif end and self.observes:
            episode.append((0, False, -row[2]))
        if end and not (self.observes and self.mode == "next_step"):
            self._close(env)

    def _close(self, env: int) -> None:
        self.is_closed[env][-1] = True
        self.episodes[env].append([])
        self.is_closed[env].append(False)

    def end_episodes(self) -> None:
        self.log.end_episodes()
        for env in range(self.envs):
            self.resetting[env] = False
            self._close(env)

    def ship(self) -> None:
        while (message := self.log.take_message()) is not None:
            self.store.take(message)

    def made(self) -> list[tuple[str, tuple[Row, ...]]]:
        made = []
        for number, table in enumerate(self.store.tables):
            shown = self.store.item(number)
            assert (shown["obs"][:, 0] == shown["obs"][:, 1]).all()
            rows = zip(shown["a"].tolist(), shown["d"].tolist(), shown["obs"][:, 0].tolist(), strict=True)
            made.append((table, tuple(rows)))
        return made

    def expected(self) -> list[tuple[str, tuple[Row, ...]]]:
        found = []
        for item in self.items:
            for env in range(self.envs):
                for episode, is_closed in zip(self.episodes[env], self.is_closed[env], strict=True):
                    for start in range(0, len(episode), item.period):
                        rows = episode[start : start + item.window]
                        is_only_closing = len(rows) == 1 and rows[0][0] == 0
                        if (len(rows) == item.window or (item.shorten and is_closed)) and not is_only_closing:
                            found.append((item.table, tuple(rows)))
        return found


WORDS = (Column(("tag",), "bytes", ()), Column(("note",), "str", (2,)))


class RunOfWords(Run):
    """Each action also in bytes, and each observation in two str."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.log.begin(Schema((*SCHEMA.columns, *WORDS)), [False, False, self.observes, False, self.observes])

    def append(self, leaves: list[Any], ends: Any, final: list[Any]) -> None:
        action, _, obs = leaves
        tags = np.array([b"%d" % number for number in action.tolist()])
        finals = [*final, *(self._notes(observed) for observed in final)]
        super().append([*leaves, tags, self._notes(obs)], ends, finals)

    def made(self) -> list[tuple[str, tuple[Row, ...]]]:
        for number in range(len(self.store.items)):
            shown = self.store.item(number)
            assert shown["note"].tolist() == self._notes(shown["obs"]).tolist()
            # There is no action in a row that closes an episode.
            assert shown["tag"].tolist() == [b"%d" % number if number else b"" for number in shown["a"].tolist()]
        return super().made()

    @staticmethod
    def _notes(obs: Any) -> Any:
        notes = np.empty(obs.shape, object)
        notes[:] = [[f"é{number:g}" for number in row] for row in obs.tolist()]
        return notes


ITEMS = st.lists(
    st.builds(
        lambda window, period, shorten, number: VectorItem(f"t{number}", window, period, 1.0, shorten),
        st.integers(1, 6),
        st.integers(1, 4),
        st.booleans(),
        st.integers(0, 1),
    ),
    min_size=1,
    max_size=3,
)


@given(
    st.integers(1, 4),
    ITEMS,
    st.sampled_from(["next_step", "same_step", "disabled"]),
    st.booleans(),
    st.sampled_from([1, 3, None]),
    st.sampled_from([Run, RunOfWords]),
    st.data(),
)
def test_items_are_those_of_a_loop_over_environments(
    envs: int,
    items: list[VectorItem],
    mode: str,
    observes: bool,
    chunk_length: int | None,
    kind: type[Run],
    data: st.DataObject,
) -> None:
    run = kind(envs, items, mode, observes, chunk_length)
    odds = data.draw(st.integers(1, 6))
    for _ in range(data.draw(st.integers(0, 40))):
        match data.draw(st.sampled_from(["step"] * 12 + ["cut", "end"])):
            case "step":
                run.step([data.draw(st.integers(0, odds)) == 0 for _ in range(envs)])
            case "cut":
                run.log.cut()
                run.ship()
            case "end":
                run.end_episodes()
    run.log.cut()
    run.ship()
    assert sorted(run.made()) == sorted(run.expected())
    assert run.log.items == 0
    assert run.log.report().steps == sum(len(rows) for episodes in run.episodes for rows in episodes)


def test_long_runs_leave_in_full_blocks_and_store_little_twice() -> None:
    run = Run(3, [VectorItem("t", 5)], "next_step", True, None)
    for number in range(2000):
        run.step([(number + env) % 97 == 0 for env in range(3)])
    run.log.cut()
    run.ship()
    assert sorted(run.made()) == sorted(run.expected())
    report = run.log.report()
    assert report.bytes_in == report.bytes_stored
    assert 6000 * SCHEMA.columns[2].row_bytes <= report.columns["obs"].bytes_stored < 1.05 * 6000 * 8


def test_windows_without_overlap_store_each_row_once() -> None:
    run = Run(2, [VectorItem("t", 4, period=4)], "disabled", False, 3)
    for _ in range(50):
        run.step([False, False])
        run.log.cut()
        run.ship()
    assert len(run.store.items) == 2 * 12
    assert run.log.report().columns["a"].bytes_stored == 2 * 48 * 2


def test_a_pattern_makes_transitions_of_rows() -> None:
    step = create_reference_step({"obs": None, "a": None, "d": None})
    pattern = {"obs": step["obs"][-3], "action": step["a"][-3], "rest": step["d"][-3:-1], "next_obs": step["obs"][-1]}
    run = Run(2, [VectorItem("t", 3, pattern=pattern)], "disabled", False, None)
    for _ in range(4):
        run.step([False, False])
    run.log.cut()
    run.ship()
    first = run.store.item(0)
    assert (int(first["action"]), first["obs"].tolist(), first["next_obs"].tolist()) == (1, [1, 1], [3, 3])
    assert first["rest"].shape == (2,)
    assert len(run.store.items) == 4


def test_large_blocks_are_split_into_messages_of_bounded_size() -> None:
    schema = Schema((Column(("x",), np.dtype("u1"), (3000,)),))
    log = VectorLog(100, [VectorItem("t", 2)], "disabled", None)
    log.begin(schema, [False])
    noise = np.random.default_rng(1).integers(0, 256, (41, 100, 3000), np.uint8)
    for frame in noise:
        log.append([frame], np.zeros(100, np.bool_), [], 0.0)
    log.cut()
    store, sizes = Store(), []
    while (message := log.take_message()) is not None:
        store.take(message)
        sizes.append(0 if message.chunks is None else message.chunks.nbytes)
    assert len(sizes) > 2
    assert max(sizes) < 5 << 20
    for number in range(0, len(store.items), 97):
        shown = store.item(number)["x"]
        places = np.flatnonzero((noise == shown[0]).all(axis=2).any(axis=1))
        env = np.flatnonzero((noise[places[0]] == shown[0]).all(axis=1))[0]
        np.testing.assert_array_equal(shown, noise[places[0] : places[0] + 2, env])
    assert len(store.items) == 4000


def test_what_compresses_is_compressed_and_comes_back_as_it_was() -> None:
    schema = Schema((Column(("x",), np.dtype("u1"), (2000,)), Column(("n",), np.dtype("i4"), ())))
    log = VectorLog(3, [VectorItem("t", 3)], "disabled", 4)
    log.begin(schema, [False, False])
    frames = [np.full((3, 2000), number, np.uint8) for number in range(40)]
    for number, frame in enumerate(frames):
        log.append([frame, np.arange(3, dtype="i4") + 10 * number], np.zeros(3, np.bool_), [], 0.0)
    log.cut()
    store = Store()
    while (message := log.take_message()) is not None:
        store.take(message)
    assert log.report().columns["x"].ratio > 5
    shown = [store.item(number) for number in range(len(store.items))]
    assert sorted(item["n"].tolist() for item in shown) == sorted(
        [[10 * t + env for t in range(start, start + 3)] for env in range(3) for start in range(38)]
    )
    assert all((item["x"][:, 0] == item["n"] // 10).all() for item in shown)


def test_chunks_end_early_where_values_are_long_and_many_of_them_are_a_block(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vector_log, "CHUNK_CELL_BYTES", 100)
    monkeypatch.setattr(vector_buffer, "BLOCK_BYTES", 2000)
    log = VectorLog(2, [VectorItem("t", 3)], "disabled", 32)
    log.begin(Schema((Column(("x",), "bytes", ()),)), [False])
    store = Store()
    for number in range(40):
        log.append([np.array([b"%040d" % number, b"%02d" % number], object)], np.zeros(2, np.bool_), [], 0.0)
        while (message := log.take_message()) is not None:
            store.take(message)
    assert store.items, "rows do not wait for more than a block"
    log.cut()
    while (message := log.take_message()) is not None:
        store.take(message)
    assert all(len(payload) <= 100 + 44 for *_, payload in store.chunks.values())
    shown = sorted(tuple(store.item(number)["x"].tolist()) for number in range(len(store.items)))
    wide = [tuple(b"%040d" % t for t in range(start, start + 3)) for start in range(38)]
    assert shown == sorted([*wide, *[tuple(b"%02d" % t for t in range(start, start + 3)) for start in range(38)]])
    stored = sum(rows for rows, *_ in store.chunks.values())
    report = log.report().columns["x"]
    assert report.bytes_stored == report.bytes_in + 4 * stored


# What is refused.


@pytest.mark.parametrize(
    "values",
    [
        {"window": 0},
        {"period": 0},
        {"pattern": {"x": create_reference_step(None)[-3:]}},
        {"pattern": {"x": create_reference_step(None)[-1]}, "shorten": True},
    ],
)
def test_a_declaration_that_makes_no_sense_is_refused(values: dict[str, Any]) -> None:
    with pytest.raises(DataError):
        VectorItem(**{"table": "t", "window": 2, **values})
    with pytest.raises(PriorityError):
        VectorItem("t", 2, priority=-1.0)


@pytest.mark.parametrize(
    ("name", "expected"),
    [("next_step", "next_step"), ("NextStep", "next_step"), ("SameStep", "same_step"), ("Disabled", "disabled")],
)
def test_autoreset_modes_are_known_by_gymnasiums_names(name: str, expected: str) -> None:
    assert autoreset_mode_of(name) == expected
    with pytest.raises(DataError, match="next_step"):
        autoreset_mode_of("sometimes")


def test_gymnasiums_modes_are_known() -> None:
    vector = pytest.importorskip("gymnasium.vector")
    assert [autoreset_mode_of(mode) for mode in vector.AutoresetMode] == ["next_step", "same_step", "disabled"]


def test_a_step_that_does_not_fit_changes_nothing() -> None:
    run = Run(2, [VectorItem("t", 1)], "same_step", True, None)
    run.step([False, False])
    good = [np.zeros(2, "i2"), np.zeros(2, np.bool_), np.zeros((2, 2), "f4")]
    for place, bad in ((0, np.zeros(2, "i4")), (1, np.zeros(3, np.bool_)), (2, np.zeros((2, 3), "f4"))):
        with pytest.raises(DataError, match="expected"):
            run.log.append([bad if i == place else leaf for i, leaf in enumerate(good)], np.zeros(2, np.bool_), [], 0.0)
    with pytest.raises(DataError, match="final"):
        run.log.append(good, np.array([True, False]), [], 0.0)
    run.step([True, False])
    run.log.cut()
    run.ship()
    assert sorted(run.made()) == sorted(run.expected())


# What episodes led to.


def test_final_observations_are_read_in_the_forms_there_are() -> None:
    ends = np.array([True, False, True])
    plain = {"obs": np.arange(6, dtype="f4").reshape(3, 2)}
    objects = np.full(3, None, object)
    objects[0], objects[2] = np.array([0, 1], "f4"), np.array([4, 5], "f4")
    nested = np.full(3, None, object)
    nested[0], nested[2] = {"x": np.array([0, 1], "f4")}, {"x": np.array([4, 5], "f4")}
    for final in (plain, {"obs": objects}):
        assert final_values(final, [OBS], ends)[0].tolist() == [[0, 1], [4, 5]]
    column = Column(("obs", "x"), np.dtype("f4"), (2,))
    assert final_values({"obs": nested}, [column], ends)[0].tolist() == [[0, 1], [4, 5]]
    text = Column(("obs",), "str", ())
    for words in (np.array(["a", None, "b"], object), np.array(["a", "", "b"])):
        assert final_values({"obs": words}, [text], ends)[0].tolist() == ["a", "b"]
    pairs = np.array([["a", "b"]] * 3, object)
    assert final_values({"obs": pairs}, [Column(("obs",), "str", (2,))], ends)[0].tolist() == [["a", "b"]] * 2
    with pytest.raises(DataError, match=r"expected bytes\[\]"):
        final_values({"obs": np.array(["a", "", "b"])}, [Column(("obs",), "bytes", ())], ends)


@pytest.mark.parametrize(
    "final",
    [
        {},
        {"obs": np.zeros((2, 2), "f4")},
        {"obs": np.zeros((3, 3), "f4")},
        {"obs": np.zeros((3, 2))},
        {"obs": np.array([None, None, None])},
        {"obs": np.zeros((3, 2), "f4"), "a": np.zeros(3, "i2")},
    ],
)
def test_final_observations_that_do_not_fit_are_refused(final: Any) -> None:
    with pytest.raises(DataError):
        final_values(final, [OBS], np.array([True, False, True]))
