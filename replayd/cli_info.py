"""What a running daemon says of itself, on the command line: `info`, `ping` and `tables`.

Imports nothing heavy before a command runs.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping
from typing import Any

import click

from replayd.cli_operator import asking, connected, print_json
from replayd.cli_options import ADDRESS, Time
from replayd.wording import aligned, count, fill, short, size_text

PING_S = 1.0
"""How long `ping` gives a daemon that is there to say so."""


@click.command()
@asking
def info(address: str, timeout_s: float, as_json: bool) -> None:
    """Show each table of a running daemon, and who waits there for what.

    \b
    Examples:
      replayd info
      replayd info --json --address actor-box:7077
    """
    from replayd_client import inspection

    with connected(address) as pool:
        answer = inspection.info(pool, time.monotonic() + timeout_s)
    if as_json:
        print_json(answer)
        return
    chunks, streams = answer["chunks"], answer["streams"]
    click.echo(f"{answer['server']} at {address}")
    click.echo(
        f"  {count(chunks['count'], 'chunk')}, {size_text(chunks['bytes'])}, of which "
        f"{size_text(chunks['orphan_bytes'])} in no item yet; {count(streams['open'], 'open stream')}"
    )
    memory = answer["memory"]
    if "max_bytes" in memory:
        held, most = size_text(memory["held_bytes"]), size_text(memory["max_bytes"])
        click.echo(f"  tables hold {held} of at most {most} (the server's max_bytes)")
    # A daemon that has not been started again since an upgrade does not tell.
    if answer.get("leases", {}).get("refused"):
        click.echo(f"  {_leases_text(answer['leases'])}")
    if "store" in answer:
        click.echo(f"  store {_store_text(answer['store'])}")
        for difference in answer["store"].get("differences", ()):
            click.echo(f"    {difference}")
    for table in answer["tables"]:
        click.echo("")
        for line in _table_lines(table):
            click.echo(line)


def _leases_text(leases: Mapping[str, Any]) -> str:
    kept, most = size_text(leases["bytes"]), size_text(leases["max_bytes"])
    return (
        f"writers keep {kept} for items to come, of {most} that they may: {count(leases['refused'], 'insert')} refused "
        "for it; raise max_bytes, keep shorter trajectories, or run fewer writers"
    )


def _store_text(store: Mapping[str, Any]) -> str:
    text = f"{store['path']}, {size_text(store['size_bytes'])}: "
    if "last" in store:
        text += f"checkpoint {store['last']['generation']} of {store['last']['age_s']:.0f} s ago"
    elif "restored_generation" in store:
        text += f"begun with checkpoint {store['restored_generation']}, none since"
    else:
        text += "no checkpoint yet"
    lost = [count(n, noun) for noun in ("item", "chunk", "request") if (n := store.get(f"lost_{noun}s"))]
    if lost:
        text += f"; damage took {', '.join(lost)} of what the daemon began with"
    if "running" in store:
        running = store["running"]
        text += f"; one is being written ({running['phase']}, {running['chunks']} of {running['chunks_total']} chunks)"
    if "inserts_wait" in store:
        text += f"; inserts wait: {store['inserts_wait']}"
    journal = store.get("journal", {})
    if "last_error" in journal:
        text += f"; the journal is {journal['state']} ({journal['last_error']})"
    return text + (f"; the last one failed: {store['last_error']}" if "last_error" in store else "")


def _table_lines(table: Mapping[str, Any]) -> Iterator[str]:
    limiter = table["limiter"]
    yield f"{table['name']}"
    yield (
        f"  items    {table['size']} of at most {table['max_size']}; {size_text(table['bytes'])} of "
        f"{count(table['episodes'], 'episode')}"
    )
    yield f"  holds    {_held_text(table)}"
    yield (
        f"  done     {count(limiter['inserts'], 'insert')}, {count(limiter['samples'], 'sample')}, "
        f"{count(limiter['deletes'], 'delete')}"
        + (f", of which {table['evictions']} made room" if table["evictions"] else "")
    )
    yield f"  limiter  {_limiter_text(limiter)}"
    if "staleness_versions" in table:
        yield f"  policy   {_policy_text(table['newest_policy_version'], table['staleness_versions'])}"
    if table["paused"]:
        yield f"  paused   {', '.join(table['paused'])}"
    for waiting in table["waiting"]:
        requests = count(waiting["requests"], f"{waiting['side']} request")
        who = f": {', '.join(waiting['who'])}" if waiting["who"] else ""
        yield (
            f"  waiting  {requests} ({count(waiting['items'], 'item')}{who}), "
            f"the oldest for {waiting['waited_s']:.1f} s: {waiting['why']}"
        )


def _held_text(table: Mapping[str, Any]) -> str:
    share, limit = fill(table)
    most = f" of at most {size_text(table['max_bytes'])} (max_bytes)" if "max_bytes" in table else ""
    return f"{size_text(table['held_bytes'])}{most}; {share:.0%} of {limit}"


def _policy_text(newest: int, behind: Mapping[str, Any]) -> str:
    draws = sum(behind["counts"])
    return f"newest version {newest}" + (f"; draws lag {behind['sum'] / draws:.1f} behind on average" if draws else "")


def _limiter_text(limiter: Mapping[str, Any]) -> str:
    lowest, highest = limiter.get("min_diff"), limiter.get("max_diff")
    text = f"samples from {count(limiter['min_size_to_sample'], 'item')} on"
    if lowest is None and highest is None:
        return text
    band = " ".join(f"{word} {bound:g}" for word, bound in (("from", lowest), ("to", highest)) if bound is not None)
    return f"{text}; cursor {limiter['cursor']:g} {band}, samples_per_insert {limiter['samples_per_insert']:g}"


@click.command()
@ADDRESS
@click.option("--wait", "wait_s", type=Time(), help="Keep trying for so long.")
@click.option("--json", "as_json", is_flag=True, help="Print who answered, and how soon, as JSON.")
def ping(address: str, wait_s: float | None, as_json: bool) -> None:
    """Ask whether a daemon answers.

    Exit code 0 if it does, 69 if not, 75 if it still did not when --wait was over, or does not serve yet or any more.

    \b
    Examples:
      replayd ping
      replayd ping --wait 60 --address actor-box:7077
    """
    unreachable = os.EX_UNAVAILABLE if wait_s is None else os.EX_TEMPFAIL
    with connected(address, unreachable) as pool, pool.connection() as connection:
        began = time.monotonic()
        hello = connection.open_session(began + (PING_S if wait_s is None else wait_s))
        took_ms = (time.monotonic() - began) * 1000
    if as_json:
        print_json({"server": hello.server, "address": address, "tables": list(hello.tables), "took_ms": took_ms})
    else:
        click.echo(f"{hello.server} at {address}")


# --- tables -----------------------------------------------------------------------------------------------------------


@click.command()
@asking
def tables(address: str, timeout_s: float, as_json: bool) -> None:
    """List the tables of a running daemon, one a line.

    \b
    Examples:
      replayd tables
      replayd tables --json | jq -r '.[].name'
    """
    from replayd_client import inspection

    with connected(address) as pool:
        found = inspection.info(pool, time.monotonic() + timeout_s)["tables"]
    if as_json:
        print_json(found)
        return
    for line in aligned([("items", "of", "full", "held", "inserts", "samples", "waiting", "name"), *map(_row, found)]):
        click.echo(line)


def _row(table: Mapping[str, Any]) -> tuple[str, ...]:
    limiter = table["limiter"]
    share, limit = fill(table)
    return (
        str(table["size"]),
        str(table["max_size"]),
        f"{share:.0%}" + (f" of {limit}" if "max_bytes" in table else ""),
        size_text(table["held_bytes"]),
        short(limiter["inserts"]),
        short(limiter["samples"]),
        str(sum(waiting["requests"] for waiting in table["waiting"])),
        table["name"] + "".join(f" (paused: {side})" for side in table["paused"]),
    )


COMMANDS: tuple[click.Command, ...] = (info, ping, tables)
