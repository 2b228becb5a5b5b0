"""Items are found by their keys, whatever is asked for."""

from __future__ import annotations

import random

import numpy as np
import pytest

from replayd import items as index
from replayd.items import NO_KEY, NOT_FOUND, Items


def enter(items: Items, keys: list[int]) -> list[int]:
    """Let items in that show nothing; their slots."""
    nothing = np.zeros(len(keys), np.int64)
    slots = items.add(
        np.array(keys, np.uint64), np.ones(len(keys)), nothing, nothing + 1, nothing, nothing, nothing, now=0.0
    )
    return [int(slot) for slot in slots]


@pytest.mark.parametrize("step", [1, 2, 7])
@pytest.mark.parametrize("first", [1, 1 << 40, 1 << 63])
def test_a_key_finds_its_item_and_no_other_one(first: int, step: int) -> None:
    """With steps of 1 keys tell their places in the log, with gaps they must be searched for."""
    draw = random.Random(first + step)
    items, slots, key = Items(), dict[int, int](), first
    for _ in range(60):
        keys = [key + step * n for n in range(draw.randint(1, 40))]
        key = keys[-1] + step
        slots.update(zip(keys, enter(items, keys), strict=True))
        doomed = draw.sample(list(slots), len(slots) // 3)
        items.remove(np.array([slots.pop(each) for each in doomed], np.int64))
        known = draw.choices(list(slots), k=20)
        others = [NO_KEY, 1, first - 1, first, key, key + 1, (1 << 64) - 1, *draw.choices(range(first, key + 9), k=20)]
        for asked in (known, known + doomed[:1], [NO_KEY], others + known, []):
            draw.shuffle(asked)
            expected = [slots.get(each, NOT_FOUND) for each in asked]
            assert items.find(np.array(asked, np.uint64)).tolist() == expected
    items.validate()


def test_of_values_for_one_slot_the_last_stands_at_its_place() -> None:
    draw, items = random.Random(1), Items()
    for count in (1, 2, 50, 5000):
        enter(items, [len(items) + n for n in range(1, count + 1)])
        slots = draw.choices(range(len(items)), k=count)
        last = [n for n, slot in enumerate(slots) if slot not in slots[n + 1 :]]
        once, values = items.each_once(np.array(slots, np.int64), np.arange(float(count)))
        assert (once.tolist(), values.tolist()) == ([slots[n] for n in last], last)


def test_a_table_that_is_drained_with_no_insert_between_is_sound() -> None:
    items = Items()
    slots = enter(items, list(range(1, 50_001)))
    items.remove(np.array(slots, np.int64))
    items.validate()
    assert items.find(np.array([1, 50_000], np.uint64)).tolist() == [NOT_FOUND, NOT_FOUND]
    enter(items, list(range(50_001, 50_101)))
    items.validate()
    assert items.oldest(2).tolist() == items.find(np.array([50_001, 50_002], np.uint64)).tolist()


@pytest.mark.parametrize("block", [64, 1 << 16])
def test_the_index_of_a_full_table_takes_no_more_memory_and_finds_all(
    block: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index, "_BLOCK", block)
    monkeypatch.setattr(index, "_SLACK", 100)
    draw, items, size = random.Random(block), Items(), 3_000
    living, key, full = dict[int, int](), 1, 0
    for entered in range(0, 8 * size, 100):
        keys = list(range(key, key + 100))
        key += 100
        living.update(zip(keys, enter(items, keys), strict=True))
        if len(living) > size:
            # Mostly the oldest ones go, as from most tables, and some in between.
            doomed = [*list(living)[:80], *draw.sample(list(living)[80:], 20)]
            items.remove(np.array([living.pop(each) for each in doomed], np.int64))
        assert items._logged <= 1.25 * len(items) + 300
        if entered == 2 * size:
            full = items._log_keys.nbytes + items._log_slots.nbytes
    assert items._log_keys.nbytes + items._log_slots.nbytes == full
    items.validate()
    assert items.in_order().tolist() == [living[each] for each in sorted(living)]
    assert items.find(np.array(list(living), np.uint64)).tolist() == list(living.values())
