"""Steps from anywhere made trajectories by the configs of a structured writer, without a server."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from replayd.compat.reverb._dataset import Elements
from replayd.compat.reverb._nests import unflatten_as
from replayd.compat.reverb._pattern_writer import Columns, PatternMatcher
from replayd.compat.reverb._patterns import Config, Rule, rules_of
from replayd.compat.reverb._values import as_array
from replayd.compat.reverb.replay_sample import ReplaySample, SampleInfo, numpy_info
from replayd.compat.reverb.structured_writer import check_alike, infer_signature


class PatternDataset(Elements):
    """The trajectories that `configs` make of the steps of `input_dataset`; their table and priority are of no account.

    `is_end_of_episode(step)` gives one bool; with `respect_episode_boundaries` no trajectory reaches back over the end
    of an episode.

    Raises ValueError for no configs, a bad one, configs of several tables or structures, and an end that is not one
    bool.
    """

    def __init__(
        self,
        input_dataset: Iterable[Any],
        configs: Sequence[Config],
        respect_episode_boundaries: bool,
        is_end_of_episode: Callable[[Any], Any],
    ) -> None:
        check_alike(configs)
        self._steps = input_dataset
        self._configs = configs
        self._rules = rules_of(configs)
        self._respect_episode_boundaries = respect_episode_boundaries
        self._is_end_of_episode = is_end_of_episode

    @property
    def element_spec(self) -> Any:
        """The trajectories as a nest of TensorSpec, where steps have an `element_spec`."""
        return infer_signature(self._configs, self._steps.element_spec)  # type: ignore[attr-defined]

    def __iter__(self) -> Iterator[Any]:
        made: list[Any] = []
        matcher = PatternMatcher(_Memory(), self._rules, lambda *item: made.append(_trajectory(*item)))
        for step in self._steps:
            matcher.append(step, False)
            if _one_bool(self._is_end_of_episode(step)):
                matcher.finish_episode()
                matcher.begin_episode(self._respect_episode_boundaries)
            yield from made
            made.clear()


def pattern_dataset_with_info(
    input_dataset: Iterable[Any],
    configs: Sequence[Config],
    respect_episode_boundaries: bool,
    is_end_of_episode: Callable[[Any], Any],
) -> Elements:
    """A PatternDataset that yields samples; their info is 0, since a trajectory may be of several items or of none."""
    return PatternDataset(input_dataset, configs, respect_episode_boundaries, is_end_of_episode).map(_without_info)


def _without_info(data: Any) -> ReplaySample:
    return ReplaySample(numpy_info(SampleInfo.zeros()), data)


class _Memory:
    """Cells that are kept as they are."""

    def Append(self, data: Sequence[Any]) -> list[_Value | None]:  # noqa: N802
        return [None if value is None else _Value(as_array(value).copy()) for value in data]

    AppendPartial = Append


class _Value:
    def __init__(self, array: NDArray[Any]) -> None:
        self._array = array

    def numpy(self) -> NDArray[Any]:
        return self._array


def _trajectory(rule: Rule, columns: Columns) -> Any:
    leaves = [
        refs[0].numpy() if is_squeezed else np.stack([ref.numpy() for ref in refs])
        for refs, is_squeezed in zip(columns, rule.squeezed, strict=True)
    ]
    return unflatten_as(rule.structure, leaves)


def _one_bool(value: Any) -> bool:
    array = np.asarray(value)
    if array.dtype != np.bool_ or array.size != 1:
        raise ValueError(f"`is_end_of_episode` must return `bool`, but got {array.dtype.name}{list(array.shape)}")
    return bool(array.item())
