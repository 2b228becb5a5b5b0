"""Steps as their user has them, nests of values, made rows of a `ChunkLog`.

Owns the structure that all steps of a writer have together: fields may come later and be absent from a step. Knows
nothing of chunks and items.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

from replayd_client.chunk_log import ChunkLog
from replayd_client.errors import DataError
from replayd_client.structure import Path, Structure, flatten, has_containers


class Steps:
    """Takes steps apart and appends them to a log; keeps the structure of all fields seen."""

    __slots__ = ("_fast", "_log", "_order", "structure")

    def __init__(self, log: ChunkLog) -> None:
        self._log = log
        self.structure: Structure | None = None
        """Of every field seen, those included that have been None so far; None before the first step."""
        self._fast = False
        self._order: Callable[[list[Any]], Sequence[Any]] | None = None

    def append(self, data: Any, partial_step: bool) -> None:
        """Add a step, or to the open step; raises DataError and changes nothing if a leaf does not fit."""
        if self._fast:
            assert self.structure is not None, "a fast way needs a structure"
            leaves: Sequence[Any] = ()
            try:
                leaves = self.structure.parts(data)
                self._log.append(leaves if self._order is None else self._order(leaves), partial_step)
                return
            except DataError:
                # No column takes a container: a step that has one has another structure, as one that cannot be taken
                # apart.
                if leaves and not has_containers(leaves):
                    raise
        self._append_named(data, partial_step)

    def append_like_before(self, data: Any) -> None:
        """Add a whole step of the structure of the first one. Raises DataError, as `append`, for another structure."""
        if self.structure is None:
            self._append_named(data, False)
            return
        leaves = self.structure.leaves(data)
        if self._fast:
            self._log.append(leaves if self._order is None else self._order(leaves), False)
        else:
            self._append_named(data, False)

    def _append_named(self, data: Any, partial_step: bool) -> None:
        pairs = flatten(data)
        structure = self.structure
        if structure is None:
            structure = Structure(data)
        elif added := [path for path, _ in pairs if path not in structure.paths]:
            structure = Structure.from_paths((*structure.paths, *added))
        columns = len(self._log.column_of)
        self._log.append_named({path: leaf for path, leaf in pairs if leaf is not None}, partial_step)
        if structure is not self.structure or columns != len(self._log.column_of):
            self._set(structure)

    def _set(self, structure: Structure) -> None:
        """From now on steps of this structure are taken apart in one go, if all its fields are columns."""
        self.structure = structure
        columns = list(self._log.column_of)
        self._fast = len(columns) == len(structure.paths)
        self._order = None
        if self._fast and tuple(columns) != structure.paths:
            places: dict[Path, int] = {path: place for place, path in enumerate(structure.paths)}
            self._order = itemgetter(*(places[path] for path in columns))
