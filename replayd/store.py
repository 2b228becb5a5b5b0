"""A store: the LMDB environment in its directory, what is in it, and how it is changed. One thread at a time uses one.

Owns transactions and the growth of the map. Every change is one transaction that either is on the disk when the call
returns or, if it raises, has not happened. What the bytes mean: `store_format`; the files: `store_files`.
"""

from __future__ import annotations

import contextlib
import logging
import os
import struct
from collections.abc import Callable, Iterator, Sequence
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
                self._open()
                self.head = self._read_head()
            remove_remains(directory)
        except BaseException:
            os.close(self._mark)
            raise

    @property
    def size_bytes(self) -> int:
        """Of the file; what has been removed is used again before it grows."""
        return (self.directory / DATA).stat().st_size

    def close(self) -> None:
        """Let others have it."""
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
        with _as_store_error(self.directory), self._env.begin(db=self._db["index"], buffers=True) as txn:
            arrays = [_read_array(txn, entry) for entry in self.head.arrays]
        state: State = put_together(self.head.index, arrays)
        return state

    def blocks(self) -> Iterator[tuple[int, memoryview]]:
        """Number and content of each block, in order; the content lies in the map and is valid until the next one."""
        with _as_store_error(self.directory), self._env.begin(db=self._db["blocks"], buffers=True) as txn:
            for key, value in txn.cursor():
                yield _NUMBER.unpack(key)[0], value

    def content_bytes(self) -> tuple[int, int]:
        """What blocks and journal take, about."""
        with _as_store_error(self.directory), self._env.begin() as txn:
            blocks, journal = (txn.stat(self._db[name]) for name in ("blocks", "journal"))
        return _bytes_of(blocks), _bytes_of(journal)

    def entries(self, first: int) -> Iterator[tuple[int, memoryview]]:
        """The journal's values by number, from this one on; each is valid until the next one."""
        with _as_store_error(self.directory), self._env.begin(db=self._db["journal"], buffers=True) as txn:
            cursor = txn.cursor()
            more = cursor.set_range(_NUMBER.pack(first))
            while more:
                yield _NUMBER.unpack(cursor.key())[0], cursor.value()
                more = cursor.next()

    def next_entry(self) -> int:
        """The number behind all that the journal has, or that the index has seen."""
        with self._env.begin(db=self._db["journal"], buffers=True) as txn:
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
        numbers = list(range(self._next_block, self._next_block + len(blocks)))
        self._next_block += len(blocks)

        def put(txn: Txn) -> None:
            for number, block in zip(numbers, blocks, strict=True):
                txn.put(_NUMBER.pack(number), block, append=True, db=self._db["blocks"])

        self._transact(put)
        return numbers

    def drop_blocks(self, numbers: Sequence[int]) -> None:
        """Remove these blocks, which nothing needs."""

        def drop(txn: Txn) -> None:
            for number in numbers:
                txn.delete(_NUMBER.pack(number), db=self._db["blocks"])

        self._transact(drop)

    def add_entries(self, values: Sequence[tuple[int, bytes]]) -> None:
        """Append these values to the journal, under their numbers."""

        def put(txn: Txn) -> None:
            for number, value in values:
                txn.put(_NUMBER.pack(number), value, append=True, db=self._db["journal"])

        self._transact(put)

    def drop_entries(self, before: int, at_most: int) -> bool:
        """Remove values of the journal with smaller numbers, so many at most; whether there are more."""
        with self._env.begin(db=self._db["journal"]) as txn:
            keys = list(islice(txn.cursor().iternext(values=False), at_most))
        outdated = [key for key in keys if _NUMBER.unpack(key)[0] < before]

        def drop(txn: Txn) -> None:
            for key in outdated:
                txn.delete(key, db=self._db["journal"])

        if outdated:
            self._transact(drop)
        return len(outdated) == at_most

    def write_index(self, state: State, *, saved_at: float, clean: bool) -> IndexWritten:
        """Put this state in the place of the last one. From the end of the call on it is what a start would find."""
        # What a copy read that was killed would be kept for it as long as the daemon lives.
        self._env.reader_check()
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
        with self._env.begin(db=self._db["index"]) as txn:
            strays = [key for key in txn.cursor().iternext(values=False) if key not in named]

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

    def _transact(self, change: Callable[[Txn], None]) -> None:
        """One transaction. `change` may be called again: a full map is doubled."""
        while True:
            try:
                with _as_store_error(self.directory), self._env.begin(write=True) as txn:
                    change(txn)
                return
            except _MapFull:
                self._env.set_mapsize(2 * self._env.info()["map_size"])
            except StoreError as error:
                if isinstance(error.__cause__, lmdb.PanicError):
                    # The environment takes no more. What is on the disk is the last commit, which may be the one that
                    # seemed to have failed.
                    self._env.close()
                    with _as_store_error(self.directory):
                        self._open()
                        self.head = self._read_head()
                raise

    # --- opening ------------------------------------------------------------------------------------------------------

    def _open(self) -> None:
        self._env = lmdb.open(str(self.directory), map_size=self._map_bytes, max_dbs=len(_DATABASES), mode=0o640)
        try:
            self._db = {
                name: self._env.open_db(name.encode(), integerkey=name in ("blocks", "journal")) for name in _DATABASES
            }
            with self._env.begin(db=self._db["blocks"]) as txn:
                cursor = txn.cursor()
                self._next_block = _NUMBER.unpack(cursor.key())[0] + 1 if cursor.last() else 1
        except BaseException:
            self._env.close()
            raise
        sync_directory(self.directory)

    def _read_head(self) -> Head | None:
        with self._env.begin(db=self._db["head"], buffers=True) as txn:
            value = txn.get(_HEAD)
            return None if value is None else unpack_head(value)


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
