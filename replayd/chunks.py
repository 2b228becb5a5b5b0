"""The chunk store: every chunk once, still encoded, with the count of those who hold it.

Owns payloads and reference counts. Holders are items, parked inserts (both counted in `refs`) and the lease of the
stream that may still refer to the chunk (`leased`). A chunk with no holder is freed at once. `shown` counts the tables
that have an item of it. Never looks into a payload.

Consecutive chunks of a stream are linked, so a window is its first slot and a count; the link of a chunk is only
followed while a window that spans it keeps the next one alive.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from replayd.columns import Schema
from replayd.episodes import Episodes
from replayd.handover import Handover, SavedChunks
from replayd.interned import Interned
from replayd.layouts import Layouts
from replayd.messages import Buffer, ChunkBatch, Int64s, Uint64s
from replayd.payloads import Payloads
from replayd.slots import Marks, Slots, count, distinct, grown, total
from replayd.state import State

NO_SLOT = -1
NO_UID = 0


class ChunkStore:
    """Chunks as a struct of arrays indexed by slot."""

    def __init__(self) -> None:
        self.schemas: Interned[Schema] = Interned()
        self.bytes_in_use = 0
        self.shown_bytes = 0
        """Of the payloads that items show, each counted once."""
        self.shown_chunks = 0
        self.shown_columns = 0
        """Of these chunks, those of each once."""
        self.chunks_added = 0
        self.bytes_added = 0
        self._slots = Slots()
        capacity = self._slots.capacity
        self._rows = np.zeros(capacity, _ROW)
        self._name_columns()
        # Each chunk's name for checkpoints, never used again. An array of its own, since a checkpoint copies all of it.
        self._uid = np.zeros(capacity, np.int64)
        self._next_uid = NO_UID + 1
        self._awaited = self._awaited_uids = np.zeros(0, np.int64)
        """While it is loaded: the slots in use in the order of their chunks' names, and these."""
        self.policy_versions: Int64s | None = None
        """By slot, 0 where a writer said none; None as long as none ever did, so that it costs nobody else anything."""
        self.handover = Handover(self._collect)
        self.episodes = Episodes()
        self._payloads = Payloads()
        self._layouts = Layouts()
        self._marks = Marks()

    def _name_columns(self) -> None:
        rows = self._rows
        self.next: NDArray[np.int32] = rows["next"]
        self._place: Int64s = rows["place"]
        self.number: Int64s = rows["number"]
        self.stream: Int64s = rows["stream"]
        self.episode: NDArray[np.int32] = rows["episode"]
        self.rows: NDArray[np.int32] = rows["rows"]
        self.schema: NDArray[np.int32] = rows["schema"]
        self.refs: NDArray[np.int32] = rows["refs"]
        self.nbytes: NDArray[np.int32] = rows["nbytes"]
        self.columns: NDArray[np.int16] = rows["columns"]
        self.leased: NDArray[np.bool_] = rows["leased"]
        self.shown: NDArray[np.int32] = rows["shown"]
        self._layout: NDArray[np.int32] = rows["layout"]

    def __len__(self) -> int:
        return self._slots.used

    def add(self, batch: ChunkBatch, numbers: Int64s, streams: Int64s | int, episodes: Int64s) -> Int64s:
        """Store new chunks under their streams' leases; nothing is linked yet. `episodes`: names that have entered."""
        n = len(batch)
        slots = self._take(n)
        self._place[slots] = self._payloads.put(batch.body, batch.stops, batch.nbytes)
        self.nbytes[slots] = batch.nbytes
        self.rows[slots] = batch.rows
        self.refs[slots] = 0
        self.leased[slots] = True
        self.next[slots] = NO_SLOT
        self.number[slots] = numbers
        self.stream[slots] = streams
        self.episode[slots] = episodes
        self.schema[slots] = self._hold_schemas(batch)
        self.columns[slots] = columns = batch.columns
        self._layout[slots] = self._layouts.put(batch.records, columns)
        if batch.policy_versions is not None and self.policy_versions is None:
            self.policy_versions = np.zeros(len(self._rows), np.int64)
        if self.policy_versions is not None:
            self.policy_versions[slots] = 0 if batch.policy_versions is None else batch.policy_versions
        self._uid[slots] = np.arange(self._next_uid, self._next_uid + n)
        self._next_uid += n
        self.handover.added(slots, len(self._rows))
        nbytes = total(batch.nbytes)
        self.bytes_in_use += nbytes
        self.bytes_added += nbytes
        self.chunks_added += n
        return slots

    def link(self, before: Sequence[int], firsts: Int64s, slots: Int64s, next: Int64s) -> None:
        """`next` are the chunks numbered just behind `slots`, and `firsts` those behind `before`, if not NO_SLOT."""
        self.next[slots] = next
        for slot, first in zip(before, firsts.tolist(), strict=True):
            if slot != NO_SLOT:
                self.next[slot] = first

    def windows(self, first: Int64s, counts: Int64s) -> Int64s:
        """All slots of the windows that begin at `first` and span `counts` chunks, window after window."""
        longest = int(counts.max(initial=1))
        if longest == 1:
            return first
        starts = np.cumsum(counts) - counts
        slots = np.empty(int(counts.sum()), np.int64)
        here = first
        for i in range(longest):
            slots[starts + i] = here
            if i + 1 < longest:
                more = counts > i + 1
                starts, counts, here = starts[more], counts[more], self.next[here[more]].astype(np.int64)
        return slots

    def ranked(self, slots: Int64s) -> tuple[Int64s, Int64s]:
        """Each slot once, in the order of its last entry, and for each entry where its slot stands there."""
        return self._marks.ranked(slots, len(self._rows))

    def rows_of(self, slots: Int64s) -> NDArray[np.void]:
        """All that is known of these chunks but payloads and records: fields `nbytes`, `rows`, `number`, …"""
        return self._rows.take(slots)

    def body_of(self, rows: NDArray[np.void]) -> list[Buffer]:
        """The payloads of chunks, whose `rows_of` these are, as frames."""
        return self._payloads.fetch(rows["place"], rows["nbytes"])

    def spans_of(self, rows: NDArray[np.void], chunk_of: Int64s, starts: Int64s, sizes: Int64s) -> list[Buffer]:
        """Parts of the payloads of chunks: each of the `chunk_of`-th of these rows, `sizes` bytes from `starts` on."""
        return self._payloads.fetch_spans(rows["place"][chunk_of], starts, sizes, chunk_of)

    def records_of(self, rows: NDArray[np.void]) -> Uint64s:
        """The blob records of chunks, whose `rows_of` these are, one behind the other."""
        return self._layouts.take(rows["layout"], rows["columns"])

    def hold(self, slots: Int64s) -> None:
        """One reference more for each entry."""
        count(self.refs, slots, 1)

    def release(self, slots: Int64s) -> None:
        """One reference fewer for each entry; chunks left without a holder are freed."""
        count(self.refs, slots, -1)
        unheld = slots[(self.refs[slots] == 0) & ~self.leased[slots]]
        if len(unheld):
            self._free(distinct(unheld))

    def show(self, slots: Int64s) -> None:
        """One table more shows these, each named once."""
        new = slots[self.shown[slots] == 0]
        self.shown_bytes += total(self.nbytes[new])
        self.shown_chunks += len(new)
        self.shown_columns += total(self.columns[new])
        self.shown[slots] += 1

    def hide(self, slots: Int64s) -> None:
        """One table fewer shows these, each named once."""
        self.shown[slots] -= 1
        gone = slots[self.shown[slots] == 0]
        self.shown_bytes -= total(self.nbytes[gone])
        self.shown_chunks -= len(gone)
        self.shown_columns -= total(self.columns[gone])

    def unlease(self, slots: Int64s) -> None:
        """The stream lets go of these; each entry is distinct."""
        self.leased[slots] = False
        self._free(slots[self.refs[slots] == 0])

    def unreferenced_bytes(self, slots: Int64s) -> int:
        """Bytes of those of these chunks which no item and no parked insert holds."""
        return int(self.nbytes[slots[self.refs[slots] == 0]].sum())

    def dump(self) -> State:
        """What `SavedChunks` do not tell of them."""
        versions = self.policy_versions
        return {
            "slots": self._slots.dump(),
            "uids": self._uid[: self._slots.high_water()],
            "next_uid": self._next_uid,
            "schemas": self.schemas.dump(),
            "episodes": self.episodes.dump(),
            **({} if versions is None else {"policy_versions": versions[: self._slots.high_water()]}),
        }

    def forget_saved(self, slots: Int64s, uids: Int64s) -> None:
        """Of these chunks, which were stored in these slots, those that still are must be handed over again."""
        self.handover.forget(slots[self._uid[slots] == uids])

    # --- loading: `begin_loading`, all that was saved in any order, `end_loading` -------------------------------------

    def begin_loading(self, state: State) -> None:
        """This empty store takes the place of the dumped one."""
        self._slots.load(state["slots"])
        capacity = self._slots.capacity
        self._rows = np.zeros(capacity, _ROW)
        self._name_columns()
        self._uid = np.zeros(capacity, np.int64)
        self._uid[: len(state["uids"])] = state["uids"]
        self.policy_versions = None
        if "policy_versions" in state:
            self.policy_versions = np.zeros(capacity, np.int64)
            self.policy_versions[: len(state["policy_versions"])] = state["policy_versions"]
        self._next_uid = state["next_uid"]
        self.handover.loaded(capacity)
        slots = self._slots.in_use()
        self._awaited = slots[np.argsort(self._uid[slots])]
        self._awaited_uids = self._uid[self._awaited]

    def load(self, saved: SavedChunks) -> None:
        """Of these, store those that the dumped one had and that are not there yet. Nobody holds them."""
        if len(self._awaited) == 0:
            return
        at = np.minimum(np.searchsorted(self._awaited_uids, saved.uids), len(self._awaited) - 1)
        slots = self._awaited[at]
        # One of which nothing is known yet has no rows.
        chosen = np.flatnonzero((self._uid[slots] == saved.uids) & (self.rows[slots] == 0))
        slots = slots[chosen]
        if len(slots) == 0:
            return
        nbytes = saved.nbytes[chosen]
        self._place[slots] = self._payloads.load(saved.body, np.cumsum(saved.nbytes)[chosen] - nbytes, nbytes)
        self.nbytes[slots], self.rows[slots] = nbytes, saved.rows[chosen]
        self.stream[slots], self.number[slots] = saved.streams[chosen], saved.numbers[chosen]
        self.episode[slots], self.schema[slots] = saved.episodes[chosen], saved.schemas[chosen]
        self.columns[slots] = columns = saved.widths[chosen]
        self._layout[slots] = self._layouts.put(_records_of(saved, chosen), columns)
        self.bytes_in_use += int(nbytes.sum())

    def end_loading(self, state: State, make_schema: Callable[[bytes], Schema]) -> NDArray[np.bool_]:
        """What was not among the saved ones is given up. By slot: whether a chunk is there."""
        slots = np.sort(self._awaited)
        self._awaited = self._awaited_uids = self._awaited[:0]
        there = self.rows[slots] > 0
        lost, slots = slots[~there], slots[there]
        self._uid[lost] = NO_UID
        self._slots.give_back(lost)
        self.schemas.load(state["schemas"], make_schema, self.schema[slots].astype(np.int64))
        self.episodes.load(state["episodes"], self.episode[slots].astype(np.int64))
        # Those that follow each other in their streams are linked again.
        order = slots[np.lexsort((self.number[slots], self.stream[slots]))]
        before, behind = order[:-1], order[1:]
        follows = (self.stream[before] == self.stream[behind]) & (self.number[before] + 1 == self.number[behind])
        self.next[order] = NO_SLOT
        self.next[before[follows]] = behind[follows]
        present = np.zeros(self._slots.capacity, np.bool_)
        present[slots] = True
        return present

    def skip_names(self, newest: int) -> None:
        """The disk has a chunk of this name, ours or not: what comes from now on is named later."""
        self._next_uid = max(self._next_uid, newest + 1)

    def whole(self, first: Int64s, counts: Int64s, there: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Of windows that were dumped: whether all their chunks are there again."""
        whole = np.ones(len(first), np.bool_)
        here = first
        for i in range(int(counts.max(initial=0))):
            ends = counts <= i
            whole &= ends | ((here != NO_SLOT) & there[here])
            here = np.where(ends | ~whole, here, self.next[here])
        return whole

    def free_unheld(self) -> None:
        """Free what nobody holds, after all who came back have their holds."""
        slots = self._slots.in_use()
        self._free(slots[(self.refs[slots] == 0) & ~self.leased[slots]])

    def validate(self, held: Int64s, leased: Int64s) -> None:
        """`held`: one entry for each holding by an item or parked insert; `leased`: the leased slots."""
        capacity = self._slots.capacity
        refs = np.bincount(held, minlength=capacity) if len(held) else np.zeros(capacity, np.int64)
        is_leased = np.zeros(capacity, np.bool_)
        is_leased[leased] = True
        live = np.flatnonzero((refs > 0) | is_leased)
        self._slots.validate(live)
        assert np.array_equal(self.refs[live], refs[live]), "reference counts are not the holdings"
        assert np.array_equal(self.leased[live], is_leased[live]), "leases are not the streams'"
        assert self.bytes_in_use == int(self.nbytes[live].sum()), "bytes in use are not the chunks' bytes"
        self._payloads.validate(self._place[live], self.nbytes[live].astype(np.int64))
        self._layouts.validate(self._layout[live].astype(np.int64), self.columns[live])
        columns = [len(self.schemas[id].columns) for id in self.schema[live].tolist()]
        assert self.columns[live].tolist() == columns, "columns of chunks are not those of their schemas"
        assert (np.diff(np.sort(self._uid[live])) > 0).all(), "two chunks have one name"
        assert int(self._uid[live].max(initial=NO_UID)) < self._next_uid, "a chunk's name is yet to be given"
        self.handover.validate(live)
        self.episodes.validate(self.episode[live].astype(np.int64))
        self.schemas.validate(self.schema[live].astype(np.int64))

    def _take(self, n: int) -> Int64s:
        slots = self._slots.take(n)
        capacity = self._slots.capacity
        if capacity > len(self._rows):
            self._rows = grown(self._rows, capacity)
            self._name_columns()
            self._uid = grown(self._uid, capacity)
            if self.policy_versions is not None:
                self.policy_versions = grown(self.policy_versions, capacity)
        return slots

    def _collect(self, slots: Int64s) -> SavedChunks:
        rows = self.rows_of(slots)
        return SavedChunks(
            uids=self._uid[slots],
            streams=rows["stream"],
            numbers=rows["number"],
            episodes=rows["episode"],
            rows=rows["rows"],
            schemas=rows["schema"],
            widths=rows["columns"],
            records=self.records_of(rows),
            nbytes=rows["nbytes"],
            body=self.body_of(rows),
        )

    def _hold_schemas(self, batch: ChunkBatch) -> Int64s | int:
        if len(batch.schemas) == 1:
            return self.schemas.hold(batch.schemas[0], len(batch))
        holders = np.bincount(batch.schema_of, minlength=len(batch.schemas)).tolist()
        ids = [self.schemas.hold(s, n) if n else NO_SLOT for s, n in zip(batch.schemas, holders, strict=True)]
        return np.array(ids, np.int64)[batch.schema_of]

    def _free(self, slots: Int64s) -> None:
        if len(slots) == 0:
            return
        self.handover.freeing(slots)
        self._uid[slots] = NO_UID
        self.bytes_in_use -= total(self.nbytes[slots])
        self._payloads.free(self._place[slots], self.nbytes[slots])
        self._layouts.remove(self._layout[slots], self.columns[slots])
        self.schemas.release(self.schema[slots])
        self.episodes.leave(self.episode[slots].astype(np.int64))
        self._slots.give_back(slots)


_ROW = np.dtype(
    [
        ("number", "i8"),
        ("stream", "i8"),
        ("place", "i8"),
        ("next", "i4"),
        ("episode", "i4"),
        ("rows", "i4"),
        ("schema", "i4"),
        ("refs", "i4"),
        ("nbytes", "i4"),
        ("layout", "i4"),
        ("shown", "i4"),
        ("columns", "i2"),
        ("leased", "?"),
        ("unused", "V5"),
    ]
)
"""One chunk in one cache line of 64 bytes, payload aside."""


def _records_of(saved: SavedChunks, chosen: Int64s) -> Uint64s:
    """The blob records of these chunks, one behind the other."""
    widths = saved.widths[chosen]
    starts = (np.cumsum(saved.widths) - saved.widths)[chosen]
    at = np.arange(int(widths.sum())) + np.repeat(starts - (np.cumsum(widths) - widths), widths)
    records: Uint64s = saved.records[at]
    return records
