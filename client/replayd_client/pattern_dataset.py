"""Steps from anywhere, a dataset or a file, made trajectories by the configs of a structured writer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from replayd_client.arguments import value_text
from replayd_client.chunk_log import ChunkLog
from replayd_client.errors import ArgumentTypeError, DataError
from replayd_client.item_dataset import INFO_DTYPES
from replayd_client.pattern_matcher import PatternMatcher
from replayd_client.sampling import ReplaySample, SampleInfo
from replayd_client.scalars import checked_flag
from replayd_client.structured import Config, checked_configs


class PatternDataset:
    """An iterable of the trajectories that `configs` make of the steps of `input_dataset`, without a server.

    A step is a nest of arrays or numbers. A trajectory is a nest in the shape of its config's pattern: [n, *shape] for
    n cells, [*shape] for one without its axis. Configs apply in their order, after each step and at the end of an
    episode, as in a StructuredWriter; their table and priority are of no account.

    `is_end_of_episode(step)` tells, with one bool, whether a step is its episode's last. With
    `respect_episode_boundaries` no trajectory reaches back over an episode's end.

    Each iteration begins anew. Raises DataError for no configs and other wrong arguments; while iterating for steps
    that do not fit, and for an `is_end_of_episode` that says something else.
    """

    def __init__(
        self,
        input_dataset: Iterable[Any],
        configs: Sequence[Config],
        respect_episode_boundaries: bool,
        is_end_of_episode: Callable[[Any], Any],
    ) -> None:
        if not isinstance(input_dataset, Iterable):
            raise ArgumentTypeError(f"input_dataset must be an iterable of steps, got {value_text(input_dataset)}")
        if not callable(is_end_of_episode):
            raise ArgumentTypeError(f"is_end_of_episode must be a function, got {value_text(is_end_of_episode)}")
        self._steps = input_dataset
        self._configs = checked_configs(configs)
        self._respect_episode_boundaries = checked_flag("respect_episode_boundaries", respect_episode_boundaries)
        self._is_end_of_episode = is_end_of_episode

    def __iter__(self) -> Iterator[Any]:
        log = ChunkLog(max(config.reach for config in self._configs), None)
        matcher = PatternMatcher(self._configs, log)
        for step in self._steps:
            # Made before the next step, which may push cells out.
            yield from [match.trajectory() for match in matcher.append(step, partial_step=False)]
            if _one_bool(self._is_end_of_episode(step)):
                yield from [match.trajectory() for match in matcher.finish_episode()]
                log.end_episode(clear=self._respect_episode_boundaries)
                matcher.begin_episode()


def pattern_dataset_with_info(
    input_dataset: Iterable[ReplaySample],
    configs: Sequence[Config],
    respect_episode_boundaries: bool,
    is_end_of_episode: Callable[[Any], Any],
) -> Iterable[ReplaySample]:
    """A PatternDataset over the data of samples, such as those of a TimestepDataset, which yields samples: info is 0,
    since a trajectory may be of several items. Arguments and errors as of PatternDataset."""
    patterns = PatternDataset(_Mapped(input_dataset, _data), configs, respect_episode_boundaries, is_end_of_episode)
    return _Mapped(patterns, _without_info)


class _Mapped:
    """An iterable that can be iterated again, unlike `map`."""

    def __init__(self, iterable: Iterable[Any], function: Callable[[Any], Any]) -> None:
        self._iterable = iterable
        self._function = function

    def __iter__(self) -> Iterator[Any]:
        return map(self._function, self._iterable)


def _data(sample: ReplaySample) -> Any:
    return sample.data


def _without_info(data: Any) -> ReplaySample:
    return ReplaySample(SampleInfo._make(dtype.type(0) for dtype in INFO_DTYPES), data)


def _one_bool(value: Any) -> bool:
    array = np.asarray(value)
    if array.dtype != np.bool_ or array.size != 1:
        raise DataError(f"is_end_of_episode must return one bool, got {array.dtype.name}{list(array.shape)}")
    return bool(array.item())
