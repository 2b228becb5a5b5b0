"""Restoring: from a store into a new service, once, before anything is served.

The configuration decides about settings, the store about data; each difference is logged. A table that only the
configuration has stays empty. What the next checkpoint would remove for good is an error unless it is said to be meant:
items of a table that only the store has, and items beyond the limits that are configured now. Whatever could not come
back is told loudly, or refused if that is what was asked for.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Set
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from replayd.blobs import parse_schema, parse_template
from replayd.durability import Lost
from replayd.errors import BadRequest, SignatureMismatch, StoreError, StoreMismatch, StoreUnreadable
from replayd.handover import SavedChunks
from replayd.items import KEYS_A_SECOND_SHIFT
from replayd.loading import Progress
from replayd.messages import Int64s
from replayd.parked_samples import forget_peers
from replayd.replaying import Moment, Replayed, journal_end, replay
from replayd.service import Service
from replayd.settings import change_settings, setting_text, settings_of
from replayd.snapshots import Losses, begin_anew, described, load_service, shrunk, sizes_of
from replayd.state import State
from replayd.store import Store
from replayd.store_blocks import BlockMap
from replayd.store_files import copied_checkpoint
from replayd.store_format import Damaged, block_contents, unpack_block
from replayd.store_formats import as_of_today
from replayd.store_writer import drop_blocks
from replayd.table import Table
from replayd.wording import count

log = logging.getLogger("replayd")

KEYS_SKIPPED = 1 << 32
"""After an end without a checkpoint, so that no key is drawn that an item had which is lost. A counter of 52 bits has
room for a million such ends."""

KEYS_A_SECOND = 1 << KEYS_A_SECOND_SHIFT
"""And so many since then, which a server may have drawn that began there too, and left nothing on the disk."""


SHOWN, SHOWN_CHARACTERS = 64, 400
"""Differences that `info` tells, and of each so much: an operator looks at it, and pollers get it each time."""


@dataclass(frozen=True, slots=True)
class RestoreRules:
    """What to do where store and configuration, or the store itself, leave a choice."""

    strict: bool = False
    """Refuse a store of which a part is damaged, rather than leave out what needs it."""
    reset_limiters: bool = False
    """Let the limiters' counters begin anew."""
    drop_removed_tables: bool = False
    """Leave behind the items of tables that the configuration does not have."""
    shrink_tables: bool = False
    """Let items go that are beyond the limits of the configuration."""


@dataclass(slots=True)
class _Damage:
    blocks: int = 0
    chunks: int = 0
    stories: list[str] = field(default_factory=list)


def restore(store: Store, service: Service, rules: RestoreRules, progress: Progress, now: float) -> BlockMap:
    """Load what the store has into a new service; what stands in which block of the store.

    Raises StoreUnreadable and StoreMismatch; then the service is of no use, and the store is as it was.
    """
    blocks = BlockMap()
    head = store.head
    if head is None:
        log.info("the store in %s is empty: nothing to restore", store.directory)
        # But for what a first checkpoint left that was cut short.
        _map_blocks(store, blocks)
        service.chunks.skip_names(blocks.newest())
        return blocks
    began, first_key = time.monotonic(), service._keys.take(0)
    progress.phase = "index"
    state = as_of_today(store.read_index(), head.format, service.capacity.max_bytes)
    progress.expect(*store.content_bytes(), _items_in(state), lambda: sum(sizes_of(service).values()))
    service.durability.differences = _shown(_compare_tables(state, service, rules))
    kept = state.get("journal")
    saved = Moment(state["clock"], head.saved_at)
    end = journal_end(store.entries, kept["next"], saved) if kept else None
    # Ages go on while no server runs: what happened last happened so long ago.
    away_s = max(0.0, time.time() - (end or saved).wall_s)
    shift_s = now - away_s - (end or saved).clock
    lease_s, max_bytes = service.streams.lease_s, service.capacity.max_bytes
    configured: dict[str, dict[str, Any]] = {}
    unchanged = _with_limits_as_saved(state, service)
    if kept is None or end is None:
        state.pop("samples", None)
    else:
        configured = _as_saved(state, service)
    damage = _Damage()
    progress.phase = "chunks"
    live = np.sort(state["chunks"]["uids"])
    chunks = _chunks(store, state, live, blocks, damage, progress)
    try:
        losses = load_service(
            service,
            state,
            chunks,
            state["clock"] + shift_s,
            parse_schema,
            parse_template,
            reset_limiters=rules.reset_limiters and end is None,
        )
    except SignatureMismatch as mismatch:
        raise StoreMismatch(_signatures(mismatch, state, service)) from None
    # Others than ours are of a checkpoint that was cut short: a later chunk of that name would be taken for one.
    service.chunks.skip_names(blocks.newest())
    _tell_damage(store, damage, losses, rules)
    service.durability.lost = Lost(sum(losses.items.values()), losses.chunks)
    _tell_beyond(losses.beyond, configured.keys() or unchanged, service, rules)
    requests = ""
    if kept is not None and end is not None:
        progress.phase = "journal"
        told = replay(store.entries(kept["next"]), kept["next"], service, shift_s, progress.advance)
        _tell_replayed(store, told, away_s, rules)
        forget_peers(service)
        service.streams.lease_s, service.capacity.max_bytes = lease_s, max_bytes
        service.streams.leases.is_bounded, service.streams.keeps_parked = True, False
        _as_configured(service, configured, unchanged, now, rules)
        service.durability.replayed = told.requests
        service.durability.lost.requests = told.behind + told.refused
        requests = f" and {count(told.requests, 'request')} of the journal"
    if not head.clean:
        service._keys.take(KEYS_SKIPPED + int(away_s * KEYS_A_SECOND))
    # A copy of a store that was brought back knows nothing of what was drawn after it was made.
    service._keys.skip_to(first_key)
    progress.phase = "checking"
    try:
        service.validate()
    except AssertionError as fault:
        raise StoreUnreadable(f"{store.directory}: the index contradicts itself: {fault}") from fault
    service.streams.renew(now)
    try:
        store.sweep()
        if not head.clean:
            # Blocks of a checkpoint that was cut short: with one cut short after the other they would be many.
            drop_blocks(store, blocks, blocks.survey(live).foreign)
    except StoreError as error:
        log.warning("the store keeps what it does not need, until the next start: %s; see to its disk", error)
    service.durability.restored_generation = head.generation
    log.info(
        "restored %s of %s, %s of %d bytes, from checkpoint %d%s, as of %.0f s ago, in %.1f s",
        count(sum(table.size for table in service.tables.values()), "item"),
        count(len(service.tables), "table"),
        count(len(service.chunks), "chunk"),
        service.chunks.bytes_in_use,
        head.generation,
        requests,
        away_s,
        time.monotonic() - began,
    )
    if end is None and head.generation == copied_checkpoint(store.directory):
        log.info("the store is a copy of checkpoint %d: what was done after that is not in it", head.generation)
    elif end is None and not head.clean:
        log.warning(
            "the server that wrote it did not end with a checkpoint, so what was done after it is lost: `journal` in "
            "[store] keeps that too"
        )
    return blocks


def _as_saved(state: State, service: Service) -> dict[str, dict[str, Any]]:
    """Give tables the settings with which the journal was written, so that what happened happens again, and bound no
    leases: what was accepted was within the limits of then.

    The settings as they are configured, by table.
    """
    configured = {name: settings_of(table) for name, table in service.tables.items()}
    service.streams.lease_s = state["journal"]["lease_s"]
    service.capacity.max_bytes = state["journal"]["max_bytes"]
    service.streams.leases.is_bounded = False
    service.streams.keeps_parked = state["journal"].get("keeps_parked", False)
    if state["journal"]["version"] != service.version:
        log.warning(
            "the journal was written by version %s, so it may not be repeated exactly: end a server with a checkpoint "
            "before it is replaced",
            state["journal"]["version"],
        )
    for kept in state["tables"]:
        table = service.tables.get(kept["name"])
        if table is None:
            continue
        saved, now_is = kept["settings"], described(table)
        for name in ("sampler", "remover", "signature"):
            same = saved[name] == now_is[name] if name == "signature" else saved[name]["kind"] == now_is[name]["kind"]
            if not same:
                log.warning(
                    "table %r: with another %s the journal cannot be repeated exactly: end a server with a checkpoint "
                    "before that is changed",
                    *(table.name, name),
                    extra={"table": table.name},
                )
        _change(table, {name: saved[name] for name in configured[table.name] if name in saved})
    return configured


def _as_configured(
    service: Service, configured: dict[str, dict[str, Any]], unchanged: Set[str], now: float, rules: RestoreRules
) -> None:
    """The configuration's settings hold again, also where they were changed live."""
    sizes = sizes_of(service)
    # What was there at the end may have come in by limits that were changed live.
    unchanged = {name for name in unchanged if _limits(settings_of(service.tables[name])) == _limits(configured[name])}
    service.capacity.make_room()
    for name, settings in configured.items():
        _change(service.tables[name], settings)
    _tell_beyond(shrunk(service, sizes), unchanged, service, rules)
    for name in configured:
        table = service.tables[name]
        if rules.reset_limiters:
            begin_anew(table)
        service._pump(table, now)
    service.drain()
    service.notices.clear()
    service.faults.clear()


def _change(table: Table, settings: dict[str, Any]) -> None:
    before = settings_of(table)
    try:
        change_settings(table, {name: value for name, value in settings.items() if before[name] != value})
    except BadRequest as error:
        log.warning("%s; `replayd set` changes settings", error)


def _tell_replayed(store: Store, told: Replayed, away_s: float, rules: RestoreRules) -> None:
    problems = []
    if told.damage:
        rest = f"the rest, {count(told.behind, 'request')}, is lost"
        problems.append(f"it is damaged behind {told.entries} entries ({told.damage}), and {rest}")
    if told.refused:
        problems.append(f"{told.refused} requests that had been accepted were refused now, and are lost")
    if told.differs:
        problems.append("the state is not exactly what it was")
    if problems and rules.strict:
        raise StoreUnreadable(
            f"{store.directory}: the journal: {'; '.join(problems)}; without --strict that would be all"
        )
    for problem in problems:
        log.error(
            "the journal in %s: %s; where that must not be, --strict refuses to begin, and `replayd restore` brings "
            "back a copy",
            *(store.directory, problem),
        )
    log.info("replayed %s of the journal, the last one of %.1f s ago", count(told.requests, "request"), away_s)


def _chunks(
    store: Store, state: State, live: Int64s, blocks: BlockMap, damage: _Damage, progress: Progress
) -> Iterator[SavedChunks]:
    """What is whole of what the index names, `live`, block by block."""
    bad: list[Int64s] = [live[:0]]
    for number, value in store.blocks():
        try:
            chunks, failed = unpack_block(value, live)
        except Damaged as error:
            damage.blocks += 1
            damage.stories.append(f"block {number}: {error}")
            blocks.add(number, live[:0], live[:0])
        else:
            uids, nbytes = block_contents(value)
            blocks.add(number, uids, nbytes)
            bad.append(failed)
            yield chunks
        progress.advance(len(value))
    progress.phase = "items"
    damage.chunks = sum(map(len, bad))
    if damage.chunks:
        damage.stories.append(f"{damage.chunks} payloads fail their CRC")


def _map_blocks(store: Store, blocks: BlockMap) -> None:
    """Know what stands where, though nothing of it is wanted."""
    nothing = np.zeros(0, np.int64)
    for number, value in store.blocks():
        try:
            unpack_block(value, nothing)
        except Damaged:
            blocks.add(number, nothing, nothing)
        else:
            blocks.add(number, *block_contents(value))


def _tell_damage(store: Store, damage: _Damage, losses: Losses, rules: RestoreRules) -> None:
    if not (damage.blocks or damage.chunks or losses.chunks):
        return
    items = ", ".join(f"{count} items of table {name!r}" for name, count in losses.items.items()) or "no item"
    story = (
        f"{store.directory} is damaged ({'; '.join(damage.stories) or 'chunks are missing'}): {losses.chunks} chunks "
        f"are lost, and with them {items}"
    )
    if rules.strict:
        raise StoreUnreadable(f"{story}; without --strict the rest would be restored")
    log.error("%s; the rest is restored: see to the disk, and `replayd restore` brings back a whole copy", story)


def _with_limits_as_saved(state: State, service: Service) -> Set[str]:
    """Tables that are configured to hold as much as when they were saved."""
    kept = state.get("journal")
    if kept is None or kept["max_bytes"] != service.capacity.max_bytes:
        return set()
    saved = {table["name"]: table["settings"] for table in state["tables"]}
    settings = {name: settings_of(table) for name, table in service.tables.items() if name in saved}
    return {name for name, now_is in settings.items() if _limits(saved[name]) == _limits(now_is)}


def _limits(settings: dict[str, Any]) -> dict[str, Any]:
    return {name: settings[name] for name in ("max_size", "max_times_sampled", "max_bytes", "when_full")}


def _tell_beyond(beyond: dict[str, int], unchanged: Set[str], service: Service, rules: RestoreRules) -> None:
    """Items that have no room any more: the next checkpoint would make that final.

    Where limits are what they were it is this version that counts more: a start is no time to refuse that.
    """
    told = {}
    for name, gone in beyond.items():
        table = service.tables[name]
        limits = {"max_size": table.max_size, "max_times_sampled": table.max_times_sampled or None}
        limits |= {"max_bytes": table.capacity.max_bytes, "max_bytes of the server": service.capacity.max_bytes}
        said = ", ".join(f"{limit} {value}" for limit, value in limits.items() if value is not None)
        told[name] = f"{gone} of the {gone + table.size} items of table {name!r} are beyond its limits ({said})"
    refused = [story for name, story in told.items() if name not in unchanged]
    if refused and not rules.shrink_tables:
        raise StoreMismatch(
            f"{'; '.join(refused)}: the next checkpoint would remove them for good; raise the limit in the "
            "configuration, or give --shrink-tables (`replayd.Server(…, shrink_tables=True)`)"
        )
    for name, story in told.items():
        log.warning(
            "%s, %s: to keep them, stop by a second signal before the next checkpoint and raise the limit",
            *(story, "so they are left behind" if name not in unchanged else _COUNTS_MORE),
            extra={"table": name, "items": beyond[name]},
        )


_COUNTS_MORE = "as this version counts more for what they hold, and leave as they would for new ones"


def _compare_tables(state: State, service: Service, rules: RestoreRules) -> list[str]:
    """Log where store and configuration differ; the same for `info`, without advice."""
    differences = []

    def tell(table: str, difference: str, advice: str) -> None:
        differences.append(f"table {table!r}{difference}")
        log.warning("%s%s", differences[-1], advice, extra={"table": table})

    saved = {kept["name"]: kept for kept in state["tables"]}
    for name in service.tables.keys() - saved.keys():
        advice = ": if it was renamed, stop and give it its name of before"
        tell(name, " is not in the store, so it starts empty", advice)
    for name, kept in saved.items():
        if name in service.tables:
            for line in _differences(kept["settings"], described(service.tables[name])):
                tell(name, f": {line}", "; to keep what was saved, write it into the configuration")
            continue
        items = _size_of(kept) + len(kept["parked"]["keys"])
        if items and not rules.drop_removed_tables:
            raise StoreMismatch(
                f"table {name!r} has {items} items in the store and is not in the configuration, so the next "
                "checkpoint would remove them; name the table in the configuration, or give --drop-removed-tables "
                "(`replayd.Server(…, drop_removed_tables=True)`)"
            )
        advice = ": to keep them, stop by a second signal before the next checkpoint and name it there"
        tell(name, f" is not in the configuration, so its {items} items are left behind", advice)
    return differences


def _shown(differences: list[str]) -> list[str]:
    """As many as `info` has room for, and how many more there are."""
    shown = [line if len(line) <= SHOWN_CHARACTERS else f"{line[:SHOWN_CHARACTERS]}…" for line in differences[:SHOWN]]
    return [*shown, f"and {len(differences) - SHOWN} more, which the log has"] if len(differences) > SHOWN else shown


def _items_in(state: State) -> int:
    """Items of all tables, those that wait aside."""
    return sum(map(_size_of, state["tables"]))


def _size_of(kept: State) -> int:
    slots = kept["items"]["slots"]
    return int(slots["capacity"]) - len(slots["free"])


def _differences(saved: dict[str, Any], configured: dict[str, Any]) -> Iterator[str]:
    for name in [*configured, *(saved.keys() - configured.keys())]:
        was, is_now = saved.get(name), configured.get(name)
        if was != is_now:
            yield f"{name} is {_text(name, is_now)} by the configuration, and was {_text(name, was)} when it was saved"


def _text(name: str, setting: Any) -> str:
    """A setting as people write it."""
    match name, setting:
        case "signature", None:
            return "none"
        case "signature", columns:
            return ", ".join(f"{_path(path)} {dtype}{_shape(shape)}" for path, dtype, shape in columns)
        case _, {"kind": kind, **keys}:
            return f"{kind}({', '.join(f'{key}={value}' for key, value in keys.items())})" if keys else str(kind)
    return setting_text(name, setting)


def _path(path: list[Any]) -> str:
    return "/".join(map(str, path)) or "step"


def _shape(shape: list[int | None]) -> str:
    return f"[{', '.join('?' if size in (None, -1) else str(size) for size in shape)}]"


def _signatures(mismatch: SignatureMismatch, state: State, service: Service) -> str:
    """Which table does not fit, with both signatures."""
    for kept in state["tables"]:
        table = service.tables.get(kept["name"])
        if table is not None and mismatch.message.startswith(f"table {table.name!r},"):
            return (
                f"the items of table {table.name!r} in the store do not fit its signature in the configuration "
                f"({mismatch.message}); saved with: {_text('signature', kept['settings']['signature'])}; configured: "
                f"{_text('signature', described(table)['signature'])}"
            )
    raise AssertionError(f"a mismatch of no table: {mismatch.message}")
