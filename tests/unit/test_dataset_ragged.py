"""Items of different lengths in one batch hold what each item shows by itself, as lists and padded."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from replayd_client import batch_memory, ragged
from replayd_client.batch_memory import BatchMemory
from replayd_client.batches import SampledBatch
from replayd_client.columns import Schema
from replayd_client.errors import DataError
from replayd_client.ragged import check_ragged, joined
from replayd_client.structure import Structure
from replayd_client.templates import OutputColumn, Template
from tests.unit.test_batches import (
    COLUMNS,
    Experience,
    Window,
    check_array,
    draw_template,
    draw_window,
    experience_of,
    experiences,
    joining,
)

Item = dict[Any, NDArray[Any]]


def replies(draw: st.DrawFn) -> tuple[list[SampledBatch], list[Item]]:
    """One or several replies, and what each of their items shows; templates differ in rows but not in columns."""
    parts: list[SampledBatch] = []
    expected: list[Item] = []
    outputs: list[tuple[int, bool]] = []
    for _ in range(draw(st.integers(1, 3))):
        experience: Experience = draw(experiences())
        windows: list[Window] = []
        templates: list[Template] = []
        for _ in range(draw(st.integers(1, 5))):
            window = draw_window(draw, experience, None, len(templates))
            assert window is not None
            width = len(experience.data[window.first_chunk + window.chunks - 1])
            if not outputs:
                numbers = draw(st.lists(st.integers(0, width - 1), min_size=1, max_size=3))
                outputs = [(number, draw(st.booleans())) for number in numbers]
            if any(number >= width for number, _ in outputs):
                continue
            some = []
            for place, (number, squeeze) in enumerate(outputs):
                rows = draw(st.lists(st.integers(0, window.length - 1), min_size=1, max_size=1 if squeeze else 4))
                whole = not squeeze and draw(st.booleans())
                shows = ((number, ()),) if whole else joining(draw, number, width, rows)
                some.append(OutputColumn((f"out{place}",), squeeze, shows))
            templates.append(Template(tuple(some)))
            windows.append(window)
        try:
            shown = [experience.expected(window, templates) for window in windows]
        except LookupError:
            continue
        if windows:
            part = experience.reply(windows, templates, draw(st.sampled_from(["one", "each"])))
            part.windows.store.is_packed &= draw(st.booleans())
            parts.append(part)
            expected += shown
    if not parts:
        whole_items = experience_of([2, 3])
        windows = [Window(0, 1, 0, 2, 0), Window(1, 1, 0, 3, 0)]
        parts = [whole_items.reply(windows, [Template.identity])]
        expected = [whole_items.expected(window, [Template.identity]) for window in windows]
    return parts, expected


def leaves(nest: Any, paths: list[Any]) -> list[Any]:
    """What stands at each path: a list of the batch's arrays is a leaf here."""
    found = []
    for path in paths:
        value = nest
        for component in path:
            value = value[component]
        found.append(value)
    return found


@given(st.data())
@settings(max_examples=40)
def test_a_list_holds_the_array_of_each_item(data: st.DataObject) -> None:
    parts, expected = replies(data.draw)
    info, nest, mask = joined(parts, "list")
    assert mask is None
    assert len(info.key) == len(expected)
    paths = list(expected[0])
    for path, column in zip(paths, leaves(nest, paths), strict=True):
        assert isinstance(column, list)
        assert len(column) == len(expected)
        for array, item in zip(column, expected, strict=True):
            check_array(array, item[path])


@given(st.data())
@settings(max_examples=40)
def test_padding_holds_each_item_and_zeros_behind_it(data: st.DataObject) -> None:
    parts, expected = replies(data.draw)
    _, nest, masks = joined(parts, "pad")
    paths = list(expected[0])
    for path, column, mask in zip(paths, leaves(nest, paths), leaves(masks, paths), strict=True):
        assert mask.dtype == np.bool_
        assert column.shape[: mask.ndim] == mask.shape
        assert column.flags.c_contiguous
        assert column.flags.writeable
        longest = max((len(item[path]) for item in expected), default=0) if mask.ndim == 2 else None
        for array, shown, item in zip(column, mask, expected, strict=True):
            if longest is None:
                assert shown
                assert np.array_equal(array, item[path])
                continue
            length = len(item[path])
            assert array.shape == (longest, *item[path].shape[1:])
            assert shown.tolist() == [True] * length + [False] * (longest - length)
            assert np.array_equal(array[:length], item[path])
            assert not array[length:].any()


@given(st.data())
@settings(max_examples=40)
def test_stacking_works_where_all_lengths_are_equal_and_names_them_where_not(data: st.DataObject) -> None:
    parts, expected = replies(data.draw)
    shapes = [{item[path].shape for item in expected} for path in expected[0]]
    if any(len(some) > 1 for some in shapes):
        with pytest.raises(DataError, match="different lengths .* ragged='list' or ragged='pad'") as caught:
            joined(parts, "error")
        assert len(caught.value.detail["lengths"]) > 1
        return
    # Small arrays, and all of them as if they were large.
    for least in (ragged.REUSED_BYTES, 0):
        with patch.object(ragged, "REUSED_BYTES", least), patch.object(batch_memory, "REUSED_BYTES", least):
            _, nest, mask = joined(parts, "error", BatchMemory())
        assert mask is None
        for path, column in zip(expected[0], leaves(nest, list(expected[0])), strict=True):
            check_array(column, np.stack([item[path] for item in expected]))


@given(st.data())
@settings(max_examples=40)
def test_items_of_all_columns_are_lists_and_padded_too(data: st.DataObject) -> None:
    experience = data.draw(experiences())
    windows = [draw_window(data.draw, experience, None, 0) for _ in range(data.draw(st.integers(1, 5)))]
    items = [window for window in windows if window is not None]
    try:
        expected = [experience.expected(window, [Template.identity]) for window in items]
    except LookupError:
        return
    batch = experience.reply(items, [Template.identity])
    if len({tuple(item) for item in expected}) > 1:
        with pytest.raises(DataError, match="some items show the columns"):
            joined([batch], "list")
        return
    paths = list(expected[0])
    lists = leaves(joined([batch], "list")[1], paths)
    padded = leaves(joined([batch], "pad")[1], paths)
    for path, column, block in zip(paths, lists, padded, strict=True):
        for number, item in enumerate(expected):
            check_array(column[number], item[path])
            assert np.array_equal(block[number, : len(item[path])], item[path])


@given(st.data())
@settings(max_examples=40)
def test_one_item_drawn_twice_is_two_arrays(data: st.DataObject) -> None:
    experience = data.draw(experiences())
    window = draw_window(data.draw, experience, None, 0)
    assert window is not None
    template = draw_template(data.draw, experience, window)
    try:
        expected = experience.expected(window, [template])
    except LookupError:
        return
    _, nest, _ = joined([experience.reply([window, window], [template])], "list")
    for path, (first, second) in zip(expected, leaves(nest, list(expected)), strict=True):
        first.fill(0)
        assert np.array_equal(second, expected[path])


def test_columns_of_other_places_in_their_schemas_are_one_column() -> None:
    # Two writers whose steps grew in different order.
    experience = experience_of([3, 2])
    swapped = Schema((COLUMNS[3], COLUMNS[2], *COLUMNS[:2], *COLUMNS[4:]))
    other = [experience.data[1][n] for n in (3, 2, 0, 1, 4, 5, 6)]
    experience.schemas.append(swapped)
    experience.schema_of[1] = 1
    # `reply` encodes by COLUMNS, which is fine for raw blobs.
    experience.data[1] = other
    rows = ((0, 1, 1), (1, 1, 1))
    one = Template((OutputColumn(("r",), False, ((2, rows),)),))
    two = Template((OutputColumn(("r",), False, ((1, ()),)),))
    batch = experience.reply([Window(0, 1, 0, 3, 0), Window(1, 1, 0, 2, 1)], [one, two])
    _, data, _ = joined([batch], "error")
    assert np.array_equal(data["r"], np.stack([experience.data[0][2][:2], other[1]]))


def test_parts_that_show_other_columns_or_kinds_are_refused() -> None:
    experience = experience_of([2])
    window = [Window(0, 1, 0, 2, 0)]

    def part(path: str, column: int, squeeze: bool = False) -> SampledBatch:
        runs = ((0, 1, 1),)
        return experience.reply(window, [Template((OutputColumn((path,), squeeze, ((column, runs),)),))])

    for asked in ("error", "list", "pad"):
        check_ragged(asked)
        with pytest.raises(DataError, match="the columns a, others b"):
            joined([part("a", 2), part("b", 2)], asked)  # type: ignore[arg-type]
        with pytest.raises(DataError, match=r"a: some items show bool\[\], others float32\[\]"):
            joined([part("a", 2), part("a", 3)], asked)  # type: ignore[arg-type]
        with pytest.raises(DataError, match=r"float32\[\], others float32\[\] squeezed"):
            joined([part("a", 2), part("a", 2, True)], asked)  # type: ignore[arg-type]
    with pytest.raises(DataError, match="'error', 'list', 'pad', got 'no'"):
        check_ragged("no")


def test_a_nest_of_masks_is_as_the_data() -> None:
    experience = experience_of([2, 4])
    batch = experience.reply([Window(0, 1, 0, 2, 0), Window(1, 1, 0, 4, 0)], [Template.identity])
    _, data, mask = joined([batch], "pad")
    assert Structure(mask).paths == Structure(data).paths
    assert mask["obs"]["pixels"].tolist() == [[True, True, False, False], [True] * 4]
