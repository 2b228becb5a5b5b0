"""Sample replies to arrays: every path agrees with plain numpy, and no reply is read outside its bytes."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from itertools import groupby
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from replayd_client import item_windows, sampled_chunks
from replayd_client.array_messages import BLOB_RECORD, ShownItems
from replayd_client.batches import SampledBatch
from replayd_client.codecs import DELTA, OMITTED, SPARSE, ColumnCodec, encode_chunk
from replayd_client.columns import Column, Schema
from replayd_client.errors import DataError
from replayd_client.item_windows import ItemWindows
from replayd_client.templates import OutputColumn, Part, Template, runs_of

COLUMNS = (
    Column(("obs", "pixels"), "uint8", (12, 12)),
    Column(("obs", "empty"), "float32", (0, 2)),
    Column(("reward",), "float32", ()),
    Column(("done",), "bool", ()),
    Column(("state", 0), "float64", (3,)),
    Column(("state", 1), "int16", (2, 1)),
    Column(("obs", "value"), "float32", ()),
)


@dataclass
class Window:
    first_chunk: int
    chunks: int
    offset: int
    length: int
    template: int


@dataclass
class Experience:
    """Chunks with their plain data, from which a reply is made and against which it is compared."""

    schemas: list[Schema]
    schema_of: list[int]
    data: list[list[NDArray[Any]]]
    """Of each chunk, of each column: [rows, *shape]."""
    present: list[list[NDArray[np.bool_] | None]]
    codecs: list[str]
    """Of each column."""

    def rows(self, chunk: int) -> int:
        return len(self.data[chunk][0])

    def reply(self, windows: list[Window], templates: list[Template], frames: str = "one") -> SampledBatch:
        records, payloads = [], []
        choosers = [ColumnCodec(column, codec) for column, codec in zip(COLUMNS, self.codecs, strict=True)]
        for number, arrays in enumerate(self.data):
            schema = self.schemas[self.schema_of[number]]
            some, payload = encode_chunk(schema, arrays, choosers[: len(arrays)], self.present[number])
            records.append(some)
            payloads.append(payload)
        m = len(windows)
        shown = ShownItems(
            keys=np.arange(m, dtype="u8"),
            priorities=np.arange(m) / 2,
            times_sampled=np.ones(m, "u4"),
            chunk=np.array([w.first_chunk for w in windows], "u4"),
            chunks=np.array([w.chunks for w in windows], "u4"),
            offset=np.array([w.offset for w in windows], "u4"),
            length=np.array([w.length for w in windows], "u4"),
            templates=[template.encode() for template in templates],
            template_of=np.array([w.template for w in windows], "u2"),
            rows=np.array([self.rows(chunk) for chunk in range(len(self.data))], "u4"),
            schemas=[schema.encode() for schema in self.schemas],
            schema_of=np.array(self.schema_of, "u2"),
            records=np.concatenate(records) if records else np.zeros(0, BLOB_RECORD),
            body=payloads if frames == "each" else [b"".join(payloads)],
        )
        return SampledBatch(shown, np.full(m, 0.5), np.full(m, 9, "u8"))

    def column(self, chunk: int, number: int) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """A chunk's rows of a column, and which of them there are."""
        rows = self.rows(chunk)
        if number >= len(self.data[chunk]):
            return np.zeros((rows, *COLUMNS[number].shape)), np.zeros(rows, bool)
        present = self.present[chunk][number]
        return self.data[chunk][number], np.ones(rows, bool) if present is None else present

    def expected(self, window: Window, templates: list[Template]) -> dict[Any, NDArray[Any]]:
        """What the item shows, by path. Raises LookupError if it shows a row which lacks the column."""
        chunks = range(window.first_chunk, window.first_chunk + window.chunks)
        template = templates[window.template]
        if template.is_identity:
            schema = self.schemas[self.schema_of[chunks[-1]]]
            outputs = [OutputColumn(c.path, False, ((n, ()),)) for n, c in enumerate(schema.columns)]
        else:
            outputs = list(template.outputs)
        found = {}
        for output in outputs:
            cells = []
            for number, runs in output.parts:
                data, there = zip(*(self.column(chunk, number) for chunk in chunks), strict=True)
                rows = [start + n * stride for start, length, stride in runs for n in range(length)]
                picked = np.array(rows or range(window.length)) + window.offset
                if not np.concatenate(there)[picked].all():
                    raise LookupError(output.path)
                cells.append(np.concatenate(data).astype(data[-1].dtype)[picked])
            shown = np.concatenate(cells)
            found[output.path] = shown[0] if output.squeeze else shown
        return found


def values(column: Column, rows: int, seed: int) -> NDArray[Any]:
    rng = np.random.default_rng(seed)
    if column.dtype.kind == "b":
        return rng.integers(0, 2, (rows, *column.shape)).astype(bool)
    high = 3 if seed % 2 else 200
    return rng.integers(0, high, (rows, *column.shape)).astype(column.dtype)


@st.composite
def experiences(draw: st.DrawFn, *, codecs: tuple[str, ...] = ("raw", "blosc2", "auto")) -> Experience:
    width = draw(st.integers(1, len(COLUMNS)))
    chunks = draw(st.integers(1, 7))
    same_rows = draw(st.booleans())
    k = draw(st.integers(1, 9))
    rows = [k if same_rows else draw(st.integers(1, 9)) for _ in range(chunks)]
    # Columns may come later in the stream, and rows may lack some.
    early = draw(st.integers(1, width))
    change = draw(st.integers(0, chunks))
    widths = [early] * change + [width] * (chunks - change)
    data = [
        [values(c, count, 31 * n + i) for i, c in enumerate(COLUMNS[:some])]
        for n, (count, some) in enumerate(zip(rows, widths, strict=True))
    ]
    sparse = draw(st.sets(st.integers(0, width - 1), max_size=2)) if draw(st.booleans()) else set()
    present = [
        [np.array(draw(st.lists(st.booleans(), min_size=n, max_size=n))) if i in sparse else None for i in range(some)]
        for n, some in zip(rows, widths, strict=True)
    ]
    return Experience(
        [Schema(COLUMNS[:early]), Schema(COLUMNS[:width])],
        [0] * change + [1] * (chunks - change),
        data,
        present,
        [draw(st.sampled_from(codecs)) for _ in COLUMNS],
    )


def draw_window(draw: st.DrawFn, experience: Experience, length: int | None, template: int) -> Window | None:
    n = len(experience.data)
    first = draw(st.integers(0, n - 1))
    offset = draw(st.integers(0, experience.rows(first) - 1))
    rows = [experience.rows(chunk) for chunk in range(first, n)]
    rest = sum(rows) - offset
    if length is None:
        length = draw(st.integers(1, rest))
    elif length > rest:
        return None
    chunks = int(np.searchsorted(np.cumsum(rows), offset + length)) + 1
    return Window(first, chunks, offset, length, template)


def draw_template(draw: st.DrawFn, experience: Experience, window: Window) -> Template:
    """One that fits every window of as many rows over as many columns."""
    if draw(st.booleans()):
        return Template.identity
    width, length = len(experience.data[window.first_chunk + window.chunks - 1]), window.length
    outputs = []
    for number in draw(st.lists(st.integers(0, width - 1), min_size=1, max_size=4)):
        rows = draw(st.lists(st.integers(0, length - 1), max_size=5) | st.just(list(range(length))))
        squeeze = len(rows) == 1 and draw(st.booleans())
        parts = joining(draw, number, width, rows) if rows else ((number, ()),)
        outputs.append(OutputColumn((f"out{len(outputs)}",), squeeze, parts))
    return Template(tuple(outputs))


def joining(draw: st.DrawFn, number: int, width: int, rows: list[int]) -> tuple[Part, ...]:
    """These rows, each of one of the columns that are like column `number`."""
    alike = [n for n in range(width) if COLUMNS[n].is_like(COLUMNS[number])]
    columns = [number] * len(rows)
    if draw(st.booleans()):
        columns = draw(st.lists(st.sampled_from(alike), min_size=len(rows), max_size=len(rows)))
    parts = [[row for _, row in cells] for _, cells in groupby(zip(columns, rows, strict=True), lambda cell: cell[0])]
    numbers = [n for n, _ in groupby(columns)]
    return tuple((n, tuple(runs_of(np.array(some)))) for n, some in zip(numbers, parts, strict=True))


def check_array(found: NDArray[Any], expected: NDArray[Any]) -> None:
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    assert np.array_equal(found, expected)
    assert found.flags.writeable
    assert found.flags.c_contiguous
    assert found.flags.aligned
    assert isinstance(found, np.ndarray)


def check_items(experience: Experience, windows: list[Window], templates: list[Template], batch: SampledBatch) -> None:
    for number, window in enumerate(windows):
        try:
            expected = experience.expected(window, templates)
        except LookupError:
            with pytest.raises(DataError, match="lack"):
                batch.item(number)
            continue
        paths, arrays = batch.item(number)
        assert list(paths) == list(expected)
        for path, array in zip(paths, arrays, strict=True):
            check_array(array, expected[path])


@given(st.data())
@settings(deadline=None)
def test_every_item_shows_what_numpy_shows(data: st.DataObject) -> None:
    experience = data.draw(experiences())
    windows, templates = [], []
    for number in range(data.draw(st.integers(1, 5))):
        window = draw_window(data.draw, experience, None, number)
        assert window is not None
        windows.append(window)
        templates.append(draw_template(data.draw, experience, window))
    frames = data.draw(st.sampled_from(["one", "each"]))
    check_items(experience, windows, templates, experience.reply(windows, templates, frames))


@given(st.data())
@settings(deadline=None)
def test_a_stack_is_the_items_one_over_the_other_on_every_path(data: st.DataObject) -> None:
    experience = data.draw(experiences())
    first = draw_window(data.draw, experience, None, 0)
    assert first is not None
    others = [draw_window(data.draw, experience, first.length, 0) for _ in range(data.draw(st.integers(0, 5)))]
    windows = [first, *(window for window in others if window is not None)]
    template = draw_template(data.draw, experience, first)
    schemas = {experience.schemas[experience.schema_of[w.first_chunk + w.chunks - 1]] for w in windows}
    try:
        expected = [experience.expected(window, [template]) for window in windows]
    except LookupError:
        assume(False)
    assume(not template.is_identity or len(schemas) == 1)
    results = []
    for frames in ("one", "each"):
        batch = experience.reply(windows, [template], frames)
        results.append(batch.windows.stack())
        # Payloads of a frame each, treated as large ones: the way of chunks that cannot be joined.
        batch = experience.reply(windows, [template], frames)
        windows_of = batch.windows
        windows_of.store.is_packed = False
        results.append(windows_of.stack())
        # However small they are, piece by piece.
        with patch.object(item_windows, "PIECE_BYTES", 1):
            pieces = experience.reply(windows, [template], frames).windows
            pieces.store.is_packed = False
            results.append(pieces.stack())
    # Into arrays that are there already.
    for is_packed in (True, False):
        windows_of = experience.reply(windows, [template]).windows
        windows_of.store.is_packed = is_packed
        places = [np.empty_like(array) for array in results[0][1]]
        results.append(windows_of.stack(places))
        assert all(np.shares_memory(a, b) or not a.size for a, b in zip(results[-1][1], places, strict=True))
    for paths, arrays in results:
        assert list(paths) == list(expected[0])
        for path, array in zip(paths, arrays, strict=True):
            check_array(array, np.stack([item[path] for item in expected]))


def experience_of(rows: list[int], codec: str = "raw") -> Experience:
    data = [[values(c, count, 31 * n + i) for i, c in enumerate(COLUMNS)] for n, count in enumerate(rows)]
    present: list[list[NDArray[np.bool_] | None]] = [[None] * len(COLUMNS) for _ in rows]
    return Experience([Schema(COLUMNS)], [0] * len(rows), data, present, [codec] * len(COLUMNS))


WHOLE = [Window(n, 1, 0, 5, 0) for n in range(4)]


@pytest.mark.parametrize("codec", ["raw", "blosc2", "auto"])
def test_a_stack_is_a_nest_of_batch_and_time(codec: str) -> None:
    experience = experience_of([5] * 4, codec)
    nest = experience.reply(WHOLE, [Template.identity]).stack()
    assert {name: getattr(value, "shape", None) for name, value in nest.items()} == {
        "obs": None,
        "reward": (4, 5),
        "done": (4, 5),
        "state": None,
    }
    assert nest["obs"]["pixels"].shape == (4, 5, 12, 12)
    assert nest["obs"]["empty"].shape == (4, 5, 0, 2)
    assert [array.shape for array in nest["state"]] == [(4, 5, 3), (4, 5, 2, 1)]
    assert np.array_equal(nest["obs"]["pixels"], np.stack([chunk[0] for chunk in experience.data]))


def test_absent_indices_mean_the_first_schema_and_template() -> None:
    batch = experience_of([5] * 4).reply(WHOLE, [Template.identity])
    shown = dataclasses.replace(batch.shown, template_of=None, schema_of=None)
    same = SampledBatch(shown, batch.probabilities, batch.table_sizes)
    assert np.array_equal(batch.stack()["reward"], same.stack()["reward"])
    assert all(np.array_equal(a, b) for a, b in zip(batch.item(2)[1], same.item(2)[1], strict=True))


def test_results_do_not_share_memory_with_the_body_or_each_other() -> None:
    experience = experience_of([5] * 2)
    windows = [Window(0, 1, 0, 5, 0), Window(0, 1, 0, 5, 0), Window(1, 1, 0, 5, 0)]
    for frames in ("one", "each"):
        batch = experience.reply(windows, [Template.identity], frames)
        body = [bytes(frame) for frame in batch.shown.body]
        for _, arrays in batch:
            for array in arrays:
                array.fill(1)
        check_items(experience, windows, [Template.identity], batch)
        nest = batch.stack()
        nest["reward"].fill(7)
        assert np.array_equal(batch.stack()["reward"][1], experience.data[0][2])
        assert [bytes(frame) for frame in batch.shown.body] == body


def test_the_info_block_has_an_array_for_each_word() -> None:
    batch = experience_of([5] * 4).reply(WHOLE, [Template.identity])
    info = batch.info
    assert info.key.tolist() == [0, 1, 2, 3]
    assert info.priority.tolist() == [0, 0.5, 1, 1.5]
    assert info.probability.tolist() == [0.5] * 4
    assert info.table_size.tolist() == [9] * 4
    assert info.times_sampled.tolist() == [1] * 4
    assert len(batch) == 4


def test_items_of_different_lengths_or_templates_cannot_be_stacked() -> None:
    experience = experience_of([5] * 2)
    windows = [Window(0, 1, 0, 5, 0), Window(1, 1, 0, 3, 0)]
    batch = experience.reply(windows, [Template.identity])
    with pytest.raises(DataError, match=r"different lengths \(3, 5\)"):
        batch.stack()
    check_items(experience, windows, [Template.identity], batch)
    templates = [Template.identity, Template((OutputColumn(("x",), False, ((0, ()),)),))]
    batch = experience.reply([Window(0, 1, 0, 5, 0), Window(1, 1, 0, 5, 1)], templates)
    with pytest.raises(DataError, match="2 different templates"):
        batch.stack()
    with pytest.raises(DataError, match="without items"):
        Experience([], [], [], [], ["raw"] * len(COLUMNS)).reply([], []).stack()


def test_a_chunk_that_items_share_is_decoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    experience = experience_of([5] * 2, "blosc2")
    for chunk in experience.data:
        chunk[0].fill(1)
    windows = [Window(0, 1, 0, 5, 0), Window(0, 1, 1, 4, 0), Window(0, 2, 3, 3, 0), Window(1, 1, 0, 5, 0)]
    calls = []
    decode = sampled_chunks.decode_rows
    monkeypatch.setattr(sampled_chunks, "decode_rows", lambda *args: calls.append(1) or decode(*args))
    template = [Template((OutputColumn(("x",), False, ((0, ()),)),))]
    check_items(experience, windows, template, experience.reply(windows, template))
    assert len(calls) == 2


# --- sparse columns, columns that came later, columns that were not sent


def sparse_experience(codec: str) -> Experience:
    experience = experience_of([5, 5], codec)
    experience.present[0][0] = np.array([True, False, True, True, True])
    experience.present[1][0] = np.zeros(5, bool)
    return experience


@pytest.mark.parametrize("codec", ["raw", "blosc2"])
def test_rows_that_lack_a_column_can_be_passed_over_but_not_shown(codec: str) -> None:
    experience = sparse_experience(codec)
    shown = [Template((OutputColumn(("x",), False, ((0, ((0, 1, 1), (2, 3, 1))),)),))]
    window = [Window(0, 1, 0, 5, 0)]
    batch = experience.reply(window, shown)
    check_items(experience, window, shown, batch)
    assert np.array_equal(batch.stack()["x"][0], experience.data[0][0][[0, 2, 3, 4]])
    for template, lacking in [
        (Template.identity, Window(0, 1, 0, 5, 0)),
        (Template.identity, Window(0, 2, 2, 4, 0)),
        (Template((OutputColumn(("x",), True, ((0, ((1, 1, 1),)),)),)), Window(0, 1, 0, 5, 0)),
    ]:
        batch = experience.reply([lacking], [template])
        with pytest.raises(DataError, match="lack the column"):
            batch.item(0)
        with pytest.raises(DataError, match="lack the column"):
            batch.stack()


def grown_experience() -> Experience:
    experience = experience_of([5, 5, 5])
    experience.schemas = [Schema(COLUMNS[:3]), Schema(COLUMNS)]
    experience.schema_of = [0, 1, 1]
    experience.data[0] = experience.data[0][:3]
    experience.present[0] = [None] * 3
    return experience


def test_a_column_that_came_later_is_shown_where_it_is() -> None:
    experience = grown_experience()
    late = OutputColumn(("new",), False, ((4, ((3, 4, 1),)),))
    template = [Template((OutputColumn(("r",), False, ((2, ()),)), late))]
    windows = [Window(0, 2, 3, 7, 0), Window(1, 2, 1, 7, 0)]
    batch = experience.reply(windows, template)
    check_items(experience, windows, template, batch)
    stacked = batch.stack()
    for number, window in enumerate(windows):
        expected = experience.expected(window, template)
        assert np.array_equal(stacked["new"][number], expected["new",])
        assert np.array_equal(stacked["r"][number], expected["r",])


def test_a_column_that_came_later_is_not_shown_where_it_is_not() -> None:
    experience = grown_experience()
    late = Template((OutputColumn(("new",), False, ((4, ()),)),))
    for template in (late, Template.identity):
        batch = experience.reply([Window(0, 2, 3, 7, 0)], [template])
        with pytest.raises(DataError, match="lack"):
            batch.item(0)
        with pytest.raises(DataError):
            batch.stack()
    batch = experience.reply([Window(0, 1, 0, 5, 0), Window(1, 1, 0, 5, 0)], [Template.identity])
    assert [len(arrays) for _, arrays in batch] == [3, len(COLUMNS)]
    with pytest.raises(DataError, match="columns"):
        batch.stack()
    batch = experience.reply([Window(0, 1, 0, 5, 0)], [late])
    with pytest.raises(DataError, match="no column 4"):
        batch.item(0)


def test_columns_of_other_streams_with_another_shape_cannot_be_stacked() -> None:
    experience = experience_of([5, 5])
    other = Schema((Column(("obs", "pixels"), "uint8", (144,)), *COLUMNS[1:]))
    experience.schemas.append(other)
    experience.schema_of = [0, 1]
    experience.data[1][0] = experience.data[1][0].reshape(5, 144)
    windows = [Window(0, 1, 0, 5, 0), Window(1, 1, 0, 5, 0)]
    batch = experience.reply(windows, [Template.identity])
    check_items(experience, windows, [Template.identity], batch)
    with pytest.raises(DataError, match="obs/pixels"):
        batch.stack()


def test_a_column_that_was_not_sent_is_needed_only_by_those_who_show_it() -> None:
    experience = experience_of([5] * 4)
    template = Template((OutputColumn(("reward",), False, ((2, ()),)),))
    batch = experience.reply(WHOLE, [template])
    size = COLUMNS[0].row_bytes * 5
    payload = len(batch.shown.body[0]) // 4
    batch.shown.records["stored_bytes"][:: len(COLUMNS)] = 0
    batch.shown.records["flags"][:: len(COLUMNS)] = OMITTED
    batch.shown.body = [b"".join(bytes(batch.shown.body[0][n * payload + size : (n + 1) * payload]) for n in range(4))]
    check_items(experience, WHOLE, [template], batch)
    assert np.array_equal(batch.stack()["reward"], np.stack([chunk[2] for chunk in experience.data]))
    whole = dataclasses.replace(batch, shown=dataclasses.replace(batch.shown, templates=[b""]))
    with pytest.raises(DataError, match="obs/pixels: the column of a chunk that an item shows was not sent"):
        whole.stack()
    with pytest.raises(DataError, match="obs/pixels: the column of a chunk that an item shows was not sent"):
        whole.item(0)


# --- servers that lie


def changed(**fields: Any) -> SampledBatch:
    """A reply in which these fields are others: of what is shown, or of what is said of the draws."""
    batch = experience_of([5] * 4).reply(WHOLE, [Template.identity])
    draws = {name: fields.pop(name) for name in ("probabilities", "table_sizes") if name in fields}
    return dataclasses.replace(batch, shown=dataclasses.replace(batch.shown, **fields), **draws)


def numbers(*values: int) -> NDArray[np.uint32]:
    return np.array(values, "u4")


def records(**changes: Any) -> NDArray[np.void]:
    blobs = experience_of([5] * 4).reply(WHOLE, [Template.identity]).shown.records.copy()
    for name, value in changes.items():
        blobs[name][6] = value
    return blobs


BODY = bytes(experience_of([5] * 4).reply(WHOLE, [Template.identity]).shown.body[0])


@pytest.mark.parametrize(
    "fields",
    [
        {"keys": np.arange(3, dtype="u8")},
        {"priorities": np.zeros(5)},
        {"probabilities": np.zeros(3)},
        {"table_sizes": np.zeros(5, "u8")},
        {"chunk": numbers(0, 1, 2)},
        {"chunk": numbers(0, 1, 2, 4)},
        {"chunk": numbers(0, 1, 2, 2**32 - 1)},
        {"chunks": numbers(1, 1, 1, 0)},
        {"chunks": numbers(1, 1, 1, 2)},
        {"chunks": numbers(1, 1, 1, 2**32 - 1)},
        {"chunks": numbers(2, 1, 1, 1)},
        {"offset": numbers(0, 0, 0, 1)},
        {"offset": numbers(0, 0, 0, 2**32 - 1)},
        {"offset": numbers(5, 0, 0, 0), "chunks": numbers(2, 1, 1, 1)},
        {"length": numbers(5, 5, 5, 6)},
        {"length": numbers(5, 5, 5, 0)},
        {"length": numbers(5, 5, 5, 2**32 - 1)},
        {"template_of": np.array([0, 0, 0, 1], "u2")},
        {"template_of": np.zeros(3, "u2")},
        {"templates": [], "template_of": None},
        {"templates": [b"\x91\x00"]},
        {"rows": numbers(5, 5, 5)},
        {"rows": numbers(5, 5, 5, 0)},
        {"rows": numbers(5, 5, 5, 6)},
        {"rows": numbers(5, 5, 5, 2**32 - 1)},
        {"schema_of": np.array([0, 0, 0, 1], "u2")},
        {"schema_of": np.zeros(5, "u2")},
        {"schemas": [], "schema_of": None},
        {"schemas": [b""]},
        {"schemas": [Schema(COLUMNS[:2]).encode()]},
        {"records": records()[:-1]},
        {"records": records(stored_bytes=1)},
        {"records": records(codec=3)},
        {"records": records(flags=8)},
        {"records": records(zero=1)},
        {"records": records(flags=OMITTED)},
        {"body": [BODY[:-1]]},
        {"body": [BODY + b"\0"]},
        {"body": []},
        {"body": [BODY[:7], BODY[7:]]},
    ],
)
def test_a_reply_whose_parts_do_not_fit_is_refused(fields: dict[str, Any]) -> None:
    batch = changed(**fields)
    for use in (lambda: batch.windows, batch.stack, lambda: list(batch)):
        with pytest.raises(DataError):
            use()


def test_the_unchanged_reply_is_taken() -> None:
    assert len(changed().windows) == len(changed(body=[BODY, b""]).windows) == 4


def test_a_small_reply_cannot_ask_for_endless_memory() -> None:
    column = Column(("x",), "uint8", (2**20,))
    records, payload = encode_chunk(
        Schema((column,)), [np.zeros((4, *column.shape), "uint8")], [ColumnCodec(column, "blosc2")], [None]
    )
    m = 16384
    batch = changed(
        **{name: np.zeros(m, "u8") for name in ("keys", "table_sizes")},
        **{name: np.zeros(m) for name in ("priorities", "probabilities")},
        **{name: np.zeros(m, "u4") for name in ("times_sampled", "chunk", "offset")},
        chunks=np.ones(m, "u4"),
        length=np.full(m, 4, "u4"),
        template_of=None,
        rows=numbers(4),
        schemas=[Schema((column,)).encode()],
        schema_of=None,
        records=records,
        body=[payload],
    )
    with pytest.raises(DataError, match="more than the limit"):
        batch.stack()
    assert not batch.item(m - 1)[1][0].any()
    many = Template(tuple(OutputColumn((str(n),), False, ((0, ((0, 2**20, 0),)),)) for n in range(5)))
    other = dataclasses.replace(batch.shown, templates=[many.encode()])
    with pytest.raises(DataError, match="rows"):
        ItemWindows(other).item(0)


def test_rows_of_nothing_cannot_ask_for_endless_memory_either() -> None:
    column = Column(("x",), "uint8", (0, 2**20))
    records, payload = encode_chunk(
        Schema((column,)), [np.zeros((2**16, *column.shape), "uint8")], [ColumnCodec(column)], [None]
    )
    batch = changed(
        chunk=numbers(0, 0, 0, 0),
        length=np.full(4, 2**16, "u4"),
        rows=numbers(2**16),
        schemas=[Schema((column,)).encode()],
        schema_of=None,
        records=records,
        body=[payload],
    )
    for use in (batch.stack, lambda: batch.item(0)):
        with pytest.raises(DataError, match="more than the limit"):
            use()


@given(st.data())
@settings(deadline=None, max_examples=200)
def test_a_damaged_reply_gives_arrays_or_a_data_error(data: st.DataObject) -> None:
    experience = data.draw(experiences())
    window = draw_window(data.draw, experience, None, 0)
    assert window is not None
    template = draw_template(data.draw, experience, window)
    batch = experience.reply([window] * 2, [template], data.draw(st.sampled_from(["one", "each"])))
    for name in data.draw(st.sets(st.sampled_from(["chunk", "chunks", "offset", "length", "rows", "records", "body"]))):
        if name == "body":
            frames = [bytearray(frame) for frame in batch.shown.body]
            frame = data.draw(st.sampled_from(frames))
            if frame:
                frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
            batch.shown.body = frames
        elif name == "records":
            field = data.draw(st.sampled_from(["stored_bytes", "codec", "flags"]))
            place = data.draw(st.integers(0, len(batch.shown.records) - 1))
            small = st.sampled_from([0, 1, 2, DELTA | SPARSE, OMITTED])
            batch.shown.records[field][place] = data.draw(small | st.integers(0, 255))
        else:
            array = getattr(batch.shown, name)
            array[data.draw(st.integers(0, len(array) - 1))] = data.draw(st.integers(0, 12) | st.integers(0, 2**32 - 1))
    for use in (batch.stack, lambda: list(batch)):
        try:
            use()
        except DataError:
            continue
