"""What a client knows of the server's tables: signatures, and how priorities are stored.

A server of this package keeps its signatures in an item of a table of its own, REGISTRY, since replayd would enforce
them by path, which the incumbent does not; that the table is there also says that the others, unless a selector is
Prioritized, store priorities of any sign. Servers of this process are asked directly. Other replayd daemons are as
they are.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from replayd.compat.reverb import _priorities
from replayd.compat.reverb._protos import DBL_MAX
from replayd.compat.reverb._signatures import unpacked
from replayd.compat.reverb.reverb_types import TableInfo
from replayd_client import Client
from replayd_client import TableInfo as ReplaydTableInfo

REGISTRY: Final = "~reverb"
"""The table in which a server of this package says what the protocol has no words for."""
_LOCAL_HOSTS: Final = {"localhost", "127.0.0.1", "0.0.0.0", "[::1]"}


@dataclass(frozen=True, slots=True)
class TableFacts:
    """What must be known of a table to write into it and to read from it."""

    signature: Any
    is_prioritized: bool
    is_signed: bool
    """Whether stored priorities are those of `_priorities.encode`."""
    is_gated: bool
    """Whether its limiter may hold inserts back."""

    def stored(self, priorities: Any) -> NDArray[np.float64]:
        """Priorities as they are sent. Raises ValueError for NaN, and for negative ones if the table refuses them."""
        values = np.asarray(priorities, np.float64)
        _priorities.check(values, self.is_prioritized)
        return _priorities.encode(values) if self.is_signed else values

    def stored_one(self, priority: Any) -> float:
        """As `stored`, for a single one."""
        value = _priorities.number(priority)
        _priorities.check_one(value, self.is_prioritized)
        return _priorities.encode_one(value) if self.is_signed else value

    def shown(self, stored: Any) -> NDArray[np.float64]:
        """Priorities as they were given."""
        return _priorities.decode(stored) if self.is_signed else np.asarray(stored, np.float64)


class LocalTables(Protocol):
    """A server of this process."""

    @property
    def signatures(self) -> Mapping[str, Any]: ...


LOCAL: Final[WeakValueDictionary[int, Any]] = WeakValueDictionary()
"""The running servers of this process by port, each a LocalTables."""


class Directory:
    """The tables of one server as one client knows them: asked for once, and again by `refresh`. Safe for threads."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._lock = threading.Lock()
        self._facts: dict[str, TableFacts] | None = None
        self.is_of_this_package = False
        """Whether the server is one of this package, as it was when it was asked last."""

    def refresh(self, timeout_s: float | None) -> dict[str, TableInfo]:
        """State of all tables by name, as the server says it now."""
        infos = self._client.server_info(timeout=timeout_s)
        signatures = self._signatures(infos, timeout_s)
        is_ours = self.is_of_this_package = infos.pop(REGISTRY, None) is not None
        shown = {name: TableInfo.of(info.details, signatures.get(name)) for name, info in infos.items()}
        facts = {}
        for name, info in shown.items():
            options = (info.sampler_options, info.remover_options)
            is_prioritized = any(each.HasField("prioritized") for each in options)
            is_gated = info.rate_limiter_info.max_diff < DBL_MAX
            facts[name] = TableFacts(info.signature, is_prioritized, is_ours and not is_prioritized, is_gated)
        with self._lock:
            self._facts = facts
        return shown

    def tables(self) -> Mapping[str, TableFacts]:
        """The tables as they were when first asked for; waits for a server."""
        if self._facts is None:
            self.refresh(None)
        assert self._facts is not None, "a refresh sets what is known"
        return self._facts

    def table(self, name: str) -> TableFacts:
        """Raises RuntimeError if there is no such table, after asking the server once more."""
        facts = self.tables().get(name)
        if facts is None:
            self.refresh(None)
            facts = self.tables().get(name)
            if facts is None:
                raise RuntimeError(
                    f"Priority table {name} was not found; there are: {', '.join(sorted(self.tables()))}"
                )
        return facts

    def _signatures(self, infos: Mapping[str, ReplaydTableInfo], timeout_s: float | None) -> Mapping[str, Any]:
        host, _, port = self._client.server_address.rpartition("://")[2].rpartition(":")
        local = LOCAL.get(int(port)) if host in _LOCAL_HOSTS and port.isdecimal() else None
        if local is not None:
            signatures: Mapping[str, Any] = local.signatures
            return signatures
        registry = infos.get(REGISTRY)
        if registry is None:
            return {name: info.signature for name, info in infos.items()}
        # The item may still be on its way, when the server has just begun.
        timeout_ms = None if timeout_s is None else timeout_s * 1000
        text: NDArray[np.uint8] = self._client.sample_batch(REGISTRY, 1, timeout_ms=timeout_ms).data
        return unpacked(text.tobytes())
