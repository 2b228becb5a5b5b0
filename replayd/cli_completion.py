"""`replayd completion`: the text by which a shell completes commands and options. Imports nothing heavy."""

from __future__ import annotations

import os
from pathlib import Path

import click
from click.shell_completion import get_completion_class

SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", required=False, type=click.Choice(SHELLS))
@click.pass_context
def completion(context: click.Context, shell: str | None) -> None:
    """Print what has SHELL complete commands and options of replayd: bash, zsh or fish.

    Without SHELL it is the one that the variable SHELL names.

    \b
    Examples:
      eval "$(replayd completion bash)"                              # this session; or in ~/.bashrc
      replayd completion fish > ~/.config/fish/completions/replayd.fish
    """
    name = shell or Path(os.environ.get("SHELL", "")).name
    if name not in SHELLS:
        raise click.UsageError(f"which shell? One of {', '.join(SHELLS)}")
    kind = get_completion_class(name)
    assert kind is not None, "click knows the shells that are offered"
    click.echo(kind(context.find_root().command, {}, "replayd", "_REPLAYD_COMPLETE").source())
