"""What the command line does about settings without a daemon: `check-config` and `default-config`.

Imports nothing heavy before a command runs.
"""

from __future__ import annotations

import os
import warnings
from dataclasses import asdict
from pathlib import Path

import click

from replayd.cli_operator import fail, print_json
from replayd.cli_options import Place
from replayd.cli_served import served
from replayd.service_files import installed, is_installed
from replayd.wording import size_text


@click.command("check-config")
@click.argument(
    "file",
    required=False,
    type=Place(exists=True, dir_okay=False, allow_dash=False),
    envvar="REPLAYD_SERVE_CONFIG",
)
@click.option("--json", "as_json", is_flag=True, help="Print what was found, as JSON.")
def check_config(file: str | None, as_json: bool) -> None:
    """Check the settings of FILE and of the environment, as `replayd serve` would, and say all that is wrong.

    Without FILE it is the one that REPLAYD_SERVE_CONFIG names, without that /etc/replayd/replayd.toml where the service
    is installed, and where it is not the environment alone is checked. Variables of options, such as
    REPLAYD_SERVE_PORT, count too. Of a service's file, replayd.toml or NAME.toml in
    /etc/replayd, the variables in /etc/default/replayd or /etc/default/replayd-NAME win over those, as they do for it.

    It also tells what memory the tables will take, and warns where that is more than a process may have that is started
    from here (a service's MemoryMax is not seen: its log and `replayd doctor` judge by that), and where this user could
    not make or write the store; of faulty settings it judges all that is sound. Exit code 0 if `replayd serve` would
    take the settings, with or without warnings, else 78, or 64 where a variable of an option has no value of its kind
    or says how a store is opened and there is none.

    \b
    Examples:
      replayd check-config /etc/replayd/replayd.toml
      replayd check-config replayd.toml --json
    """
    from replayd.config_differences import differences, settings_text
    from replayd.config_faults import ConfigError
    from replayd.config_model import Config
    from replayd.doctor import unseen, unwritable
    from replayd.forecast import forecast, is_bounded, memory_text, memory_warnings, resident_bytes, total_bytes
    from replayd.process import limit_bytes

    if file is None and is_installed():
        file = installed()
        if not os.access(file, os.R_OK):
            fail(
                os.EX_NOPERM,
                f"{file}, of the service, cannot be read by this user: sudo -u replayd replayd check-config",
            )
    told = served(click.get_current_context(), file)
    config: Config | None
    faulty: ConfigError | None = None
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            config = told.read()
        except ConfigError as error:
            config, faulty = error.sound, error
    limit = limit_bytes()
    doubts = [f"{told.unread}: the service's variables are not looked at"] if told.unread else []
    doubts += [*dict.fromkeys(str(each.message) for each in caught)]
    doubts += memory_warnings(config, limit) if config else ()
    if config and config.store and (trouble := unseen(path := Path(config.store.path)) or unwritable(path)):
        doubts.append(f"store.path: {trouble}")
    if faulty is not None:
        # What is sound is judged as well: whoever mends the faults wants to know all there is to mend.
        if as_json:
            faults = [asdict(fault) for fault in faulty.faults]
            print_json({"ok": False, "file": file, "faults": faults, "warnings": doubts})
            raise SystemExit(told.exit_code(faulty.faults))
        fail(told.exit_code(faulty.faults), *faulty.problems, *(f"warning: {doubt}" for doubt in doubts))
    assert config is not None, "without faults there are settings"
    memory = memory_text(config)
    tables = forecast(config)
    if as_json:
        print_json(
            {
                "ok": True,
                "file": file,
                "faults": [],
                "warnings": doubts,
                "notes": [] if is_bounded(config) else [memory],
                "settings": [{"key": key, "value": value, "from": where} for key, value, where in differences(config)],
                "tables": [{**asdict(each), "nbytes": each.nbytes} for each in tables],
                "predicted_bytes": total_bytes(config),
                "predicted_resident_bytes": resident_bytes(config),
                "limit_bytes": limit,
            }
        )
        return
    for doubt in doubts:
        click.echo(f"replayd: warning: {doubt}", err=True)
    click.echo(f"{told.name}: {'no faults' if not doubts else 'can be served, see the warnings'}")
    click.echo(f"  settings: {settings_text(config)}")
    for table, each in zip(config.table, tables, strict=True):
        click.echo(f"  {table.name}: {each}")
    click.echo(f"  {memory}")
    if limit:
        click.echo(f"  started from here it may have {size_text(limit)}, as a service no more than its MemoryMax")


@click.command("default-config")
def default_config() -> None:
    """Print a file of settings with every key, what it means, and its default.

    \b
    Examples:
      replayd default-config > replayd.toml
    """
    from replayd.config_text import default_text

    click.echo(default_text())


COMMANDS: tuple[click.Command, ...] = (check_config, default_config)
