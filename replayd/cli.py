"""The command line as a whole: which commands there are, in which module each is, and what they have in common.

A command's module is imported when somebody asks for the command, since all of them together take longer than most
commands; `--help` asks for all. This module must know nothing that one command alone needs.
"""

from __future__ import annotations

from collections import UserDict
from collections.abc import Iterator
from importlib import import_module

import click

from replayd import __version__
from replayd.cli_options import ADDRESS_VARIABLE
from replayd.exit_codes import MEANINGS, Commands

MODULES = {
    "bench": "replayd.cli_bench",
    "check-config": "replayd.cli_config",
    "checkpoint": "replayd.cli_store",
    "completion": "replayd.cli_completion",
    "default-config": "replayd.cli_config",
    "doctor": "replayd.cli_doctor",
    "info": "replayd.cli_info",
    "keys": "replayd.cli_keys",
    "pause": "replayd.cli_operator",
    "peek": "replayd.cli_operator",
    "ping": "replayd.cli_info",
    "reset": "replayd.cli_operator",
    "restore": "replayd.cli_store",
    "resume": "replayd.cli_operator",
    "serve": "replayd.cli_serve",
    "set": "replayd.cli_operator",
    "tables": "replayd.cli_info",
    "top": "replayd.cli_top",
    "why": "replayd.cli_operator",
}
"""Where each command is: among the `COMMANDS` of its module."""


class OnDemand(UserDict[str, click.Command]):
    """The commands by name, each imported when it is asked for."""

    def __missing__(self, name: str) -> click.Command:
        if name not in MODULES:
            raise KeyError(name)
        command: click.Command
        (command,) = (each for each in import_module(MODULES[name]).COMMANDS if each.name == name)
        _name_variables(command, f"REPLAYD_{name}")
        self.data[name] = command
        return command

    def __contains__(self, name: object) -> bool:
        return name in MODULES

    def __iter__(self) -> Iterator[str]:
        return iter(MODULES)

    def __len__(self) -> int:
        return len(MODULES)


def _name_variables(command: click.Command, prefix: str) -> None:
    """An option's variable is called after what one types; click itself would take the name of the parameter. Where a
    daemon is has one that all commands share, too."""
    if isinstance(command, click.Group):
        for name, each in command.commands.items():
            _name_variables(each, f"{prefix}_{name}")
    for option in command.params:
        if isinstance(option, click.Option):
            own = f"{prefix}_{option.opts[0].removeprefix('--')}".upper().replace("-", "_")
            option.envvar = [own, ADDRESS_VARIABLE] if option.name == "address" else own


EXIT_CODES = "\b\nExit codes, those of sysexits.h from 64 on:\n" + "\n".join(
    f"{code:4}  {meaning}" for code, meaning in MEANINGS.items()
)

EXAMPLES = """\b
Examples:
  replayd default-config > replayd.toml
  replayd check-config replayd.toml
  replayd serve --config replayd.toml
  replayd ping --wait 10
  replayd top
"""


@click.group(
    cls=Commands,
    commands=OnDemand(),
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120},
    epilog=f"{EXIT_CODES}\n\n{EXAMPLES}",
)
@click.version_option(__version__, prog_name="replayd")
def main() -> None:
    """Experience replay as a service: actors insert, learners sample, the daemon keeps the two in step.

    Every option can be given in the environment: `serve --ingest-port` is REPLAYD_SERVE_INGEST_PORT. Where an option
    may be repeated, spaces separate the values. REPLAYD_ADDRESS names the daemon for all commands that ask one (`bench`
    only with --table).
    Times are written 500ms, 5s, 2min or 1h, or as a number of seconds, sizes 500MB or 4GiB, or as a number of bytes.
    """
