"""The files of a service that the units of systemd name: its settings, its variables, its store.

Owns where they are, and how systemd reads a file of variables. Knows nothing of what the settings are.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SETTINGS = Path("/etc/replayd")
VARIABLES = Path("/etc/default")
STATE = Path("/var/lib/replayd")
DEFAULT = "replayd"
"""The service that has no name of its own; others are `replayd@NAME`."""


@dataclass(frozen=True, slots=True)
class Service:
    """One of the services of this machine: what its unit has besides the file of settings."""

    unit: str
    variables: Path
    """The unit's EnvironmentFile, which need not be there."""
    store: Path | None
    """The directory that the unit gives to `serve` as --data-dir; None if it gives none."""


def service_of(settings: str) -> Service | None:
    """The service whose settings these are, by where the file is; None: no service's."""
    path = Path(settings).absolute()
    if path.parent != SETTINGS or path.suffix != ".toml":
        return None
    if path.stem == DEFAULT:
        return Service(DEFAULT, VARIABLES / DEFAULT, None)
    return Service(f"{DEFAULT}@{path.stem}", VARIABLES / f"{DEFAULT}-{path.stem}", STATE / path.stem / "store")


def installed() -> str:
    """Where the settings of the service without a name are, if it is installed."""
    return str(SETTINGS / f"{DEFAULT}.toml")


def is_installed() -> bool:
    """Whether they are there; where this user may not look they may be."""
    try:
        os.stat(installed())
    except PermissionError:
        return True
    except OSError:
        return False
    return True


def read_variables(path: Path) -> dict[str, str]:
    r"""The variables in a file, as systemd takes them from an EnvironmentFile; see systemd.exec(5).

    Taken are lines of NAME=VALUE; empty ones, those without `=` and those that begin with `#` or `;` are not. A value
    may have parts in quotes, over several lines, and `\` at a line's end goes on with the next. Nothing is expanded,
    and `export` is none of it. Raises OSError; UnicodeDecodeError, a ValueError, for what is no text.
    """
    return dict(_variables(path.read_text("utf-8")))


_LINE = re.compile(
    r"""[ \t]* (?:
        [#;][^\n]*
      | (?P<name>[^=\n]*?)[ \t]*=[ \t]*
        (?P<quoted>(?:(?:'[^']*'|"(?:[^"\\]|\\.)*")[ \t]*)*)
        (?P<bare>(?:[^\\\n]|\\.)*)
      | [^\n]*
    ) (?:\n|\Z)""",
    re.VERBOSE | re.DOTALL,
)
_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_PART = re.compile(r"""'([^']*)'|"((?:[^"\\]|\\.)*)\"""", re.DOTALL)


def _variables(text: str) -> Iterator[tuple[str, str]]:
    for line in _LINE.finditer(text):
        if line["name"] is not None and _NAME.fullmatch(line["name"]):
            parts = [single or _of_double(double) for single, double in _PART.findall(line["quoted"])]
            yield line["name"], "".join([*parts, _of_bare(line["bare"])])


def _of_double(text: str) -> str:
    r"""Within double quotes `\` stands for itself but before these."""
    return re.sub(r'\\(["\\`$\n])', lambda escaped: escaped[1].removeprefix("\n"), text)


def _of_bare(text: str) -> str:
    return re.sub(r"\\(.)", lambda escaped: escaped[1].removeprefix("\n"), text.rstrip(" \t\r"), flags=re.DOTALL)
