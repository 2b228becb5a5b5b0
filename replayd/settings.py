"""Settings: what can be changed on a live table, by request.

All changes of a request are checked before the first is made. Owns the names of the settings and their rules; what
follows from a new value (evictions, expiry) the table does itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from replayd.capacity import WHEN_FULL
from replayd.errors import BadRequest
from replayd.rate_limiters import RateLimiter
from replayd.selectors import Prioritized
from replayd.table import Table
from replayd.wording import count

_LIMITER = ("samples_per_insert", "min_size_to_sample", "min_diff", "max_diff")
_PAUSES = {"paused_inserts": "insert", "paused_samples": "sample"}
"""One setting for each side: who pauses one changes nothing about the other, whoever else is at it."""
_CAPACITY = ("max_bytes", "when_full")
SETTINGS = ("max_size", "max_times_sampled", *_CAPACITY, *_LIMITER, "priority_exponent", *_PAUSES)


_UNLIMITED = ("max_bytes", "min_diff", "max_diff")
"""Those that may be None, which is no limit."""


def setting_text(name: str, setting: Any) -> str:
    """A value as people write it; None is no limit where there might be one, else nothing that the table has."""
    if setting is None:
        return "unlimited" if name in _UNLIMITED else "none"
    if isinstance(setting, bool):
        return "yes" if setting else "no"
    return str(setting)


def settings_of(table: Table) -> dict[str, Any]:
    """Each setting's value now; None is unlimited."""
    settings: dict[str, Any] = {"max_size": table.max_size, "max_times_sampled": table.max_times_sampled}
    settings.update((name, getattr(table.capacity, name)) for name in _CAPACITY)
    settings.update((name, getattr(table.limiter, name)) for name in _LIMITER)
    if isinstance(table.sampler, Prioritized):
        settings["priority_exponent"] = table.sampler.priority_exponent
    settings.update((name, side in table.paused) for name, side in _PAUSES.items())
    return settings


def change_live(table: Table, changes: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """As `change_settings`, for somebody who asks; the fields of the reply, and what the log is to say, if anything."""
    size = table.size
    before = change_settings(table, changes)
    after, removed = settings_of(table), size - table.size
    changed = [name for name, value in after.items() if before[name] != value]
    told = [f"{name} {setting_text(name, before[name])} -> {setting_text(name, after[name])}" for name in changed]
    fields: dict[str, Any] = {"before": before, "after": after}
    if removed:
        fields["removed"] = removed
        told.append(f"{count(removed, 'item')} left at once")
    hint = _hint(table) if not {"max_size", *_LIMITER}.isdisjoint(changes) else ""
    if hint:
        fields["hint"] = hint
        told.append(hint)
    return fields, ", ".join(told)


def _hint(table: Table) -> str:
    """What one may not have meant, where draws empty the table: limiter and max_size say when it is full."""
    limiter = table.limiter
    if table.max_times_sampled != 1 or limiter.max_diff is None:
        return ""
    enough = table.max_size * limiter.samples_per_insert
    if limiter.max_diff < enough:
        return f"max_diff still holds inserts at {limiter.max_diff:g}: for all of max_size it must be {enough:g}"
    if limiter.max_diff > enough:
        return (
            f"max_diff lets inserts pass up to {limiter.max_diff:g}, and beyond max_size items leave undrawn: to have "
            f"inserts wait it must be {enough:g}"
        )
    return ""


def change_settings(table: Table, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Make the changes, all or none; the settings as they were. Raises BadRequest that names what is wrong."""
    before = settings_of(table)
    unknown = sorted(set(changes) - set(before))
    if unknown:
        raise BadRequest(
            f"table {table.name!r} has no setting {', '.join(unknown)}; it has {', '.join(before)}",
            settings=list(before),
        )
    wanted = {**before, **changes}
    try:
        limiter = RateLimiter(*(wanted[name] for name in _LIMITER))
        sampler = Prioritized(wanted["priority_exponent"]) if "priority_exponent" in changes else None
    except ValueError as error:
        raise BadRequest(f"table {table.name!r}: {error}") from error
    if wanted["max_size"] < 1:
        raise BadRequest(f"table {table.name!r}: max_size must be at least 1")
    # A table may have been made so; then its other settings can still be changed.
    sizes_change = not {"max_size", "min_size_to_sample"}.isdisjoint(changes)
    if sizes_change and wanted["max_size"] < wanted["min_size_to_sample"]:
        raise BadRequest(f"table {table.name!r}: with max_size below min_size_to_sample nothing could be sampled")
    if wanted["max_bytes"] is not None and wanted["max_bytes"] < 1:
        raise BadRequest(f"table {table.name!r}: max_bytes must be at least 1, or unlimited")
    if wanted["when_full"] not in WHEN_FULL:
        raise BadRequest(f"table {table.name!r}: when_full is one of {', '.join(WHEN_FULL)}")
    # Nothing below refuses.
    for name in _LIMITER:
        setattr(table.limiter, name, getattr(limiter, name))
    if sampler is not None:
        table.replace_sampler(sampler)
    table.paused = frozenset(side for name, side in _PAUSES.items() if wanted[name])
    table.capacity.max_bytes, table.capacity.when_full = wanted["max_bytes"], wanted["when_full"]
    # What `Table.replace` makes is as the table is now.
    table._max_bytes, table._when_full = wanted["max_bytes"], wanted["when_full"]
    table.resize(wanted["max_size"], wanted["max_times_sampled"])
    return before
