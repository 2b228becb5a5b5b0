"""What `replayd serve` would be told besides its file: variables, those of a service among them, and its own options'.

For commands that look at settings without serving them, so that all of them see what it would. Imports nothing heavy
before one runs.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from replayd.cli_options import NotPermitted
from replayd.service_files import Service, read_variables, service_of

if TYPE_CHECKING:
    from replayd.config_faults import Fault
    from replayd.config_model import Config

NEED_STORE = ("strict", "allow_empty", "reset_limiter", "drop_removed_tables", "shrink_tables")
"""The options of `serve` that say how a store is opened, by parameter."""


@dataclass(frozen=True, slots=True)
class Served:
    """What `serve` would be told with this file."""

    file: str | None
    service: Service | None
    """Whose settings the file has, if a service's."""
    beside: str
    """The file of that service's variables, empty if there is none."""
    unread: str
    """Why these are not known; empty if they are."""
    environment: Mapping[str, str]
    options: Mapping[str, Any]
    """Of `read_config`: those that no one typed and a variable says."""
    misuses: list[Fault]
    """Values of variables that are none of the option's kind: `serve` ends with 64."""
    needing_store: list[str]
    """Variables that say how a store is opened."""

    def read(self) -> Config:
        """The settings. Raises ConfigError with all faults, misuses among them."""
        from replayd.config import read_config
        from replayd.config_faults import ConfigError

        faults: list[Fault] = []
        config: Config | None
        try:
            config = read_config(self.file, environment=self.environment, **self.options)
        except ConfigError as error:
            faults, config = error.faults, error.sound
        faults = [*self.misuses, *faults, *(self._misplaced() if config and config.store is None else ())]
        if faults or config is None:
            raise ConfigError(faults, config)
        return config

    def exit_code(self, faults: list[Fault]) -> int:
        """In which `serve` would end: it looks at its options first, then at settings, and then at both together."""
        return os.EX_USAGE if self.misuses or set(faults) <= {*self._misplaced()} else os.EX_CONFIG

    @property
    def name(self) -> str:
        """What has the settings: `replayd.toml`, `/etc/replayd/replayd.toml with /etc/default/replayd`."""
        if self.file is None:
            return "defaults and environment"
        return f"{self.file} with {self.beside}" if self.beside else self.file

    def _misplaced(self) -> list[Fault]:
        from replayd.config_faults import Fault

        what = "says how a store is opened, and there is none: `[store] path` (--data-dir) names one"
        return [Fault(what, place=variable) for variable in self.needing_store]


def served(context: click.Context, file: str | None) -> Served:
    """What `serve` would be told with this file, None for none, in the environment of this process or, if the file is a
    service's, with the variables of that over it."""
    from replayd.config import OPTIONS
    from replayd.config_faults import Fault

    environment, beside, unread = dict(os.environ), "", ""
    service = None if file is None else service_of(file)
    if service is not None:
        try:
            environment |= read_variables(service.variables)
            beside = str(service.variables)
        except FileNotFoundError:
            pass
        except OSError as error:
            unread = f"{service.variables}: {error.strerror}"
        except ValueError as error:
            unread = f"{service.variables}: {error}"
    options: dict[str, Any] = {}
    variables: dict[str, str] = {}
    misuses: list[Fault] = []
    needing: list[str] = []
    serve = _serve(context)
    with click.Context(serve, info_name="serve") as there:
        for option in serve.params:
            variable = str(option.envvar)
            # The file is another matter: its variable need not be right if another one is named.
            if option.name is None or option.name == "config_path" or not (text := environment.get(variable)):
                continue
            try:
                value = option.type_cast_value(there, option.type.split_envvar_value(text) if option.multiple else text)
            except NotPermitted:
                value = text  # Whether `serve` may is told by its user, not by this one.
            except click.BadParameter as error:
                misuses.append(Fault(error.message, f"serve {option.opts[0]}", variable))
                continue
            if option.name in NEED_STORE:
                needing += [variable] if value else []
            elif option.name in ("tables", *OPTIONS):
                options[option.name], variables[option.name] = value, variable
    if service is not None and service.store is not None:
        options["data_dir"], variables["data_dir"] = str(service.store), f"{service.unit}.service"
    return Served(file, service, beside, unread, environment, {**options, "variables": variables}, misuses, needing)


def _serve(context: click.Context) -> click.Command:
    root = context.find_root()
    assert isinstance(root.command, click.Group)
    serve = root.command.get_command(root, "serve")
    assert serve is not None
    return serve
