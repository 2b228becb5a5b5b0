"""Reading the settings again while the daemon runs, at SIGHUP: what can change live does, the rest is told of.

What has changed since they were last read is asked of the service as `replayd set` asks it; whatever somebody has set
live meanwhile stays as long as the file does not change there. A faulty file changes nothing. Owns which settings are
live; how they change is the service's business.
"""

from __future__ import annotations

import logging
import shlex
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from replayd.config_choices import PrioritizedSelector
from replayd.config_faults import ConfigError
from replayd.config_model import SECTIONS, Config, TableConfig
from replayd.forecast import memory_warnings
from replayd.messages import Set
from replayd.process import limit_bytes
from replayd.reception import Handler
from replayd.settings import setting_text

log = logging.getLogger("replayd")

NOBODY = ()
"""The peer whose requests are the daemon's own: nothing is sent to it."""

_LIMITER = ("samples_per_insert", "min_size_to_sample", "min_diff", "max_diff")
_LIVE_KEYS = ("max_size", "max_times_sampled", "max_bytes", "when_full")
"""Keys of a table that are settings of the same name."""


class Reloader:
    """Compares what `read` returns, from `file` and what is said besides, with what it returned before; `running` is
    what the daemon was started with."""

    def __init__(self, read: Callable[[], Config], running: Config, file: Path) -> None:
        self._check = f"replayd check-config {shlex.quote(str(file.absolute()))}"
        self._read = read
        self._running = running
        self._level = running.log.level
        self._settings = {table.name: live_settings(table) for table in running.table}

    def __call__(self, service: Handler, now: float) -> None:
        """Read the settings, and change what can change."""
        config = self._readable()
        if config is None:
            return
        changes = [*self._change_log(config), *self._change_tables(config, service, now)]
        if not changes:
            log.info("settings are read again: none has changed that can change while the daemon runs")
        for difference in restart_differences(self._running, config):
            log.warning("%s: that needs a restart", difference)

    def _readable(self) -> Config | None:
        with warnings.catch_warnings(record=True) as doubts:
            warnings.simplefilter("always")
            try:
                config = self._read()
            except ConfigError as error:
                log.error(
                    "settings stay as they are, for what was read again is faulty; mend it until `%s` is content:",
                    self._check,
                )
                for problem in error.problems:
                    log.error("  %s", problem)
                return None
            except Exception:
                # Extensions are made while settings are checked, and they are foreign code.
                log.exception("settings stay as they are, for they cannot be read again: mend what raises")
                return None
        for doubt in (*dict.fromkeys(str(doubt.message) for doubt in doubts), *memory_warnings(config, limit_bytes())):
            log.warning("%s", doubt)
        return config

    def _change_log(self, config: Config) -> Iterator[str]:
        if config.log.level != self._level:
            self._level = config.log.level
            logging.getLogger().setLevel(self._level.upper())
            log.log(logging.getLogger().level, "log.level is %s now", self._level)
            yield "log.level"

    def _change_tables(self, config: Config, service: Handler, now: float) -> Iterator[str]:
        for table in config.table:
            if table.name not in self._settings:
                continue
            wanted, before = live_settings(table), self._settings[table.name]
            changes = {name: value for name, value in wanted.items() if name in before and before[name] != value}
            if not changes:
                continue
            yield table.name
            error = service.handle(NOBODY, "set", Set(0, table.name, changes), now)
            if error is None:
                self._settings[table.name] = wanted
            else:
                log.error("table %s keeps its settings: %s; mend the file, and HUP", table.name, error.message)


def live_settings(table: TableConfig) -> dict[str, Any]:
    """What `replayd set` can change of this table, each as it would have to be given."""
    limiter = table.limiter.build()
    settings = {key: getattr(table, key) for key in _LIVE_KEYS if key in TableConfig.model_fields}
    settings.update((name, getattr(limiter, name)) for name in _LIMITER)
    if isinstance(table.sampler, PrioritizedSelector):
        settings["priority_exponent"] = table.sampler.priority_exponent
    return settings


def restart_differences(running: Config, wanted: Config) -> Iterator[str]:
    """A text for each difference that only a restart makes."""
    for section, model in SECTIONS.items():
        old, new = getattr(running, section), getattr(wanted, section)
        if old is None or new is None:
            if old is not new:
                yield f"[{section}] is {'new' if old is None else 'gone'}"
            continue
        for key in model.model_fields:
            if (section, key) != ("log", "level") and getattr(old, key) != getattr(new, key):
                yield f"{section}.{key} is {_text(key, old)}, and {_text(key, new)} in what was read again"
    tables = {table.name: table for table in running.table}
    for table in wanted.table:
        if table.name not in tables:
            yield f"table {table.name!r} is new"
            continue
        before = tables.pop(table.name)
        for key in TableConfig.model_fields:
            if key not in (*_LIVE_KEYS, "preset", "limiter") and _fixed(before, key) != _fixed(table, key):
                yield f"table {table.name!r}: {key} is another"
    for name in tables:
        yield f"table {name!r} is gone"


def _fixed(table: TableConfig, key: str) -> Any:
    """The value of a key as far as it cannot change live: of a prioritized sampler the exponent can."""
    value = getattr(table, key)
    return value.type if key == "sampler" else value


def _text(key: str, section: Any) -> str:
    value = getattr(section, key)
    return setting_text(key, None) if value is None else repr(value)
