"""What tests of `replayd.compat.reverb` with a server need: tables, and the way to what they hold."""

from __future__ import annotations

from typing import Any

from replayd.compat import reverb


def fifo(name: str, **settings: Any) -> reverb.Table:
    """A table that gives each item once, in order, and never makes anybody wait for more than one."""
    return reverb.Table(
        name,
        sampler=reverb.selectors.Fifo(),
        remover=reverb.selectors.Fifo(),
        max_size=1000,
        rate_limiter=reverb.rate_limiters.MinSize(1),
        max_times_sampled=1,
        **settings,
    )


def by_priority(name: str, sampler: Any) -> reverb.Table:
    """A table of which the sampler takes items as often as one asks."""
    return reverb.Table(name, sampler, reverb.selectors.Fifo(), 100, reverb.rate_limiters.MinSize(1))


def size(client: reverb.Client, table: str) -> int:
    return client.server_info()[table].current_size


def items(client: reverb.Client, table: str, **settings: Any) -> list[Any]:
    """What the table holds, as whole trajectories."""
    count = size(client, table)
    return list(client.sample(table, count, emit_timesteps=False, **settings)) if count else []


def data(client: reverb.Client, table: str, **settings: Any) -> list[Any]:
    """The columns of each item as lists."""
    return [[column.tolist() for column in sample.data] for sample in items(client, table, **settings)]
