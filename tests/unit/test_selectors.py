"""The six selectors, one behaviour at a time; the model test beside them covers sequences of operations."""

from __future__ import annotations

import math

import msgpack
import numpy as np
import pytest

from replayd.selectors import (
    MAX_PRIORITY_EXPONENT,
    Fifo,
    Lifo,
    MaxHeap,
    MinHeap,
    Prioritized,
    Uniform,
    from_description,
    ordered,
)

DETERMINISTIC = [Fifo, Lifo, MinHeap, MaxHeap]
RANDOM = [Uniform, lambda: Prioritized(0.0), lambda: Prioritized(0.6), lambda: Prioritized(3.0)]
ALL = DETERMINISTIC + RANDOM
SIZES = [1, 2, 3, 5, 1000]


def array(*slots: int):
    return np.array(slots, np.int64)


def filled(make, priorities):
    """A selector with slots 0, 1, 2 … of these priorities."""
    selector = make()
    priorities = np.asarray(priorities, float)
    selector.add(np.arange(priorities.size), priorities)
    return selector


def first(selector, n=1, room=None):
    return selector.draw(n, np.random.default_rng(0), room)[0].tolist()


def state_of(selector):
    """Everything a random selector holds, as bytes."""
    if isinstance(selector, Uniform):
        held = [selector._dense[: selector._count], selector._position, selector._drawn]
        return selector._count, [column.tobytes() for column in held]
    tree = selector._tree
    columns = [tree.weights, *(level.rows for level in tree._levels), tree._root, tree._root_prefix, selector._drawn]
    return tree.total, [column.tobytes() for column in columns], state_of(selector._present)


# --- what every selector does ---


@pytest.mark.parametrize("make", ALL)
def test_an_empty_selector_draws_nothing(make):
    selector = make()
    rng = np.random.default_rng(0)
    for room in (None, np.ones(4, np.int64)):
        slots, probabilities = selector.draw(3, rng, room)
        assert (slots.size, probabilities.size) == (0, 0)
        assert (slots.dtype, probabilities.dtype) == (np.int64, np.float64)


@pytest.mark.parametrize("make", ALL)
def test_drawing_none_returns_none(make):
    selector = filled(make, [1.0, 2.0])
    for room in (None, np.ones(2, np.int64)):
        slots, probabilities = selector.draw(0, np.random.default_rng(0), room)
        assert (slots.size, probabilities.size) == (0, 0)


@pytest.mark.parametrize("make", ALL)
@pytest.mark.parametrize("n", [1, 2, 7, 3000])
def test_without_room_exactly_n_are_drawn(make, n):
    slots, probabilities = filled(make, np.arange(1.0, 6.0)).draw(n, np.random.default_rng(0))
    assert (slots.dtype, probabilities.dtype) == (np.int64, np.float64)
    assert slots.size == probabilities.size == n
    assert (probabilities > 0).all()


@pytest.mark.parametrize("make", ALL)
def test_a_removed_slot_is_never_drawn(make):
    rng = np.random.default_rng(1)
    selector = filled(make, rng.random(500))
    gone = rng.permutation(500)[:400]
    selector.remove(gone)
    assert len(selector) == 100
    assert not np.isin(selector.draw(5000, rng)[0], gone).any()
    drawn, _ = selector.draw(5000, rng, np.ones(500, np.int64))
    assert np.array_equal(np.sort(drawn), np.setdiff1d(np.arange(500), gone))


@pytest.mark.parametrize("make", ALL)
def test_slots_are_used_again_after_removal(make):
    selector = filled(make, [1.0, 2.0, 3.0])
    selector.remove(array(0, 1, 2))
    selector.add(array(1), np.array([5.0]))
    assert first(selector, 4) == [1, 1, 1, 1]
    selector.validate(array(1), np.array([5.0]))


@pytest.mark.parametrize("make", ALL)
def test_a_cleared_selector_begins_anew(make):
    selector = filled(make, np.ones(3000))
    selector.clear()
    assert len(selector) == 0
    assert selector.draw(1, np.random.default_rng(0))[0].size == 0
    selector.add(array(7, 2), np.array([1.0, 3.0]))
    selector.validate(array(7, 2), np.array([1.0, 3.0]))


@pytest.mark.parametrize("make", ALL)
def test_empty_batches_are_nothing(make):
    selector = filled(make, [1.0])
    none, no_priorities = array(), np.empty(0)
    selector.add(none, no_priorities)
    selector.update(none, no_priorities)
    selector.remove(none)
    selector.validate(array(0), np.array([1.0]))


@pytest.mark.parametrize("make", ALL)
def test_capacity_follows_the_slots(make):
    selector = make()
    slots = array(5, 100_000, 3)
    selector.add(slots, np.array([1.0, 2.0, 3.0]))
    selector.validate(slots, np.array([1.0, 2.0, 3.0]))
    drawn, _ = selector.draw(9, np.random.default_rng(0), np.ones(100_001, np.int64))
    assert sorted(drawn.tolist()) == [3, 5, 100_000]


@pytest.mark.parametrize("make", ALL)
def test_misuse_is_an_assertion(make):
    selector = filled(make, [1.0, 2.0])
    with pytest.raises(AssertionError, match="added twice"):
        selector.add(array(1), np.ones(1))
    selector.remove(array(0))
    with pytest.raises(AssertionError, match="absent slot was removed"):
        selector.remove(array(0))
    with pytest.raises(AssertionError, match="absent slot was updated"):
        selector.update(array(0), np.ones(1))


@pytest.mark.parametrize("make", ALL)
def test_a_slot_without_room_is_an_assertion(make):
    selector = filled(make, [1.0, 1.0])
    with pytest.raises(AssertionError, match="without room"):
        selector.draw(50, np.random.default_rng(0), np.zeros(2, np.int64))


@pytest.mark.parametrize("make", ALL)
def test_validation_notices_another_table(make):
    selector = filled(make, [1.0, 2.0, 4.0])
    selector.validate(np.arange(3), np.array([1.0, 2.0, 4.0]))
    for wrong in (array(0, 1), array(0, 1, 3), array(0, 1, 2, 3)):
        with pytest.raises(AssertionError):
            selector.validate(wrong, np.ones(wrong.size))


@pytest.mark.parametrize("make", [MinHeap, MaxHeap, lambda: Prioritized(1.0)])
def test_validation_notices_another_priority(make):
    with pytest.raises(AssertionError, match="priority"):
        filled(make, [1.0, 2.0]).validate(array(0, 1), np.array([1.0, 3.0]))


@pytest.mark.parametrize("make", ALL)
def test_a_description_survives_msgpack_and_makes_an_equal_selector(make):
    selector = make()
    copy = from_description(msgpack.unpackb(msgpack.packb(selector.describe())))
    assert copy == selector
    assert hash(copy) == hash(selector)
    assert type(copy) is type(selector)
    assert repr(copy) == repr(selector)


def test_equality_is_of_the_rule_not_of_the_contents():
    assert Uniform() == filled(Uniform, [1.0])
    assert Prioritized(0.5) == Prioritized(0.5)
    assert Prioritized(0.5) != Prioritized(0.6)
    assert MinHeap() != MaxHeap()
    assert Uniform() != "uniform"
    assert repr(Prioritized(0.6)) == "Prioritized(priority_exponent=0.6)"
    assert repr(Fifo()) == "Fifo()"
    assert Prioritized(0.6).describe() == {"kind": "prioritized", "priority_exponent": 0.6}


@pytest.mark.parametrize("description", [{}, {"kind": "best"}, {"kind": "fifo", "x": 1}, {"kind": "prioritized"}])
def test_an_unknown_description_is_refused(description):
    with pytest.raises(ValueError, match="no such selector"):
        from_description(description)


# --- order ---


def test_fifo_and_lifo_go_by_insertion_and_updates_do_not_move():
    for make, order in ((Fifo, [3, 9, 1, 4]), (Lifo, [4, 1, 9, 3])):
        selector = make()
        selector.add(array(3, 9), np.array([5.0, 1.0]))
        selector.add(array(1, 4), np.array([2.0, 7.0]))
        selector.update(array(9, 3), np.array([0.0, 100.0]))
        assert first(selector, 10, np.ones(10, np.int64)) == order


def test_heaps_go_by_priority_and_ties_by_the_longest_untouched():
    for make, order in ((MinHeap, [2, 1, 3, 0, 4]), (MaxHeap, [0, 4, 1, 3, 2])):
        selector = filled(make, [7.0, 5.0, 1.0, 5.0, 7.0])
        assert first(selector, 5, np.ones(5, np.int64)) == order


@pytest.mark.parametrize("make", [MinHeap, MaxHeap])
def test_an_update_to_the_same_priority_moves_a_slot_behind_its_equals(make):
    selector = filled(make, [5.0, 5.0, 5.0])
    selector.update(array(0), np.array([5.0]))
    assert first(selector, 3, np.ones(3, np.int64)) == [1, 2, 0]
    selector.update(array(2, 1), np.array([5.0, 5.0]))
    assert first(selector, 3, np.ones(3, np.int64)) == [0, 2, 1]


@pytest.mark.parametrize("make", [MinHeap, MaxHeap])
def test_equals_keep_their_order_across_many_batches(make):
    selector = make()
    for start in range(0, 1000, 37):
        slots = np.arange(start, min(start + 37, 1000))
        selector.add(slots, slots % 3.0)
    by_age = [np.arange(1000)[np.arange(1000) % 3 == priority] for priority in range(3)]
    expected = np.concatenate(by_age if make is MinHeap else by_age[::-1])
    assert first(selector, 1000, np.ones(1000, np.int64)) == expected.tolist()


@pytest.mark.parametrize("make", DETERMINISTIC)
def test_deterministic_selectors_repeat_their_choice_with_probability_one(make):
    slots, probabilities = filled(make, [2.0, 1.0, 3.0]).draw(6, np.random.default_rng(0))
    assert len(set(slots.tolist())) == 1
    assert probabilities.tolist() == [1.0] * 6


@pytest.mark.parametrize("make", DETERMINISTIC)
def test_deterministic_selectors_repeat_the_first_slot_until_its_room_is_used_up(make):
    selector = filled(make, [1.0, 2.0, 3.0, 4.0])
    order = first(selector, 4, np.ones(4, np.int64))
    room = array(2, 1, 3, 2)
    expected = [slot for slot in order for _ in range(room[slot])]
    for n in range(1, 12):
        slots, probabilities = selector.draw(n, np.random.default_rng(0), room)
        assert slots.tolist() == expected[:n]
        assert (probabilities == 1.0).all()
    huge = np.full(4, np.iinfo(np.int64).max)
    huge[order[0]] = 1
    assert first(selector, 4, huge) == [order[0], *[order[1]] * 3]


@pytest.mark.parametrize("make", DETERMINISTIC)
def test_a_long_dead_stretch_behind_the_first_slot_is_read_once(make):
    """One early slot that stays must not make each later draw walk over everything that died behind it."""
    size = 20_000
    selector = filled(make, np.zeros(size))
    order = np.arange(size) if make is not Lifo else np.arange(size)[::-1]
    selector.remove(order[1:9_000])
    room = np.ones(size, np.int64)
    assert first(selector, 3, room) == [order[0], order[9_000], order[9_001]]
    run = selector._log if make in (Fifo, Lifo) else selector._runs[0]
    assert run.alive(selector._stamp_of, run.head, run.head + 3).size == 3
    live = np.sort(order[np.r_[0, 9_000:size]])
    selector.validate(live, np.zeros(live.size))


@pytest.mark.parametrize("make", DETERMINISTIC)
def test_memory_stays_in_proportion_to_what_is_present(make):
    selector = make()
    rng = np.random.default_rng(2)
    for turn in range(400):
        slots = np.arange(100) + 100 * (turn % 2)
        selector.add(slots, rng.random(100))
        selector.update(slots, rng.random(100))
        selector.remove(slots)
    entries = selector._log.slots.size if make in (Fifo, Lifo) else sum(map(len, selector._runs))
    assert entries <= 4096


@pytest.mark.parametrize("block", [16, 1 << 16])
@pytest.mark.parametrize("make", [Fifo, Lifo])
@pytest.mark.parametrize("remover", ["oldest", "newest", "any"])
def test_the_log_of_a_full_table_takes_no_more_memory_and_keeps_the_order(make, remover, block, monkeypatch):
    monkeypatch.setattr(ordered, "BLOCK", block)
    monkeypatch.setattr(ordered, "MIN_SLOTS", 32)
    selector, rng, free, living, sizes = make(), np.random.default_rng(block), list(range(1_100)), [], set()
    for turn in range(300):
        slots = [free.pop() for _ in range(20)]
        selector.add(array(*slots), np.zeros(20))
        living += slots
        if len(living) > 1_000:
            places = {"oldest": range(20), "newest": range(1_000, 1_020), "any": rng.permutation(1_020)[:20].tolist()}
            doomed = [living[place] for place in places[remover]]
            selector.remove(array(*doomed))
            free += doomed
            living = [slot for slot in living if slot not in set(doomed)]
            sizes.add(selector._log.slots.size)
            log = selector._log
            used = log.tail if make is Fifo else log.slots.size - log.head
            assert used <= 1.25 * 1_000 + 100
        if turn % 10 == 0:
            selector.validate(array(*living), np.zeros(len(living)))
    assert len(sizes) == 1
    room = np.ones(1_100, np.int64)
    assert first(selector, 1_000, room) == (living if make is Fifo else living[::-1])


# --- chance ---


@pytest.mark.parametrize("size", SIZES)
def test_uniform_probabilities_are_exact(size):
    _, probabilities = filled(Uniform, np.zeros(size)).draw(100, np.random.default_rng(0))
    assert (probabilities == 1 / size).all()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("exponent", [0.0, 0.5, 1.0, 2.0, 3.0])
def test_prioritized_probabilities_are_exact(size, exponent):
    rng = np.random.default_rng(size)
    priorities = rng.random(size) * 10
    priorities[::4] = 0.0
    if size == 1:
        priorities[0] = 3.0
    weights = [p**exponent if p else 0.0 for p in priorities]
    expected = np.array(weights) / math.fsum(weights)
    slots, probabilities = filled(lambda: Prioritized(exponent), priorities).draw(1000, rng)
    assert (priorities[slots] > 0).all()
    np.testing.assert_allclose(probabilities, expected[slots], rtol=1e-12)


@pytest.mark.parametrize(
    ("priorities", "exponent", "expected"),
    [
        ([1, 2, 3, 0], 2.0, [1 / 14, 4 / 14, 9 / 14, 0]),
        ([0, 5, 1, 0.1], 0.0, [0, 1 / 3, 1 / 3, 1 / 3]),
        ([0, 0, 0], 1.0, [1 / 3] * 3),
        ([0, 0, 0], 0.0, [1 / 3] * 3),
        ([4], 1.0, [1]),
    ],
)
def test_known_cases(priorities, exponent, expected):
    slots, probabilities = filled(lambda: Prioritized(exponent), priorities).draw(500, np.random.default_rng(0))
    assert set(slots.tolist()) == {slot for slot, chance in enumerate(expected) if chance}
    np.testing.assert_allclose(probabilities, np.array(expected)[slots], rtol=1e-15)


def chi_square(counts, expected):
    return float(((counts - expected) ** 2 / expected).sum())


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("make", RANDOM)
def test_frequencies_fit_the_probabilities(make, size):
    """Chi-square at most its mean plus five standard deviations, of one slot 0; the generator's seed is fixed."""
    rng = np.random.default_rng(100)
    priorities = rng.random(size) + 0.5
    selector = filled(make, priorities)
    n = 200_000
    slots, _ = selector.draw(n, rng)
    exponent = selector.describe().get("priority_exponent", 0.0)
    expected = n * priorities**exponent / (priorities**exponent).sum()
    freedom = size - 1
    assert chi_square(np.bincount(slots, minlength=size), expected) <= freedom + 5 * math.sqrt(2 * freedom)


@pytest.mark.parametrize("make", RANDOM)
def test_sequences_of_draws_within_room_have_their_exact_chance(make):
    """All sequences of three draws from four slots, counted over many rounds against their chance computed by hand."""
    priorities = np.array([1.0, 2.0, 5.0, 0.5])
    room = array(1, 2, 1, 1)
    selector = filled(make, priorities)
    weights = priorities ** selector.describe().get("priority_exponent", 0.0)
    expected = {}
    for sequence in np.ndindex(4, 4, 4):
        left, chance = room.copy(), 1.0
        for slot in sequence:
            chance *= weights[slot] * (left[slot] > 0) / weights[left > 0].sum()
            left[slot] -= 1
        if chance:
            expected[sequence] = chance
    rounds = 3_000
    rng = np.random.default_rng(7)
    counts = dict.fromkeys(expected, 0)
    for _ in range(rounds):
        slots, probabilities = selector.draw(3, rng, room)
        sequence = tuple(slots.tolist())
        counts[sequence] += 1
        assert math.prod(probabilities) == pytest.approx(expected[sequence], rel=1e-12)
    counted, awaited = np.array(list(counts.values())), rounds * np.array(list(expected.values()))
    frequent = awaited >= 5  # The rare sequences are taken together, for chi-square to hold.
    counted = np.append(counted[frequent], counted[~frequent].sum())
    awaited = np.append(awaited[frequent], awaited[~frequent].sum() + 1e-9)
    freedom = awaited.size - 1
    score = chi_square(counted, awaited)
    assert score < freedom + 5 * math.sqrt(2 * freedom)


def expected_probabilities(weights, room, slots):
    """The chance of each draw, draw by draw, as if slots left when their room is used up."""
    weights, left = weights.astype(object), room.copy()  # Python floats and math.fsum: no error to speak of.
    chances = []
    for slot in slots:
        present = np.flatnonzero(left > 0)
        mass = math.fsum(weights[present])
        assert left[slot] > 0
        chances.append(weights[slot] / mass if mass else 1 / present.size)
        left[slot] -= 1
    return chances


@pytest.mark.parametrize("make", RANDOM)
@pytest.mark.parametrize("n", [1, 20, 99, 100, 150, 400])
def test_draws_within_room_carry_the_probability_of_their_moment(make, n):
    rng = np.random.default_rng(n)
    priorities = rng.random(60) * (rng.random(60) < 0.8)
    room = rng.integers(1, 4, 60)
    selector = filled(make, priorities)
    selector.draw(n, rng, room)  # Makes the scratch arrays.
    before = state_of(selector)
    slots, probabilities = selector.draw(n, rng, room)
    assert state_of(selector) == before
    assert slots.size == min(n, room.sum())
    assert (np.bincount(slots, minlength=60) <= room).all()
    if isinstance(selector, Uniform):
        weights = np.ones(60)
    else:
        weights = np.where(priorities > 0, priorities**selector.priority_exponent, 0.0)
    np.testing.assert_allclose(probabilities, expected_probabilities(weights, room, slots), rtol=1e-9)


@pytest.mark.parametrize("spread", [1e6, 1e12, 1e60])
@pytest.mark.parametrize("n", [50, 300, 1000])
def test_extreme_priorities_are_drawn_out_completely_and_exactly(spread, n):
    """Once the giants are gone the dwarfs must be drawn with full precision, down to the last slot."""
    rng = np.random.default_rng(3)
    priorities = np.array([spread, spread / 7, *rng.random(200), *(rng.random(98) / spread)])
    selector = filled(lambda: Prioritized(1.0), priorities)
    room = np.ones(300, np.int64)
    selector.draw(n, rng, room)  # Makes the scratch arrays.
    before = state_of(selector)
    slots, probabilities = selector.draw(n, rng, room)
    assert state_of(selector) == before
    assert slots.size == min(n, 300) == np.unique(slots).size
    np.testing.assert_allclose(probabilities, expected_probabilities(priorities, room, slots), rtol=1e-9)
    selector.validate(np.arange(300), priorities)


def test_a_geometric_cascade_of_weights_needs_few_rounds():
    """Each slot weighs more than all that follow together: the worst case for rejection."""
    priorities = 2.0 ** -np.arange(900.0)
    selector = filled(lambda: Prioritized(1.0), priorities)
    slots, probabilities = selector.draw(900, np.random.default_rng(0), np.ones(900, np.int64))
    assert np.array_equal(np.sort(slots), np.arange(900))
    assert ((probabilities > 0) & (probabilities <= 1)).all()
    selector.validate(np.arange(900), priorities)


def test_when_only_zero_priorities_have_room_left_they_are_drawn_uniformly():
    priorities = np.array([0.0, 3.0, 0.0, 1.0, 0.0])
    selector = filled(lambda: Prioritized(0.7), priorities)
    slots, probabilities = selector.draw(9, np.random.default_rng(5), np.ones(5, np.int64))
    assert set(slots[:2].tolist()) == {1, 3}
    assert set(slots[2:].tolist()) == {0, 2, 4}
    np.testing.assert_allclose(probabilities[2:], [1 / 3, 1 / 2, 1])
    selector.validate(np.arange(5), priorities)


@pytest.mark.parametrize("make", RANDOM)
def test_many_more_draws_than_room_end_when_the_room_does(make):
    selector = filled(make, np.linspace(0.1, 1.0, 500))
    slots, _ = selector.draw(100_000, np.random.default_rng(0), np.full(500, 3))
    assert np.array_equal(np.bincount(slots), np.full(500, 3))


def test_the_same_seed_draws_the_same():
    for make in RANDOM:
        selector = filled(make, np.linspace(0.1, 1.0, 50))
        for room in (None, np.ones(50, np.int64)):
            one, other = (selector.draw(30, np.random.default_rng(9), room) for _ in range(2))
            assert np.array_equal(one[0], other[0])
            assert np.array_equal(one[1], other[1])


def test_a_priority_whose_power_underflows_can_still_be_drawn():
    selector = filled(lambda: Prioritized(3.0), [0.0, 1e-200, 0.0])
    assert set(first(selector, 100)) == {1}
    assert first(selector) == [1]


def test_the_largest_priorities_do_not_overflow():
    selector = filled(lambda: Prioritized(MAX_PRIORITY_EXPONENT), np.full(10_000, 1e90))
    _, probabilities = selector.draw(100, np.random.default_rng(0))
    np.testing.assert_allclose(probabilities, 1e-4)


def test_an_update_to_zero_takes_a_slot_out_of_the_draw_and_back():
    rng = np.random.default_rng(0)
    selector = filled(lambda: Prioritized(1.0), [1.0, 1.0])
    selector.update(array(0), np.array([0.0]))
    assert set(selector.draw(50, rng)[0].tolist()) == {1}
    selector.update(array(1, 0), np.array([0.0, 0.0]))
    assert set(selector.draw(50, rng)[0].tolist()) == {0, 1}
    selector.update(array(0), np.array([2.0]))
    assert set(selector.draw(50, rng)[0].tolist()) == {0}


@pytest.mark.parametrize("exponent", [-0.1, 3.1, math.inf, -math.inf, math.nan])
def test_a_priority_exponent_outside_its_range_is_refused(exponent):
    with pytest.raises(ValueError, match="priority_exponent"):
        Prioritized(exponent)
