"""What options of several commands take: the daemon's address, paths, and times and sizes with the units of the file.

Owns these forms and where an address comes from that nobody typed. Imports nothing heavy.
"""

from __future__ import annotations

import os
import re
from typing import Any

import click
from click.core import ParameterSource

from replayd.config_units import as_bytes, as_seconds
from replayd.wording import duration, size_text

DEFAULT_ADDRESS = "tcp://127.0.0.1:7077"
ADDRESS_VARIABLE = "REPLAYD_ADDRESS"
"""Names the daemon for all commands that ask one (`bench` only with --table); a variable of the command's own,
REPLAYD_INFO_ADDRESS, wins."""
MAX_WAIT_S = 1_000_000.0
"""A wait in milliseconds must fit into the C int that libzmq polls with."""


def endpoint_of(_: click.Context, __: click.Parameter, address: str | None) -> str | None:
    """The address as a socket needs it; `tcp://` may be left out, as in `Client("localhost:7077")`. None is none."""
    if address is None:
        return None
    endpoint = address if "://" in address else f"tcp://{address}"
    tcp = re.fullmatch(r"tcp://.+:(\d{1,5})", endpoint)
    if not (1 <= int(tcp[1]) <= 65535 if tcp else re.fullmatch(r"ipc://.+", endpoint)):
        raise click.BadParameter(f"expected HOST:PORT, tcp://HOST:PORT or ipc://PATH, got {address!r}")
    return endpoint


def variable_of(context: click.Context, option: click.Parameter) -> str:
    """The variable of the environment that an option has its value from, empty if it has it from elsewhere."""
    if option.name is None or context.get_parameter_source(option.name) is not ParameterSource.ENVIRONMENT:
        return ""
    names = [option.envvar] if isinstance(option.envvar, str) else option.envvar or ()
    return next((name for name in names if os.environ.get(name)), "")


def variables_of(context: click.Context) -> dict[str, str]:
    """The variable of each option that has its value from one, by the parameter's name."""
    named = {option.name: variable_of(context, option) for option in context.command.params}
    return {name: variable for name, variable in named.items() if name and variable}


ADDRESS = click.option(
    "--address",
    default=DEFAULT_ADDRESS,
    callback=endpoint_of,
    help=f"Where the daemon answers.  [default: {ADDRESS_VARIABLE}, else {DEFAULT_ADDRESS}]",
)


class NotPermitted(click.BadParameter):
    """A path that this user may not look at: nothing is wrong with what was typed."""


class Place(click.Path):  # type: ignore[type-arg,unused-ignore]
    """A path, as click's own, that tells one that this user may not look at from one that is not there."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        denied = False
        try:
            os.stat(value)
            denied = self.readable and not os.access(value, os.R_OK)
        except PermissionError:
            denied = True
        except OSError:
            pass  # Whether it must be there click knows.
        if denied:
            what = f"{os.fsdecode(value)}: this user may not look there; as the user that it belongs to, or as root"
            raise NotPermitted(what, ctx, param)
        return super().convert(value, param, ctx)


class Time(click.ParamType):  # type: ignore[type-arg]  # it takes none before click 8.4
    """A time with the units of the file, `500ms` or `5min`, in seconds; a bare number is one of seconds."""

    name = "time"

    def __init__(self, least_s: float = 0.0, most_s: float = MAX_WAIT_S) -> None:
        self.least_s, self.most_s = least_s, most_s

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            seconds = float(value)
        except ValueError:
            try:
                seconds = as_seconds(value)
            except ValueError:
                self.fail(f"expected a time such as 5, 500ms, 60s, 5min or 1h, got {value!r}", param, ctx)
        # NaN compares with nothing.
        if not self.least_s <= seconds <= self.most_s:
            self.fail(f"{value!r} is not between {duration(self.least_s)} and {duration(self.most_s)}", param, ctx)
        return seconds


class Size(click.ParamType):  # type: ignore[type-arg]
    """A number of bytes with the units of the file, `500MB` or `4GiB`; a bare number is one of bytes."""

    name = "size"

    def __init__(self, least: int, most: int) -> None:
        self.least, self.most = least, most

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            nbytes = int(as_bytes(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)
        if not self.least <= nbytes <= self.most:
            self.fail(f"{value!r} is not between {size_text(self.least)} and {size_text(self.most)}", param, ctx)
        return nbytes
