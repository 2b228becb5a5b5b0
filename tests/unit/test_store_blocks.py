"""Which blocks may go, against sets that say it in so many words."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from replayd.store_blocks import SMALL_BYTES, BlockMap

SIZE = 5000
"""Of each chunk: forty make a block that is not small."""


@given(
    st.lists(st.sets(st.integers(1, 60), min_size=1), max_size=6),
    st.sets(st.integers(1, 60)),
)
def test_a_survey_finds_dead_sparse_and_small_blocks(blocks: list[set[int]], live: set[int]) -> None:
    made = BlockMap()
    for number, block in enumerate(blocks, 1):
        made.add(number, np.array(sorted(block), np.int64), np.full(len(block), SIZE))
    survey = made.survey(np.array(sorted(live), np.int64))
    # Of a chunk in several blocks the last one counts.
    used = [block & live - set().union(*blocks[n + 1 :]) for n, block in enumerate(blocks)]
    assert survey.dead == [n + 1 for n, mine in enumerate(used) if not mine]
    small = [n for n, mine in enumerate(used) if mine and len(blocks[n]) * (SIZE + 64) < SMALL_BYTES]
    few = small if len(small) > 1 else []
    renewed = [mine for n, mine in enumerate(used) if mine and (n in few or 2 * len(mine) < len(blocks[n]))]
    assert sorted(survey.renew.tolist()) == sorted(set().union(*renewed))


def test_blocks_that_are_removed_are_not_surveyed() -> None:
    made = BlockMap()
    made.add(1, np.array([1]), np.array([10]))
    made.add(2, np.array([2]), np.array([10]))
    made.remove([1])
    assert len(made) == 1
    assert made.survey(np.array([5])).dead == [2]


def test_an_empty_store_has_nothing_to_survey() -> None:
    survey = BlockMap().survey(np.array([1]))
    assert (survey.dead, survey.renew.tolist()) == ([], [])
