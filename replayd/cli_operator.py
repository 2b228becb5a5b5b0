"""What the command line asks of a table that is served: `why`, `peek`, `set`, `pause`, `resume`, `reset`.

Every command takes `--address`, `--timeout` and `--json`. Imports nothing heavy before a command runs.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

import click

from replayd.cli_completion import tables_there
from replayd.cli_options import ADDRESS, Time
from replayd.exit_codes import of_client_keys, of_refusal
from replayd.wording import aligned, count

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from replayd_client.peeking import PeekedItem
    from replayd_client.pool import ConnectionPool

PEEKED = 10
"""Items that `peek` shows if nobody says how many."""
SHOWN_VALUES = 4
"""Values of an array that are shown; of a larger one only dtype and shape."""
SHOWN_CHARACTERS = 200
"""Characters of an array's values, of which a single str may have millions."""
UNLIMITED = "unlimited"
SETTINGS = {
    "max_size": "an integer of at least 1",
    "max_times_sampled": "an integer, 0 for any number of times",
    "when_full": "evict, block or reject",
    "samples_per_insert": "a number above 0",
    "min_size_to_sample": "an integer of at least 1",
    "priority_exponent": "a number of at least 0",
}
"""What settings may be that are never unlimited."""
BOOLS = ("paused_inserts", "paused_samples")
"""Settings that are yes or no."""
TABLE = click.argument("table", shell_complete=tables_there)


def asking(command: Callable[..., None]) -> Callable[..., None]:
    """The options of a command that asks for something."""
    command = click.option("--json", "as_json", is_flag=True, help="Print what the daemon said, as JSON.")(command)
    timeout = click.option(
        "--timeout", "timeout_s", type=Time(), default="5s", show_default=True, help="How long to wait for the answer."
    )
    return ADDRESS(timeout(command))


# --- why --------------------------------------------------------------------------------------------------------------


@click.command()
@TABLE
@asking
def why(table: str, address: str, timeout_s: float, as_json: bool) -> None:
    """Say who waits at TABLE for what, and whether that can end by itself.

    \b
    Examples:
      replayd why replay
    """
    from replayd_client import inspection

    with connected(address) as pool:
        found = inspection.why(pool, table, time.monotonic() + timeout_s)
    if as_json:
        print_json({**found._asdict(), "waiting": [side._asdict() for side in found.waiting]})
    else:
        click.echo(str(found))


# --- peek -------------------------------------------------------------------------------------------------------------


@click.command()
@TABLE
@click.option("--newest", type=click.IntRange(1), metavar="N", help=f"The last N items  [default: {PEEKED}]")
@click.option("--oldest", type=click.IntRange(1), metavar="N", help="The first N items.")
@click.option("--highest", type=click.IntRange(1), metavar="N", help="N items of highest priority.")
@click.option("--lowest", type=click.IntRange(1), metavar="N", help="N items of lowest priority.")
@click.option("--key", "keys", type=click.IntRange(0, (1 << 64) - 1), multiple=True, help="The item of this key.")
@asking
def peek(
    table: str, keys: tuple[int, ...], address: str, timeout_s: float, as_json: bool, **orders: int | None
) -> None:
    """Look at items of TABLE without drawing them: nothing is counted, nothing changes.

    \b
    Examples:
      replayd peek replay --newest 5
      replayd peek replay --key 17 --key 18 --json
    """
    import numpy as np

    from replayd_client import peeking

    asked = [(order, n) for order, n in orders.items() if n is not None]
    if len(asked) + bool(keys) > 1:
        raise click.UsageError("only one of --key, --newest, --oldest, --highest and --lowest at a time")
    deadline = time.monotonic() + timeout_s
    with connected(address) as pool:
        if keys:
            found = peeking.peek_keys(pool, table, np.array(keys, np.uint64), deadline)
        else:
            order, n = asked[0] if asked else ("newest", PEEKED)
            found = peeking.peek_first(pool, table, order, n, deadline)
    missing = found.missing.tolist()
    if as_json:
        items = [
            {**item.info._asdict(), "data": {name: _described(array) for name, array in _columns(item)}}
            for item in found
        ]
        print_json({"items": items, "missing": missing})
        return
    click.echo(f"{table}: {count(len(found), 'item')}")
    for line in aligned([("key", "priority", "sampled", "age", "data"), *map(_item_row, found)] if found else []):
        click.echo(line)
    if missing:
        click.echo(f"  not there: {', '.join(map(str, missing))}")


def _item_row(item: PeekedItem) -> tuple[str, ...]:
    key, priority, times_sampled, age_s = item.info
    data = ", ".join(f"{name} {_array_text(array)}" for name, array in _columns(item))
    return str(key), f"{priority:g}", str(times_sampled), f"{age_s:.1f} s", data


def _columns(item: PeekedItem) -> Iterator[tuple[str, NDArray[Any]]]:
    from replayd_client.structure import flatten

    for path, array in flatten(item.data):
        yield "/".join(map(str, path)) or "step", array


def _array_text(array: NDArray[Any]) -> str:
    text = f"{_dtype_name(array)}[{', '.join(map(str, array.shape))}]"
    if array.size > SHOWN_VALUES:
        return text
    values = repr(array.tolist())
    return f"{text} = {values if len(values) <= SHOWN_CHARACTERS else f'{values[: SHOWN_CHARACTERS - 1]}…'}"


def _described(array: NDArray[Any]) -> dict[str, Any]:
    return {"dtype": _dtype_name(array), "shape": array.shape, "values": array.tolist()}


def _dtype_name(array: NDArray[Any]) -> str:
    """As the protocol has it; values of bytes and str come as objects."""
    return type(array.flat[0]).__name__ if array.dtype.kind == "O" and array.size else array.dtype.name


# --- set, pause, resume and reset -------------------------------------------------------------------------------------


def _changes(context: click.Context, argument: click.Parameter, pairs: tuple[str, ...]) -> dict[str, Any]:
    changes: dict[str, Any] = {}
    for pair in pairs:
        name, separator, text = pair.partition("=")
        if not name or not separator:
            raise click.BadParameter(f"expected KEY=VALUE, got {pair!r}")
        if name in changes:
            raise click.BadParameter(f"{name} is given twice")
        changes[name] = _value(name, text)
    return changes


def _value(name: str, text: str) -> Any:
    if name in BOOLS:
        if text not in ("yes", "no"):
            raise click.BadParameter(f"{name} is yes or no, not {text!r}")
        return text == "yes"
    if text == UNLIMITED and name not in SETTINGS:
        return None
    if name == "when_full":
        return text
    if name == "max_bytes":
        return _bytes(text)
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    raise click.BadParameter(f"{name} is {SETTINGS.get(name, f'a number or {UNLIMITED!r}')}, not {text!r}")


def _bytes(text: str) -> Any:
    from replayd.config_units import as_bytes

    try:
        return as_bytes(text)
    except ValueError as error:
        raise click.BadParameter(f"max_bytes: {error}") from None


@click.command(name="set")
@TABLE
@click.argument("changes", nargs=-1, metavar="[KEY=VALUE]…", callback=_changes)
@asking
def set_(table: str, changes: dict[str, Any], address: str, timeout_s: float, as_json: bool) -> None:
    """Change settings of TABLE while it runs, all or none; without any, show them.

    Keys: max_size, max_times_sampled, max_bytes (such as 4GiB), when_full (evict, block or reject), samples_per_insert,
    min_size_to_sample, min_diff and max_diff ("unlimited" for no bound, as of max_bytes), priority_exponent,
    paused_inserts and paused_samples (yes or no). They last until the daemon ends.

    \b
    Examples:
      replayd set replay
      replayd set replay max_size=200000 samples_per_insert=8
    """
    _change(table, changes, address, timeout_s, as_json)


SIDES = click.argument("sides", nargs=-1, type=click.Choice(["insert", "sample"]), metavar="[insert] [sample]")


@click.command()
@TABLE
@SIDES
@asking
def pause(table: str, sides: tuple[str, ...], address: str, timeout_s: float, as_json: bool) -> None:
    """Hold back inserts, samples or (no side named) both of TABLE, whatever its limiter says.

    The other side stays as it is. Who waits stays in order; samples still end at their deadlines.

    \b
    Examples:
      replayd pause replay sample
    """
    _change(table, _pauses(sides, True), address, timeout_s, as_json)


@click.command()
@TABLE
@SIDES
@asking
def resume(table: str, sides: tuple[str, ...], address: str, timeout_s: float, as_json: bool) -> None:
    """Let inserts, samples or (no side named) both of TABLE go on after a pause.

    \b
    Examples:
      replayd resume replay
    """
    _change(table, _pauses(sides, False), address, timeout_s, as_json)


def _pauses(sides: tuple[str, ...], paused: bool) -> dict[str, Any]:
    from replayd_client.inspection import PAUSES

    return {PAUSES[side]: paused for side in sides or PAUSES}


def _change(table: str, changes: dict[str, Any], address: str, timeout_s: float, as_json: bool) -> None:
    """Change settings in one request, and show what became of them."""
    from replayd_client import inspection

    with connected(address) as pool:
        result = inspection.change(pool, table, changes, time.monotonic() + timeout_s)
    if as_json:
        print_json(result._asdict())
        return
    before, after, removed, hint = result
    width = max(map(len, after))
    changed = {name: value for name, value in after.items() if before.get(name) != value}
    click.echo(f"{table}: nothing changed, it was so already" if changes and not changed else table)
    for name, value in (changed if changes else after).items():
        was = f"{_setting_text(before.get(name))} -> " if changes else ""
        click.echo(f"  {name:{width}}  {was}{_setting_text(value)}")
    if removed:
        click.echo(f"  {count(removed, 'item')} left at once")
    if hint:
        click.echo(f"  {hint}")


def _setting_text(value: Any) -> str:
    if value is None:
        return UNLIMITED
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)


@click.command()
@TABLE
@asking
def reset(table: str, address: str, timeout_s: float, as_json: bool) -> None:
    """Remove all items of TABLE and set its counters to 0. Who waits goes on waiting.

    \b
    Examples:
      replayd reset replay
    """
    from replayd_client import inspection

    with connected(address) as pool:
        removed = inspection.reset(pool, table, time.monotonic() + timeout_s)
    if as_json:
        print_json({"removed": removed})
    else:
        click.echo(f"{table}: {count(removed, 'item')} removed")


COMMANDS: tuple[click.Command, ...] = (why, peek, set_, pause, resume, reset)


# --- what they share --------------------------------------------------------------------------------------------------


@contextmanager
def connected(address: str, unreachable: int = os.EX_UNAVAILABLE) -> Iterator[ConnectionPool]:
    """Connections to the daemon. What goes wrong with them ends the command, in code `unreachable` if nobody
    answers.
    """
    from replayd_client.errors import DataError, ReplaydError
    from replayd_client.keys import read_keys
    from replayd_client.pool import ConnectionPool

    try:
        pool = ConnectionPool(address, read_keys(None))
    except DataError as error:
        fail(of_client_keys(error), str(error))
    try:
        yield pool
    except ReplaydError as error:
        fail(of_refusal(error, unreachable), str(error))
    finally:
        pool.close()


def print_json(value: Any) -> None:
    """Print what a daemon said, for programs."""
    click.echo(json.dumps(value, indent=2, default=_jsonable))


def _jsonable(value: Any) -> str:
    """Bytes as hex, and complex numbers as Python writes them."""
    return value.hex() if isinstance(value, bytes) else str(value)


def fail(code: int, *lines: str) -> NoReturn:
    """End the command in this exit code, with these lines on stderr."""
    for line in lines:
        click.echo(f"replayd: {line}", err=True)
    sys.exit(code)
