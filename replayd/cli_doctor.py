"""`replayd doctor`: what goes wrong in practice, looked for, with what to do.

Owns how findings are shown. Imports nothing heavy before it runs.
"""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import Any

import click

from replayd.cli_operator import print_json
from replayd.cli_options import ADDRESS_VARIABLE, DEFAULT_ADDRESS, Place, Time, endpoint_of
from replayd.cli_served import served
from replayd.exit_codes import OF_FINDINGS
from replayd.service_files import installed, is_installed

EXPECTED_PEERS = 200
COLOURS = {"ok": "green", "warn": "yellow", "fail": "red"}


@click.command()
@click.option(
    "--config",
    "config_path",
    type=Place(dir_okay=False),
    help="TOML file of settings, as `replayd serve` takes it.  [default: the one that REPLAYD_SERVE_CONFIG names, else "
    f"{installed()} where it can be read]",
)
@click.option(
    "--address",
    callback=endpoint_of,
    help=f"Where the daemon answers.  [default: {ADDRESS_VARIABLE}, else that of the settings]",
)
@click.option("--timeout", "timeout_s", type=Time(), default="2s", show_default=True, help="How long to wait for it.")
@click.option(
    "--peers", type=click.IntRange(1), default=EXPECTED_PEERS, show_default=True, help="How many will be connected."
)
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
def doctor(config_path: str | None, address: str | None, timeout_s: float, peers: int, as_json: bool) -> None:
    """Look for what goes wrong in practice, and say what to do about it.

    It looks at versions, settings, addresses and who is there, key files, clock, memory, blosc2's threads, file
    descriptors and the data directory, on this machine and as this user: `sudo -u replayd replayd doctor` sees what the
    service sees, its variables in /etc/default/replayd among it, and with `--config /etc/replayd/NAME.toml` what
    replayd@NAME sees, its store and /etc/default/replayd-NAME. What a process may have it asks the daemon, if one
    answers. It changes nothing.

    Exit code 0 if nothing failed (warnings may be told), else that of the first failure: 78 settings, 69 the daemon, 73
    an address or a directory, 77 keys, 71 the clock, 70 what is installed.

    \b
    Examples:
      replayd doctor
      replayd doctor --config /etc/replayd/replayd.toml --peers 500
      replayd doctor --json | jq '.findings[] | select(.state != "ok")'
    """
    from replayd import doctor as look

    config_path = config_path or os.environ.get("REPLAYD_SERVE_CONFIG")
    service: list[look.Finding] = []
    if config_path is None and is_installed():
        if os.access(settings := installed(), os.R_OK):
            config_path = settings
        else:
            what = f"{settings}, of the service, cannot be read by this user: the defaults are looked at instead"
            service = [look.Finding("settings", look.WARN, what, "sudo -u replayd replayd doctor")]
    told = served(click.get_current_context(), config_path)
    if told.service is not None:
        what = f"those of the service {told.service.unit}, {told.name}"
        service = [look.Finding("settings", look.OK, what)]
    if told.unread:
        what = f"{told.unread}: the service's variables are not looked at"
        service.append(look.Finding("settings", look.WARN, what, "sudo replayd doctor"))
    config, settled = look.settings(told.name, told.file, told.read)
    if address is None and config is not None:
        address = _reachable(config.server.listen)
    info = _info(address or DEFAULT_ADDRESS, timeout_s)
    if address is None:
        # Where it would be the settings say that are faulty; who answers at the usual place is likely it.
        address = "" if isinstance(info, str) else DEFAULT_ADDRESS
    findings = [*look.examine(config, [*service, *settled], told.environment, address, info, peers)]
    failures = [finding for finding in findings if finding.state == look.FAIL]
    if as_json:
        print_json({"ok": not failures, "findings": [asdict(finding) for finding in findings]})
    else:
        width = max(len(finding.check) for finding in findings)
        for finding in findings:
            state = click.style(f"{finding.state:4}", fg=COLOURS[finding.state])
            click.echo(f"{state}  {finding.check:{width}}  {finding.what}")
            if finding.advice:
                click.echo(f"{'':{width + 6}}  -> {finding.advice}")
        warned = sum(finding.state == look.WARN for finding in findings)
        click.echo(f"{len(findings)} findings: {len(failures)} failed, {warned} to be looked at")
    if failures:
        raise SystemExit(OF_FINDINGS[failures[0].check])


COMMANDS: tuple[click.Command, ...] = (doctor,)


def _reachable(listen: str) -> str:
    """An address that one can connect to, of one that is listened at."""
    return listen.replace("://*", "://127.0.0.1").replace("://0.0.0.0", "://127.0.0.1").replace("://[::]", "://[::1]")


def _info(address: str, timeout_s: float) -> Any:
    """What the daemon there says of itself, or why it does not."""
    import time

    from replayd_client import inspection
    from replayd_client.errors import ReplaydError
    from replayd_client.keys import read_keys
    from replayd_client.pool import ConnectionPool

    try:
        pool = ConnectionPool(address, read_keys(None))
    except ReplaydError as error:
        return str(error)
    try:
        return inspection.info(pool, time.monotonic() + timeout_s)
    except ReplaydError as error:
        return str(error)
    finally:
        pool.close()
