"""What a client knows of the server's tables: signatures, and how priorities are stored.

A server of this package keeps its signatures in an item of a table of its own, REGISTRY, since replayd would enforce
them by path, which the incumbent does not; that the table is there also says that the others, unless a selector is
Prioritized, store priorities of any sign. Servers of this process are asked directly. Other replayd daemons are as
they are.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol
from weakref import WeakValueDictionary

import numpy as np
from numpy.typing import NDArray

from replayd.compat.reverb import _priorities
from replayd.compat.reverb._protos import DBL_MAX
from replayd.compat.reverb._signatures import unpacked
from replayd.compat.reverb.reverb_types import TableInfo
from replayd_client import Client, inspection
from replayd_client import TableInfo as ReplaydTableInfo
from replayd_client.errors import ReplaydError
from replayd_client.server_info import table_infos

REGISTRY: Final = "~reverb"
"""The table in which a server of this package says what the protocol has no words for."""
ANSWER_S: Final = 5.0
"""Time given to a server that has just been met to say what its tables are."""
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


class UnknownTable(RuntimeError):
    """There is no table of this name on the server."""

    def __init__(self, name: str, tables: Iterable[str]) -> None:
        self.tables = sorted(table for table in tables if table != REGISTRY)
        """Those there are."""
        self.name = name
        super().__init__(f"Priority table {name} was not found; there are: {', '.join(self.tables)}")

    def __reduce__(self) -> tuple[type[UnknownTable], tuple[str, list[str]]]:
        return type(self), (self.name, self.tables)


class LocalTables(Protocol):
    """A server of this process."""

    @property
    def signatures(self) -> Mapping[str, Any]: ...


LOCAL: Final[WeakValueDictionary[int, Any]] = WeakValueDictionary()
"""The running servers of this process by port, each a LocalTables."""


@dataclass(frozen=True, slots=True)
class Tables:
    """The tables of one server from its start to its end: what comes in its place on the port may have others."""

    server_id: bytes
    facts: Mapping[str, TableFacts]
    is_of_this_package: bool
    """Whether the server is one of this package."""

    def restored(self, table: str, stored: Any, before: Tables) -> NDArray[np.float64]:
        """Priorities as they were to be stored by the server `before`, as this one stores them.

        It refuses negative ones where its table does. They are the same where both keep them alike.
        """
        is_signed, was_signed = (each.is_signed(table) for each in (self, before))
        values = np.asarray(stored, np.float64)
        if is_signed == was_signed:
            return values
        return _priorities.encode(values) if is_signed else _priorities.decode(values)

    def is_signed(self, table: str) -> bool:
        """Whether it has such a table, which stores priorities as `_priorities.encode` gives them."""
        facts = self.facts.get(table)
        return facts is not None and facts.is_signed


class Directory:
    """The tables of the server at the other end, as one client knows them: asked for once, by `refresh`, and when
    another server has taken its place. Safe for threads."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._known: Tables | None = None

    def refresh(self, timeout_s: float | None) -> dict[str, TableInfo]:
        """State of all tables by name, as the server says it now."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while True:
            report = inspection.info(self._client._pool, deadline)
            hello = self._client._directory.hello(deadline, refresh=True)
            # Between the two another server may have come.
            if report["server_id"] == hello.server_id:
                break
        infos = table_infos(report, hello)
        signatures = self._signatures(infos, deadline)
        is_ours = infos.pop(REGISTRY, None) is not None
        shown = {name: TableInfo.of(info.details, signatures.get(name)) for name, info in infos.items()}
        facts = {}
        for name, info in shown.items():
            options = (info.sampler_options, info.remover_options)
            is_prioritized = any(each.HasField("prioritized") for each in options)
            is_gated = info.rate_limiter_info.max_diff < DBL_MAX
            facts[name] = TableFacts(info.signature, is_prioritized, is_ours and not is_prioritized, is_gated)
        self._known = Tables(hello.server_id, facts, is_ours)
        return shown

    def tables(self, within_s: float | None = None) -> Tables:
        """The tables of the server there is, as it said when it was asked last; waits for one.

        If none answers `within_s` (None: waits on), they are those of the last one.
        """
        known = self._known
        if known is None:
            return self._asked(None)
        if self._server_id() == known.server_id:
            return known
        try:
            return self._asked(within_s)
        except ReplaydError:
            if within_s is None:
                raise
            return known

    def tables_with(self, names: Iterable[str]) -> Tables:
        """As `tables`, with these among them. Raises UnknownTable, after asking the server once more."""
        tables = self.tables()
        if any(name not in tables.facts for name in names):
            tables = self._asked(None)
        for name in names:
            if name not in tables.facts:
                raise UnknownTable(name, tables.facts)
        return tables

    def newest(self) -> Tables:
        """The tables of the server that was asked last, which may have gone; waits only where none was asked yet."""
        return self._known or self._asked(None)

    def tables_of(self, server_id: bytes) -> Tables | None:
        """The tables of a server that has just been met, None if yet another one is there. Raises ReplaydError if none
        answers within ANSWER_S."""
        known = self._known
        if known is None or known.server_id != server_id:
            known = self._asked(ANSWER_S)
        return known if known.server_id == server_id else None

    def table(self, name: str, within_s: float | None = None) -> TableFacts:
        """Waits as `tables` does. Raises UnknownTable, after asking the server once more."""
        return self.tables(within_s).facts.get(name) or self.asked_for(name)

    def asked_for(self, name: str) -> TableFacts:
        """A table that was not there when the server was asked last. Raises UnknownTable if it still is not."""
        facts = self._asked(None).facts
        if name not in facts:
            raise UnknownTable(name, facts)
        return facts[name]

    def _asked(self, within_s: float | None) -> Tables:
        self.refresh(within_s)
        assert self._known is not None, "a refresh sets what is known"
        return self._known

    def _server_id(self) -> bytes | None:
        """Of the server with which there is a session; None if there is none now. Does not wait."""
        with self._client._pool.connection() as connection:
            try:
                # Whatever comes answers a request that was given up.
                connection.pump(0.0)
            except ReplaydError:
                return None
            return connection.hello.server_id if connection.ready and connection.hello is not None else None

    def _signatures(self, infos: Mapping[str, ReplaydTableInfo], deadline: float | None) -> Mapping[str, Any]:
        host, _, port = self._client.server_address.rpartition("://")[2].rpartition(":")
        local = LOCAL.get(int(port)) if host in _LOCAL_HOSTS and port.isdecimal() else None
        if local is not None:
            signatures: Mapping[str, Any] = local.signatures
            return signatures
        registry = infos.get(REGISTRY)
        if registry is None:
            return {name: info.signature for name, info in infos.items()}
        # The item may still be on its way, when the server has just begun.
        timeout_ms = None if deadline is None else max(deadline - time.monotonic(), 0.0) * 1000
        text: NDArray[np.uint8] = self._client.sample_batch(REGISTRY, 1, timeout_ms=timeout_ms).data
        return unpacked(text.tobytes())
