"""Which tables there are and what they take, as the server's `hello` said; checked before anything is sent."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from typing import Any

from replayd_client.arguments import checked_table, value_text
from replayd_client.array_messages import AT_MAX, PRIORITY_MAX
from replayd_client.errors import ArgumentTypeError, PriorityError, SignatureError, UnknownTableError
from replayd_client.messages import HelloReply, TableDescription
from replayd_client.pool import ConnectionPool
from replayd_client.structure import Path, path_text
from replayd_client.windows import Shown
from replayd_client.wire import encode_hello

KNOWN_FITS = 4096
"""Pairs of table and trajectory that are remembered to fit."""


class TableDirectory:
    """The server's tables. Safe for threads."""

    def __init__(self, pool: ConnectionPool) -> None:
        self._pool = pool
        self._lock = threading.Lock()
        self._hello: HelloReply | None = None
        self.version = 0
        """Counts the times that the server has said what its tables are."""
        self._fits: set[tuple[str, Shown]] = set()

    @property
    def is_known(self) -> bool:
        """Whether the server has said what its tables are."""
        return self._hello is not None

    def hello(self, deadline: float | None, *, refresh: bool = False) -> HelloReply:
        """What the server said of itself. Raises ConnectionLostError if there is none at the deadline."""
        hello = self._hello
        if hello is not None and not refresh:
            return hello
        with self._pool.connection() as connection:
            if refresh:
                reply = connection.call("hello", lambda request_id: encode_hello(request_id, ""), deadline)
                assert isinstance(reply, HelloReply), "hello is answered by hello"
                hello = reply
            else:
                hello = connection.open_session(deadline)
        with self._lock:
            self._hello = hello
            self._fits.clear()
            self.version += 1
        return hello

    def table(self, name: str, deadline: float | None) -> TableDescription:
        """Raises UnknownTableError, which lists the tables there are, after asking the server once more."""
        checked_table(name)
        found = self.hello(deadline).tables.get(name)
        if found is None:
            tables = self.hello(deadline, refresh=True).tables
            found = tables.get(name)
            if found is None:
                names = ", ".join(sorted(map(repr, tables)))
                raise UnknownTableError(
                    f"there is no table {name!r}; the server has: {names}",
                    detail={"table": name, "tables": sorted(tables)},
                )
        return found

    def check(self, name: str, shown: Shown, deadline: float | None) -> None:
        """Raises SignatureError unless such a trajectory fits the table, and UnknownTableError."""
        key = (name, shown)
        if key in self._fits:
            return
        description = self.table(name, deadline)
        if description.signature is not None:
            _check_fits(name, description.signature, shown)
        with self._lock:
            if len(self._fits) >= KNOWN_FITS:
                self._fits.clear()
            self._fits.add(key)

    def forget(self) -> None:
        """In a forked child: another thread of the parent may have held the lock."""
        self._lock = threading.Lock()


def checked_priority(priority: Any) -> float:
    """The priority as a float, AT_MAX for "max".

    Raises ArgumentTypeError for what is no number, PriorityError for one that is not between 0 and PRIORITY_MAX.
    """
    if type(priority) is float and 0.0 <= priority <= PRIORITY_MAX:
        return priority
    if isinstance(priority, str) and priority == "max":
        return AT_MAX
    try:
        # A text that reads as a number is none.
        value = float("no" if isinstance(priority, str | bytes | bytearray) else priority)
    except (TypeError, ValueError):
        raise ArgumentTypeError(f"a priority is a number or 'max', not {value_text(priority)}") from None
    except OverflowError:
        value = math.inf
    if not (0.0 <= value <= PRIORITY_MAX):
        raise PriorityError(
            f"a priority must be finite, at least 0 and at most {PRIORITY_MAX:g}, got {value!r}",
            detail={"priority": repr(value)},
        )
    return value


def _check_fits(table: str, signature: Sequence[tuple[Path, str, tuple[int | None, ...]]], shown: Shown) -> None:
    wanted = {path: (dtype, shape) for path, dtype, shape in signature}
    paths = {path for path, _, _ in shown}
    for path, (dtype, shape) in wanted.items():
        if path not in paths:
            raise _mismatch(table, path, _text(dtype, shape), "no such column")
    for path, dtype, shape in shown:
        if path not in wanted:
            raise _mismatch(table, path, "no such column", _text(dtype, shape))
        dtype_wanted, shape_wanted = wanted[path]
        if dtype != dtype_wanted or not _shape_fits(shape_wanted, shape):
            raise _mismatch(table, path, _text(dtype_wanted, shape_wanted), _text(dtype, shape))


def _shape_fits(wanted: Sequence[int | None], shape: Sequence[int]) -> bool:
    return len(wanted) == len(shape) and all(w is None or w == s for w, s in zip(wanted, shape, strict=True))


def _mismatch(table: str, path: Path, expected: str, got: str) -> SignatureError:
    return SignatureError(
        f"table {table!r}, column {path_text(path)}: expected {expected}, got {got}",
        detail={"table": table, "path": path_text(path), "expected": expected, "got": got},
    )


def _text(dtype: str, shape: Sequence[int | None]) -> str:
    return f"{dtype}[{', '.join('?' if size is None else str(size) for size in shape)}]"
