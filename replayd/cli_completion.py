"""`replayd completion`: the text by which a shell completes commands, options and tables, and what it is offered.

Imports nothing heavy before a shell asks for tables.
"""

from __future__ import annotations

import os
import time

import click

from replayd.cli_options import ADDRESS_VARIABLE

TABLES_S = 1.0
"""How long the daemon may take to say which tables there are: somebody waits at a prompt."""

SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", required=False, type=click.Choice(SHELLS))
@click.pass_context
def completion(context: click.Context, shell: str | None) -> None:
    """Print what has SHELL complete commands, options and tables of replayd: bash, zsh or fish.

    Tables are those of the daemon that the command would ask, if it answers soon. Without SHELL it is the one that the
    variable SHELL names.

    \b
    Examples:
      eval "$(replayd completion bash)"                              # this session; or in ~/.bashrc
      replayd completion fish > ~/.config/fish/completions/replayd.fish
    """
    name = shell or os.path.basename(os.environ.get("SHELL", ""))
    if name not in SHELLS:
        raise click.UsageError(f"which shell? One of {', '.join(SHELLS)}")
    from click.shell_completion import get_completion_class

    kind = get_completion_class(name)
    assert kind is not None, "click knows the shells that are offered"
    click.echo(kind(context.find_root().command, {}, "replayd", "_REPLAYD_COMPLETE").source())


COMMANDS: tuple[click.Command, ...] = (completion,)


def tables_there(context: click.Context, parameter: click.Parameter, typed: str) -> list[str]:
    """The tables that begin so of the daemon which this command would ask, but those already named.

    None where nobody answers soon or anything else is wrong: the command will say what, at a prompt nobody can read it.
    """
    from replayd_client.errors import ReplaydError
    from replayd_client.keys import read_keys
    from replayd_client.pool import ConnectionPool, endpoint_of

    # `bench` asks that of the variable only with a table, which is being typed.
    address = context.params.get("address") or os.environ.get(ADDRESS_VARIABLE)
    said = context.params.get(parameter.name or "")
    if not address:
        return []
    try:
        pool = ConnectionPool(endpoint_of(address), read_keys(None))
        try:
            with pool.connection() as connection:
                there = connection.open_session(time.monotonic() + TABLES_S).tables
        finally:
            pool.close()
    except ReplaydError:
        return []
    named = said if isinstance(said, tuple) else ()
    return [name for name in there if name.startswith(typed) and name not in named]
