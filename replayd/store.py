"""A store: the LMDB environment in its directory, what is in it, and how it is changed. One thread at a time uses one.

Owns transactions and the growth of the map. Every change is one transaction that either is on the disk when the call
returns or, if it raises, has not happened. What the bytes mean: `store_format`; the files: `store_files`.
"""

from __future__ import annotations

import contextlib
import logging
import os
import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import lmdb
import numpy as np

from replayd.errors import StoreError, StoreUnreadable
from replayd.journal_format import ENTRIES_AT_MOST, count_of
from replayd.state import State
from replayd.store_files import (
    DATA,
    MARK,
    check_structure,
    complete_mark,
    lock_mark,
    make_data,
    make_lock,
    not_made,
    reason,
    remove_remains,
    sync_directory,
    what_is_missing,
)
from replayd.store_format import (
    ArrayEntry,
    Damaged,
    Head,
    hash_of,
    pack_head,
    pack_piece,
    put_together,
    take_apart,
    unpack_head,
    unpack_piece,
)

log = logging.getLogger("replayd")

MAP_BYTES = 1 << 30
"""Address space of the map at first; it doubles when it is full, and costs no memory."""
TRANSACTION_BYTES = 1 << 24
"""Of pieces in one transaction: its dirty pages are in memory until it is committed."""

_DATABASES = ("head", "index", "blocks", "journal")
_HEAD = b"head"
_NUMBER = struct.Struct("=Q")

Txn = Any
"""lmdb.Transaction."""


@dataclass(frozen=True, slots=True)
class IndexWritten:
    """How much of an index had to be written."""

    pieces: int
    """Pieces that had changed."""
    nbytes: int
    """What they take in the store."""


class Store:
    """The store in a directory, open for reading and writing. A context manager."""

    def __init__(self, directory: Path, map_bytes: int = MAP_BYTES, *, begins_anew: bool = False) -> None:
        """Opens it; makes an empty one where there is none, and with `begins_anew` also where one is missing.

        Raises StoreNotMade if the directory cannot be had, StoreInUse if another process has it, StoreUnreadable, and
        StoreError for what else is in the way.
        """
        self.directory = directory
        self.between: Callable[[], None] = lambda: None
        """Called where a long change may be interrupted by others."""
        self._map_bytes = map_bytes
        self._next_block = 1
        self._size_bytes = 0
        self._is_open = False
        self.head: Head | None = None
        """Of the last checkpoint that is on the disk; None: there is none."""
        try:
            directory.mkdir(parents=True, exist_ok=True)
            if (directory / DATA).exists() and not (directory / MARK).exists():
                raise StoreUnreadable(f"{directory} has a {DATA} but no {MARK}: it is no store of replayd's")
            self._mark = lock_mark(directory)
        except OSError as error:
            raise not_made(directory, error) from error
        try:
            with _as_store_error(directory):
                if (directory / DATA).exists():
                    check_structure(directory)
                elif not begins_anew and (missing := what_is_missing(directory)):
                    raise StoreUnreadable(missing)
                else:
                    make_data(directory)
                # The mark comes last: a directory that has it has had data.
                complete_mark(self._mark)
                make_lock(directory)
            with self._environment():
                pass  # Which opens it.
            remove_remains(directory)
        except BaseException:
            os.close(self._mark)
            raise

    @property
    def size_bytes(self) -> int:
        """Of the file, when it could last be seen; what has been removed is used again before it grows."""
        # Whoever asks has just written, and that must not seem to have failed.
        with contextlib.suppress(OSError, MemoryError):
            self._size_bytes = (self.directory / DATA).stat().st_size
        return self._size_bytes

    def close(self) -> None:
        """Let others have it."""
        if self._is_open:
            self._env.close()
        os.close(self._mark)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    # --- reading ------------------------------------------------------------------------------------------------------

    def read_index(self) -> State:
        """The state that the last checkpoint saved. Raises StoreUnreadable."""
        assert self.head is not None, "an empty store has no index"
        with self._reading("index") as txn:
            arrays = [_read_array(txn, entry) for entry in self.head.arrays]
        state: State = put_together(self.head.index, arrays)
        return state

    def blocks(self) -> Iterator[tuple[int, memoryview]]:
        """Number and content of each block, in order; the content lies in the map and is valid until the next one."""
        with self._reading("blocks") as txn:
            for key, value in txn.cursor():
                yield _NUMBER.unpack(key)[0], value

    def content_bytes(self) -> tuple[int, int]:
        """What blocks and journal take, about."""
        with self._reading("head") as txn:
            blocks, journal = (txn.stat(self._db[name]) for name in ("blocks", "journal"))
        return _bytes_of(blocks), _bytes_of(journal)

    def entries(self, first: int) -> Iterator[tuple[int, memoryview]]:
        """The journal's values by number, from this one on; each is valid until the next one."""
        with self._reading("journal") as txn:
            cursor = txn.cursor()
            more = cursor.set_range(_NUMBER.pack(first))
            while more:
                yield _NUMBER.unpack(cursor.key())[0], cursor.value()
                more = cursor.next()

    def next_entry(self) -> int:
        """The number behind all that the journal has, or that the index has seen."""
        with self._reading("journal") as txn:
            cursor = txn.cursor()
            if not cursor.last():
                return self._next_unseen()
            last, value = int(_NUMBER.unpack(cursor.key())[0]), cursor.value()
            try:
                return max(self._next_unseen(), last + count_of(value))
            except Damaged:
                return last + ENTRIES_AT_MOST

    def _next_unseen(self) -> int:
        return 1 if self.head is None else int(self.head.index.get("journal", {}).get("next", 1))

    # --- changing -----------------------------------------------------------------------------------------------------

    def add_blocks(self, blocks: Sequence[bytes]) -> list[int]:
        """Store these; their numbers."""
        numbers: range

        def put(txn: Txn) -> None:
            nonlocal numbers
            numbers = range(self._next_block, self._next_block + len(blocks))
            # Also if it fails: it may only seem to.
            self._next_block = numbers.stop
            self._append(txn, "blocks", zip(numbers, blocks, strict=True))

        self._transact(put)
        return list(numbers)

    def drop_blocks(self, numbers: Sequence[int]) -> None:
        """Remove these blocks, which nothing needs."""

        def drop(txn: Txn) -> None:
            for number in numbers:
                txn.delete(_NUMBER.pack(number), db=self._db["blocks"])

        self._transact(drop)

    def add_entries(self, values: Sequence[tuple[int, bytes]]) -> None:
        """Append these values to the journal, under their numbers."""

        self._transact(lambda txn: self._append(txn, "journal", values))

    def drop_entries(self, before: int, at_most: int) -> bool:
        """Remove values of the journal with smaller numbers, so many at most; whether there are more."""
        with self._reading("journal") as txn:
            keys = list(map(bytes, islice(txn.cursor().iternext(values=False), at_most)))
        outdated = [key for key in keys if _NUMBER.unpack(key)[0] < before]

        def drop(txn: Txn) -> None:
            for key in outdated:
                txn.delete(key, db=self._db["journal"])

        if outdated:
            self._transact(drop)
        return len(outdated) == at_most

    def write_index(self, state: State, *, saved_at: float, clean: bool) -> IndexWritten:
        """Put this state in the place of the last one. From the end of the call on it is what a start would find."""
        with self._environment():
            pass  # If it has to be opened again its head may be another one than was thought.
        before = {} if self.head is None else {array.path: array for array in self.head.arrays}
        generation = 1 if self.head is None else self.head.generation + 1
        tree, arrays = take_apart(state)
        entries: list[ArrayEntry] = []
        puts: list[tuple[bytes, bytes]] = []
        pieces = written = waiting = 0
        for path, array in arrays.items():
            entry = ArrayEntry(path, array.dtype, array.shape, [])
            entries.append(entry)
            raw = array.reshape(-1).view(np.uint8).data
            known = before[path].pieces if path in before else []
            for number, (start, end) in enumerate(entry.spans()):
                hash = hash_of(raw[start:end])
                if number < len(known) and known[number][1] == hash:
                    entry.pieces.append(known[number])
                    continue
                entry.pieces.append((generation, hash))
                puts.append((entry.piece_keys()[-1], pack_piece(raw[start:end], array.dtype.itemsize)))
                pieces, written = pieces + 1, written + len(puts[-1][1])
                waiting += len(puts[-1][1])
                if waiting >= TRANSACTION_BYTES:
                    self._put_pieces(puts)
                    puts, waiting = [], 0
                self.between()
        head = Head(generation, saved_at, clean, tree, entries)
        self._put_pieces(puts)
        named = {key for entry in entries for key in entry.piece_keys()}
        self._replace_head(head, [key for entry in before.values() for key in entry.piece_keys() if key not in named])
        return IndexWritten(pieces, written)

    def sweep(self) -> None:
        """Remove pieces that the head does not name: a checkpoint that was cut short left them."""
        named = {key for entry in (self.head.arrays if self.head else []) for key in entry.piece_keys()}
        with self._reading("index") as txn:
            strays = [key for key in map(bytes, txn.cursor().iternext(values=False)) if key not in named]

        def drop(txn: Txn) -> None:
            for key in strays:
                txn.delete(key, db=self._db["index"])

        if strays:
            self._transact(drop)

    # --- transactions -------------------------------------------------------------------------------------------------

    def _put_pieces(self, puts: Sequence[tuple[bytes, bytes]]) -> None:
        def put(txn: Txn) -> None:
            for key, value in puts:
                txn.put(key, value, db=self._db["index"])

        if puts:
            self._transact(put)

    def _replace_head(self, head: Head, outdated: Sequence[bytes]) -> None:
        packed = pack_head(head)

        def replace(txn: Txn) -> None:
            txn.put(_HEAD, packed, db=self._db["head"])
            for key in outdated:
                txn.delete(key, db=self._db["index"])

        self._transact(replace)
        self.head = head

    def _append(self, txn: Txn, database: str, values: Iterable[tuple[int, bytes]]) -> None:
        for number, value in values:
            stored = txn.put(_NUMBER.pack(number), value, append=True, db=self._db[database])
            assert stored, f"what is appended to {database!r} as {number} does not come last"

    def _transact(self, change: Callable[[Txn], None]) -> None:
        """One transaction. `change` may be called again: a full map is doubled."""
        while True:
            try:
                with self._environment() as env:
                    # What a copy read that was killed would be kept for it as long as the daemon lives.
                    env.reader_check()
                    with env.begin(write=True) as txn:
                        change(txn)
                return
            except _MapFull:
                self._grow()

    @contextlib.contextmanager
    def _reading(self, database: str) -> Iterator[Txn]:
        with self._environment() as env, env.begin(db=self._db[database], buffers=True) as txn:
            yield txn

    @contextlib.contextmanager
    def _environment(self) -> Iterator[lmdb.Environment]:
        """What transactions are made of, opened again if it had to be closed; its errors are a store's.

        What is on the disk then is the last commit, which may be one that seemed to have failed.
        """
        with _as_store_error(self.directory):
            if not self._is_open:
                self._open()
            try:
                yield self._env
            except lmdb.PanicError:
                # It takes no more.
                self._close_to_open_again()
                raise

    def _grow(self) -> None:
        with self._environment() as env:
            try:
                env.set_mapsize(2 * env.info()["map_size"])
            except lmdb.Error:
                # It has no map any more, not even the one that it had.
                self._close_to_open_again()
                raise

    # --- opening ------------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        self._env = lmdb.open(str(self.directory), map_size=self._map_bytes, max_dbs=len(_DATABASES), mode=0o640)
        try:
            self._db = {
                name: self._env.open_db(name.encode(), integerkey=name in ("blocks", "journal")) for name in _DATABASES
            }
            with self._env.begin(db=self._db["blocks"], buffers=True) as txn:
                cursor = txn.cursor()
                self._next_block = _NUMBER.unpack(cursor.key())[0] + 1 if cursor.last() else 1
                value = txn.get(_HEAD, db=self._db["head"])
                self.head = None if value is None else unpack_head(value)
            sync_directory(self.directory)
        except BaseException:
            self._env.close()
            raise
        self._is_open = True

    def _close_to_open_again(self) -> None:
        """With the next transaction."""
        self._is_open = False
        self._env.close()


class _MapFull(Exception):
    pass


@contextlib.contextmanager
def _as_store_error(directory: Path) -> Iterator[None]:
    """Say of the disk's and LMDB's errors which store it is, and whether it cannot be read."""
    try:
        yield
    except lmdb.MapFullError:
        raise _MapFull from None
    except Damaged as error:
        raise StoreUnreadable(f"{directory}: {error}") from error
    except (lmdb.CorruptedError, lmdb.InvalidError, lmdb.PageNotFoundError, lmdb.VersionMismatchError) as error:
        raise StoreUnreadable(f"{directory}: {error}") from error
    except (lmdb.Error, OSError) as error:
        raise StoreError(f"{directory}: {reason(directory, error)}") from error


def _bytes_of(stat: Any) -> int:
    """What the leaves of a database take."""
    return int(stat["psize"] * (stat["leaf_pages"] + stat["overflow_pages"]))


def _read_array(txn: Txn, entry: ArrayEntry) -> np.ndarray[Any, np.dtype[Any]]:
    raw = np.empty(entry.nbytes, np.uint8)
    for key, (start, end), (_, hash) in zip(entry.piece_keys(), entry.spans(), entry.pieces, strict=True):
        value = txn.get(key)
        if value is None:
            raise Damaged(f"a piece of {entry.path} is missing")
        raw[start:end] = np.frombuffer(unpack_piece(value, end - start, hash), np.uint8)
    array: np.ndarray[Any, np.dtype[Any]] = raw.view(entry.dtype).reshape(entry.shape)
    return array
