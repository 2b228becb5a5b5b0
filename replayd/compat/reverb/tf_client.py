"""The client of TensorFlow's graph operations, on numpy: the same calls, done at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from replayd.compat.reverb._values import as_array, numpy_dtype
from replayd.compat.reverb.client import Client
from replayd.compat.reverb.replay_sample import ReplaySample, numpy_info


class TFClient:
    """A client whose arguments are tensors, which here are whatever numpy makes arrays of.

    `shared_name` and `name` are those of graph resources and change nothing.
    """

    def __init__(self, server_address: str, shared_name: str | None = None, name: str = "reverb") -> None:
        self._client = Client(server_address)
        self._name = name

    def sample(self, table: str, data_dtypes: Sequence[Any], name: str | None = None) -> ReplaySample:
        """Draw one item and return its first step. Raises ValueError if its columns are not of these dtypes."""
        first = next(self._client.sample(table))[0]
        wanted = [numpy_dtype(dtype) for dtype in data_dtypes]
        got = [as_array(leaf).dtype for leaf in first.data]
        if got != wanted:
            raise ValueError(f"a sample of table {table} has the dtypes {got}, asked for were {wanted}")
        return ReplaySample(numpy_info(first.info), first.data)

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

    def update_priorities(self, table: str, keys: Any, priorities: Any, name: str | None = None) -> None:
        """Set priorities; unknown keys are ignored. Raises ValueError unless both have one axis and one shape."""
        found, values = np.asarray(keys), np.asarray(priorities, np.float64)
        if found.ndim != 1 or found.shape != values.shape:
            raise ValueError(f"keys and priorities need one axis of one length, got {found.shape} and {values.shape}")
        self._client.mutate_priorities(table, updates=dict(zip(found.tolist(), values.tolist(), strict=True)))
