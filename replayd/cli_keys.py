"""`replayd keys`: who may come in, as files. Changes files alone: a daemon reads its allow-list again on SIGHUP."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import click

from replayd.cli_operator import fail
from replayd.cli_options import Place
from replayd.exit_codes import of_keys

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")

directory_option = click.option(
    "--dir",
    "directory",
    type=Place(file_okay=False, path_type=Path),
    default=Path("/etc/replayd/keys"),
    show_default=True,
    help="The directory of keys: that of `[access] keys`.",
)
as_json_option = click.option("--json", "as_json", is_flag=True, help="For programs.")
RELOAD = "a daemon that runs takes it up on SIGHUP: `systemctl reload replayd` for the service, else `kill -HUP PID`"


@click.group()
def keys() -> None:
    """Make and revoke the keys of those who may come in.

    \b
    Examples:
      replayd keys generate actor-7 --role actor --out actor-7.key
      replayd keys list
      replayd keys revoke actor-7
    """


@keys.command()
@click.argument("name")
@click.option(
    "--role",
    "roles",
    multiple=True,
    required=True,
    type=click.Choice(["actor", "learner", "admin"]),
    help="What it lets one do: actor inserts, learner samples and updates, admin does everything. May be repeated.",
)
@click.option("--out", type=Place(dir_okay=False, path_type=Path), help="The file to make. [default: NAME.key]")
@directory_option
@as_json_option
def generate(name: str, roles: tuple[str, ...], out: Path | None, directory: Path, as_json: bool) -> None:
    """Make a key for NAME, and let it in.

    The file goes to NAME's machine, and there to `Client(address, key_file=…)` or into REPLAYD_KEY_FILE; it is the only
    copy. The first time the server's own key is made too.

    \b
    Examples:
      replayd keys generate actor-7 --role actor --out actor-7.key
      replayd keys generate me --role actor --role learner --dir keys --json
    """
    from replayd.access import ALLOWED_FILE, AccessError, Holder, read_allowed, unmakeable, write_allowed
    from replayd.key_files import SERVER_FILE, make_client_key, make_server_key

    if not NAME.fullmatch(name):
        fail(os.EX_USAGE, "a name is up to 64 letters, digits, dots, dashes and underscores")
    allowed = directory / ALLOWED_FILE
    out = out or Path(f"{name}.key")
    try:
        server = make_server_key(directory / SERVER_FILE)
        holders = read_allowed(allowed) if allowed.exists() else {}
        if any(holder.name == name for holder in holders.values()):
            fail(os.EX_USAGE, f"{name!r} has a key already; `replayd keys revoke {name}` comes first")
        public = make_client_key(out, name, server)
        try:
            write_allowed(allowed, {**holders, public: Holder(name, public, roles)})
        except (AccessError, OSError):
            out.unlink()
            raise
    except AccessError as error:
        fail(of_keys(error), str(error))
    except OSError as error:
        refusal = unmakeable(Path(error.filename or directory), error)
        fail(of_keys(refusal), str(refusal))
    if as_json:
        # The public key, as `list` has it; the secret one is in the file alone.
        click.echo(json.dumps({"name": name, "roles": roles, "key": public, "file": str(out), "list": str(allowed)}))
        return
    click.echo(f"{out}: the key of {name} ({', '.join(roles)}), for {name}'s eyes alone")
    click.echo(f"{allowed}: {name} may come in; {RELOAD}")


@keys.command("list")
@directory_option
@as_json_option
def list_(directory: Path, as_json: bool) -> None:
    """Show who may come in, and as what.

    \b
    Examples:
      replayd keys list
      replayd keys list --dir keys --json | jq -r '.[].name'
    """
    from replayd.access import ALLOWED_FILE, AccessError, read_allowed

    try:
        holders = read_allowed(directory / ALLOWED_FILE)
    except AccessError as error:
        fail(of_keys(error), str(error))
    if as_json:
        click.echo(json.dumps([{"name": h.name, "roles": h.roles, "key": h.key} for h in holders.values()]))
        return
    for holder in holders.values():
        click.echo(f"{holder.name:<24} {', '.join(holder.roles):<24} {holder.key}")


@keys.command()
@click.argument("name")
@directory_option
@as_json_option
def revoke(name: str, directory: Path, as_json: bool) -> None:
    """Let NAME in no more. Its connections are refused whatever they ask once the daemon has reloaded.

    \b
    Examples:
      replayd keys revoke actor-7
      replayd keys revoke actor-7 --dir keys --json
    """
    from replayd.access import ALLOWED_FILE, AccessError, read_allowed, write_allowed

    allowed = directory / ALLOWED_FILE
    try:
        holders = read_allowed(allowed)
        left = {key: holder for key, holder in holders.items() if holder.name != name}
        if len(left) == len(holders):
            known = ", ".join(holder.name for holder in holders.values()) or "nobody"
            fail(os.EX_USAGE, f"{name!r} has no key here; who has: {known}")
        write_allowed(allowed, left)
    except AccessError as error:
        fail(of_keys(error), str(error))
    if as_json:
        click.echo(json.dumps({"name": name, "list": str(allowed)}))
        return
    click.echo(f"{allowed}: {name} may come in no more; {RELOAD}")


COMMANDS: tuple[click.Command, ...] = (keys,)
