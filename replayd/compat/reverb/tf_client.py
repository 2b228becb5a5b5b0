"""The client of TensorFlow's graph operations, on numpy: the same calls, done at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from replayd.compat.reverb._nests import flatten, unflatten_as
from replayd.compat.reverb._values import STRING, as_array, numpy_dtype
from replayd.compat.reverb.client import Client
from replayd.compat.reverb.replay_sample import ReplaySample, numpy_info


class TFClient:
    """A client whose arguments are tensors, which here are whatever numpy makes arrays of.

    `shared_name` and `name` are those of graph resources and change nothing.
    """

    def __init__(self, server_address: str, shared_name: str | None = None, name: str = "reverb") -> None:
        self._client = Client(server_address)
        self._name = name

    @property
    def server_address(self) -> str:
        """The address as it was given."""
        return self._client.server_address

    def sample(self, table: Any, data_dtypes: Any, name: str | None = None) -> ReplaySample:
        """Draw one item and return its first step, in the shape of the nest of dtypes.

        Raises ValueError if its columns are not of these dtypes.
        """
        first = next(self._client.sample(_text(table)))[0]
        wanted = [numpy_dtype(dtype) for dtype in flatten(data_dtypes)]
        got = [leaf.dtype for leaf in first.data]
        if got != wanted:
            raise ValueError(f"a sample of table {_text(table)} has the dtypes {got}, asked for were {wanted}")
        return ReplaySample(numpy_info(first.info), unflatten_as(data_dtypes, first.data))

    def insert(self, data: Sequence[Any], tables: Any, priorities: Any, name: str | None = None) -> None:
        """Insert one step into each of the tables, with the priority at its place.

        Raises ValueError unless `tables` has strings and `priorities` float64, one axis each and as many.
        """
        names, values = as_array(tables), np.asarray(priorities)
        if names.dtype != object or names.ndim != 1:
            raise ValueError("The `tables` argument must be strings with one axis")
        if values.dtype != np.float64 or values.shape != names.shape:
            raise ValueError("The `priorities` argument must be float64 with the shape of `tables`")
        self._client.insert(
            list(data), {name.decode(): priority for name, priority in zip(names, values.tolist(), strict=True)}
        )

    def update_priorities(self, table: Any, keys: Any, priorities: Any, name: str | None = None) -> None:
        """Set priorities; unknown keys are ignored. Raises ValueError unless both have one axis and one shape."""
        found, values = np.asarray(keys), np.asarray(priorities, np.float64)
        if found.ndim != 1 or found.shape != values.shape:
            raise ValueError(f"keys and priorities need one axis of one length, got {found.shape} and {values.shape}")
        self._client.mutate_priorities(_text(table), updates=dict(zip(found.tolist(), values.tolist(), strict=True)))


def _text(tensor: Any) -> str:
    """The string that a tensor is. Raises ValueError for any other tensor."""
    array = as_array(tensor)
    if array.dtype != STRING or array.ndim:
        raise ValueError(f"the name of a table is one string, not {tensor!r}")
    name: str = array.item().decode()
    return name
