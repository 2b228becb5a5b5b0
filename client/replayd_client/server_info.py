"""What `info` says, for people and programs: one `TableInfo` for each table.

Unknown keys are kept, so that a newer server loses nothing here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from replayd_client.messages import HelloReply, TableDescription
from replayd_client.specs import TensorSpec
from replayd_client.structure import Structure


@dataclass(frozen=True, slots=True)
class TableInfo:
    """State of one table. `details` has everything the server says, also as attributes (`info.evictions`)."""

    name: str
    current_size: int
    """Items in the table."""
    max_size: int
    max_times_sampled: int
    """0: no limit."""
    signature: Any
    """Nest of TensorSpec, rows first; None if the table takes anything."""
    rate_limiter_info: Mapping[str, Any]
    """The limiter's settings, counters and cursor."""
    waiting: tuple[Mapping[str, Any], ...]
    """Requests that the limiter holds back: side, requests, items, waited_s, blocked_by, why."""
    details: Mapping[str, Any] = field(repr=False)

    def __getattr__(self, name: str) -> Any:
        try:
            details = object.__getattribute__(self, "details")
            return details[name]
        except (AttributeError, KeyError):
            raise AttributeError(f"the server says nothing of {name!r}") from None


def table_infos(info: Mapping[str, Any], hello: HelloReply) -> dict[str, TableInfo]:
    """The tables of an `info` reply by name, with the signatures of `hello`."""
    return {table["name"]: _table_info(table, hello.tables.get(table["name"])) for table in _tables(info)}


def blocked_inserts(info: Mapping[str, Any], tables: Iterable[str]) -> dict[str, Mapping[str, Any]]:
    """What `info` says of the inserts that wait (protocol §11: why, blocked_by, who_must_act), for those of the tables
    where they do."""
    wanted = set(tables)
    return {
        str(table["name"]): entry
        for table in _tables(info)
        if table["name"] in wanted
        for entry in _waiting(table)
        if entry.get("side") == "insert"
    }


def limiters_of(info: Mapping[str, Any], tables: Iterable[str]) -> dict[str, Mapping[str, Any]]:
    """The rate limiter's numbers (protocol §11) of each of these tables."""
    wanted = set(tables)
    return {str(table["name"]): table.get("limiter", {}) for table in _tables(info) if table["name"] in wanted}


def signature_nest(description: TableDescription | None) -> Any:
    """A signature as a nest of TensorSpec, None if there is none."""
    if description is None or description.signature is None:
        return None
    specs = [TensorSpec(shape, dtype, "/".join(map(str, path)) or None) for path, dtype, shape in description.signature]
    return Structure.from_paths([path for path, _, _ in description.signature]).rebuild(specs)


def _table_info(table: Mapping[str, Any], description: TableDescription | None) -> TableInfo:
    return TableInfo(
        name=table["name"],
        current_size=table.get("size", 0),
        max_size=table.get("max_size", 0),
        max_times_sampled=table.get("max_times_sampled", 0),
        signature=signature_nest(description),
        rate_limiter_info=table.get("limiter", {}),
        waiting=tuple(_waiting(table)),
        details=dict(table),
    )


def _tables(info: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    tables = info.get("tables")
    if not isinstance(tables, list):
        return []
    return [table for table in tables if isinstance(table, dict) and isinstance(table.get("name"), str)]


def _waiting(table: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    waiting = table.get("waiting")
    return [entry for entry in waiting if isinstance(entry, dict)] if isinstance(waiting, list) else []
