"""Tables and the server: replayd's, inside the calling process, with the incumbent's arguments and questions."""

from __future__ import annotations

import contextlib
import os
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from operator import index
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from replayd import selectors
from replayd.compat.reverb import _checkpoints, rate_limiters
from replayd.compat.reverb._directory import LOCAL, REGISTRY
from replayd.compat.reverb._signatures import as_sent, check_signature, packed, unpacked
from replayd.compat.reverb.item_selectors import FifoSelector, LifoSelector, SelectorType
from replayd.compat.reverb.platform.checkpointers_lib import CheckpointerBase, default_checkpointer
from replayd.compat.reverb.reverb_types import TableInfo
from replayd.embedded import Server as ReplaydServer
from replayd.errors import BindError, StoreError
from replayd.peer_names import PeerNames
from replayd.reports import report_table
from replayd.table import Table as ReplaydTable
from replayd_client import Client as ReplaydClient

if TYPE_CHECKING:
    from replayd.compat.reverb.client import Client

_INT32_MAX = 2**31 - 1


class TableExtensionBase(ABC):
    """The base of what makes a table's extensions, which are C++ there. None can be run here; one may make none."""

    @abstractmethod
    def build_internal_extensions(self, table_name: str) -> Sequence[Any]:
        """The extensions of the table of this name."""


class Table:
    """A table, live: `info` and the questions below show it as it is in the running server of this process.

    Raises ValueError for an empty name, a max_size below 1, a signature whose leaves are no specs, and for a limiter
    that belongs to another table.
    """

    def __init__(
        self,
        name: str,
        sampler: SelectorType | selectors.Selector,
        remover: SelectorType | selectors.Selector,
        max_size: int,
        rate_limiter: rate_limiters.RateLimiter,
        max_times_sampled: int = 0,
        extensions: Sequence[TableExtensionBase] = (),
        signature: Any = None,
    ) -> None:
        if not name:
            raise ValueError("name must be nonempty")
        if max_size <= 0:
            raise ValueError(f"max_size ({max_size}) must be a positive integer")
        for what, number in (("max_size", max_size), ("max_times_sampled", max_times_sampled)):
            if not isinstance(number, (int, np.integer)) or abs(int(number)) > _INT32_MAX:
                raise TypeError(f"{what} must be an integer of 32 bits, got {number!r}")
        for extension in extensions:
            if extension.build_internal_extensions(name):
                raise ValueError("extensions of tables are C++ and cannot be run here; replayd has some of its own")
        if name == REGISTRY:
            raise ValueError(f"{REGISTRY!r} is the name of a table that every server has")
        self._sampler = sampler
        self._remover = remover
        self._extensions = extensions
        self._signature = check_signature(signature)
        self._max_times_sampled = int(max_times_sampled)
        # Without the signature, which replayd would enforce: see `_directory`.
        self._table = ReplaydTable(
            name, _built(sampler), _built(remover), int(max_size), rate_limiter, max_times_sampled=max_times_sampled
        )
        self._is_left = False

    @classmethod
    def queue(
        cls, name: str, max_size: int, extensions: Sequence[TableExtensionBase] = (), signature: Any = None
    ) -> Table:
        """First in, first out, each item once; inserts wait while it is full."""
        fifo = FifoSelector()
        return cls(name, fifo, fifo, max_size, rate_limiters.Queue(max_size), 1, extensions, signature)

    @classmethod
    def stack(
        cls, name: str, max_size: int, extensions: Sequence[TableExtensionBase] = (), signature: Any = None
    ) -> Table:
        """Last in, first out, each item once; inserts wait while it is full."""
        lifo = LifoSelector()
        return cls(name, lifo, lifo, max_size, rate_limiters.Stack(max_size), 1, extensions, signature)

    @property
    def name(self) -> str:
        """The name under which clients find the table."""
        return self._table.name

    @property
    def signature(self) -> Any:
        """The nest of specs that items must fit, as it was given; None if the table takes anything."""
        return self._signature

    @property
    def internal_table(self) -> ReplaydTable:
        """replayd's table, which belongs to one server: the next one that serves this one gets another."""
        return self._table

    @property
    def info(self) -> TableInfo:
        """The table's state now: its settings, sizes and counts. Before it is served all counts are 0."""
        described = report_table(self._table, PeerNames(), time.monotonic()) if self._is_served else self._unserved()
        return TableInfo.of({**described, "max_times_sampled": self._max_times_sampled}, self._signature)

    def can_sample(self, num_samples: int) -> bool:
        """Whether the limiter would let so many samples pass now; knows nothing of max_times_sampled."""
        return self._table.limiter.can_sample(index(num_samples))

    def can_insert(self, num_inserts: int) -> bool:
        """Whether the limiter would let so many inserts pass now; knows nothing of max_size."""
        return self._table.limiter.can_insert(index(num_inserts))

    def replace(
        self,
        name: str | None = None,
        sampler: Any = None,
        remover: Any = None,
        max_size: int | None = None,
        rate_limiter: rate_limiters.RateLimiter | None = None,
        max_times_sampled: int | None = None,
        extensions: Sequence[TableExtensionBase] | None = None,
        signature: Any = None,
    ) -> Table:
        """A new, empty table with the settings of this one but those given."""
        table = self._table
        limiter = table.limiter
        return Table(
            name=self.name if name is None else name,
            sampler=sampler or _again(self._sampler),
            remover=remover or _again(self._remover),
            max_size=table.max_size if max_size is None else max_size,
            rate_limiter=rate_limiter
            or rate_limiters.RateLimiter(
                limiter.samples_per_insert, limiter.min_size_to_sample, limiter.min_diff, limiter.max_diff
            ),
            max_times_sampled=self._max_times_sampled if max_times_sampled is None else max_times_sampled,
            extensions=self._extensions if extensions is None else extensions,
            signature=self._signature if signature is None else signature,
        )

    def __repr__(self) -> str:
        signature = "nullptr" if self._signature is None else repr(self._signature)
        return (
            f"Table(sampler={self._sampler}, remover={self._remover}, max_size={self._table.max_size}, "
            f"max_times_sampled={self._max_times_sampled}, name={self.name}, rate_limiter={self._table.limiter}, "
            f"signature={signature})"
        )

    @property
    def is_taken(self) -> bool:
        """Whether a server serves it."""
        return self._is_served and not self._is_left

    def leave(self) -> None:
        """Its server has ended. What it shows stays as it is until another one serves it."""
        self._is_left = True

    def begin(self) -> None:
        """Before it is served: it is empty, also where a server had it that has ended."""
        if self._is_left and self._is_served:
            self._table = self._table.replace()
        self._is_left = False

    def restore_settings(self, saved: Mapping[str, Any]) -> None:
        """Take the settings of a checkpoint, which count for more than the constructor's; the signature is kept apart.

        Before the table is served.
        """
        self._sampler = selectors.from_description(saved["sampler"])
        self._remover = selectors.from_description(saved["remover"])
        self._max_times_sampled = saved["max_times_sampled"]
        limits = ("samples_per_insert", "min_size_to_sample", "min_diff", "max_diff")
        self._table = ReplaydTable(
            self.name,
            selectors.from_description(saved["sampler"]),
            selectors.from_description(saved["remover"]),
            saved["max_size"],
            rate_limiters.RateLimiter(*(saved[name] for name in limits)),
            max_times_sampled=self._max_times_sampled,
        )

    def restore_signature(self, signature: Any) -> None:
        """Take the signature of a checkpoint; what says the same as the table's own leaves that."""
        if signature is None or self._signature is None or signature != as_sent(self._signature):
            self._signature = signature

    @property
    def _is_served(self) -> bool:
        return hasattr(self._table, "items")

    def _unserved(self) -> dict[str, Any]:
        table = self._table
        return {
            "name": table.name,
            "sampler": table.sampler.describe(),
            "remover": table.remover.describe(),
            "max_size": table.max_size,
            "limiter": table.limiter.describe(),
            "size": 0,
            "unique_samples": 0,
        }


class Server:
    """Serve tables from a thread of this process until `stop`, or until nobody refers to it.

    Listens on loopback, where the incumbent listens everywhere: nothing here says who may come in. `replayd serve` does
    the rest.

    `port` None picks a free one. Begins with the newest checkpoint of the `checkpointer`, None: none, and one on a new
    temporary directory. As with the incumbent checkpoints are written when `Client.checkpoint` asks, and at no other
    time, and settings and signatures of the tables in one replace those given here. A table whose server has ended may
    be served again, and begins empty. Raises ValueError for no tables, for two of one name, for a table that a running
    server has, for a checkpoint with a table that is not given, and for a port that cannot be bound: also one that is
    taken, where the incumbent would share it; RuntimeError for a checkpoint that cannot be read, and where none can be
    written.
    """

    def __init__(
        self,
        tables: Sequence[Table] | None = None,
        port: int | None = None,
        checkpointer: CheckpointerBase | None = None,
    ) -> None:
        if not tables:
            raise ValueError("At least one table must be provided")
        names = [table.name for table in tables]
        twice = dict.fromkeys(name for name in names if names.count(name) > 1)
        if twice:
            raise ValueError(f"Multiple items in tables have the same name: {', '.join(twice)}")
        if port is not None and not 0 <= port <= 65_535:
            raise ValueError(f"{port} is not a port")
        taken = [table.name for table in tables if table.is_taken]
        if taken:
            raise ValueError(f"tables of a server that is running: {', '.join(taken)}; Table.replace() makes new ones")
        for table in tables:
            table.begin()
        self._tables = list(tables)
        described = (checkpointer or default_checkpointer()).internal_checkpointer()
        try:
            place = _checkpoints.find_place(described)
            self._take_settings(place.settings())
            self._server = self._started(place.path, port)
        except BaseException as error:
            for table in tables:
                table.leave()
            if isinstance(error, BindError):
                raise ValueError(str(error)) from error
            if isinstance(error, StoreError):
                raise RuntimeError(str(error)) from error
            raise
        own_root = Path(described.path) if checkpointer is None else None
        # Also where nobody stops the server: when it is forgotten, or when the program ends.
        self._end = weakref.finalize(self, _end, self._server, self._tables, place.path, own_root, os.getpid())
        self._port = self._server.port
        try:
            _checkpoints.remove_older(place)
            self._publish()
        except BaseException:
            self._end()
            raise
        LOCAL[self._port] = self

    @property
    def port(self) -> int:
        """The TCP port on which it serves, the one that was chosen if none was given."""
        return self._port

    @property
    def signatures(self) -> Mapping[str, Any]:
        """The signatures of the tables that have one, by table."""
        return {table.name: table.signature for table in self._tables if table.signature is not None}

    def stop(self) -> None:
        """Stop serving; those who wait are told. May be called again."""
        if LOCAL.get(self._port) is self:
            del LOCAL[self._port]
        try:
            self._server.stop()
        finally:
            self._end()

    def wait(self) -> None:
        """Return when the server has been stopped; KeyboardInterrupt stops it and is raised again."""
        self._server.wait()

    def localhost_client(self) -> Client:
        """A client of this server."""
        from replayd.compat.reverb.client import Client

        return Client(f"localhost:{self._port}")

    def __repr__(self) -> str:
        return f"Server(port={self._port}, tables={self._tables})"

    def _take_settings(self, saved: Mapping[str, Mapping[str, Any]]) -> None:
        names = [table.name for table in self._tables]
        if saved and REGISTRY not in saved:
            raise ValueError("the checkpoint is of a daemon of replayd's, whose priorities are kept in another way")
        for name in saved.keys() - {REGISTRY, *names}:
            raise ValueError(
                f"Trying to load table '{name}' but table was not found in provided list of tables. "
                f"Available tables: {names}"
            )
        for table in self._tables:
            if table.name in saved:
                table.restore_settings(saved[table.name])
        self._restored = saved.keys() - {REGISTRY}

    def _started(self, data_dir: Path, port: int | None) -> ReplaydServer:
        fifo = FifoSelector()
        registry = ReplaydTable(REGISTRY, fifo.build(), fifo.build(), 1, rate_limiters.MinSize(1))
        return ReplaydServer(
            [*(table.internal_table for table in self._tables), registry],
            port,
            data_dir=data_dir,
            checkpoint_interval_s=0,
            checkpoint_on_stop=False,
        )

    def _publish(self) -> None:
        """Put the signatures where clients in other processes find them; those of a checkpoint are there."""
        with ReplaydClient(f"localhost:{self._port}") as client:
            if self._restored:
                [saved] = client.peek(REGISTRY, newest=1)
                signatures = unpacked(saved.data.tobytes())
                for table in self._tables:
                    if table.name in self._restored:
                        table.restore_signature(signatures.get(table.name))
            client.insert(np.frombuffer(packed(self.signatures), np.uint8), {REGISTRY: 1.0})


def _end(server: ReplaydServer, tables: Sequence[Table], data_dir: Path, own_root: Path | None, process: int) -> None:
    """Stop a server that nobody needs any more, and leave nothing behind where there is no checkpoint."""
    # A child that was forked has neither the server nor a say about its files.
    if os.getpid() != process:
        return
    # One that ended by itself has told so already.
    with contextlib.suppress(Exception):
        server.stop()
    for table in tables:
        table.leave()
    _checkpoints.remove_if_empty(data_dir)
    if own_root is not None:
        with contextlib.suppress(OSError):
            own_root.rmdir()


def _again(selector: SelectorType | selectors.Selector) -> SelectorType | selectors.Selector:
    """A selector of the same settings for another table."""
    return selectors.from_description(selector.describe()) if hasattr(selector, "describe") else selector


def _built(selector: Any) -> selectors.Selector:
    """A selector for one table; those that are descriptions are used as often as one likes."""
    made: selectors.Selector = selector.build() if hasattr(selector, "build") else selector
    return made
