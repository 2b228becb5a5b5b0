"""Reading the configuration: a TOML file, the environment and the command line, each over the one before.

One model checks the whole, and all faults are told together. Owns how settings are written; what they are is the
business of `config_model`.

    [server]                                   [[table]]
    listen = "tcp://127.0.0.1:7077"            name = "replay"
    ingest = "tcp://127.0.0.1:7079"            sampler = { type = "prioritized", priority_exponent = 0.6 }
    lease = "60s"                              limiter = { type = "min_size", min_size_to_sample = 1000 }
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from types import MappingProxyType
from typing import Any

from replayd.addresses import FREE_PATH, INGEST_SUFFIX
from replayd.config_choices import LIMITERS
from replayd.config_environment import put_environment
from replayd.config_faults import ConfigError, Fault, Places, faults_of, key_text, unknown
from replayd.config_judge import judged
from replayd.config_model import SECTIONS, Config, ServerConfig
from replayd.table import Table

INGEST_PORT_DISTANCE = 2
HTTP_PORT_DISTANCES = (1, 3)
"""How far the other ports lie from the port of requests where only the latter is said."""

NESTING_MOST = 32
"""Brackets within each other: more than the options of any extension need, and what everything here can follow."""

_TOO_DEEP = f"brackets within brackets, more than {NESTING_MOST} deep"

DEFAULT_LISTEN = ServerConfig().listen


def read_config(
    path: str | None = None,
    *,
    environment: Mapping[str, str] = MappingProxyType({}),
    tables: Sequence[str] = (),
    listen: str | None = None,
    port: int | None = None,
    ingest_port: int | None = None,
    http: str | None = None,
    seed: int | None = None,
    max_bytes: str | None = None,
    insecure_public: bool = False,
    data_dir: str | None = None,
    journal: str | None = None,
    log_level: str | None = None,
    log_format: str | None = None,
    variables: Mapping[str, str] = MappingProxyType({}),
) -> Config:
    """Return the configuration in the TOML file at `path` (None: the defaults), with the variables of `environment`
    over it and the command line's settings on top.

    `tables` are `NAME[,key=value…]`, added to those of the file. `listen` may be a mere `HOST:PORT`. `port` replaces
    the port of whatever address is listened at. `http` is `HOST:PORT` or `off`, `data_dir` the path of the store.
    `variables` names, by parameter, the variable of each option that was not typed but has its value from there.
    Raises ConfigError with all faults found.
    """
    data, places = ({}, Places()) if path is None else _read_toml(path)
    places.elsewhere.update(put_environment(data, environment))
    before = deepcopy(data)
    origins = {key: places.of(key) for key in _keys_of(before)}
    problems: list[str] = []
    if tables:
        listed = data.setdefault("table", [])
        if isinstance(listed, list):
            listed.extend(_table_from_text(text, problems) for text in tables)
    server = data.setdefault("server", {})
    if isinstance(server, dict):
        _set_server(server, listen, port, ingest_port, seed, insecure_public)
        if max_bytes is not None:
            server["max_bytes"] = max_bytes
        _set_http(data.setdefault("http", {}), http, server)
    for key, value in (("path", data_dir), ("journal", journal)):
        if value is not None and isinstance(store := data.setdefault("store", {}), dict):
            store[key] = value
    for key, value in (("level", log_level), ("format", log_format)):
        if value is not None and isinstance(log := data.setdefault("log", {}), dict):
            log[key] = value
    typed = {"listen": listen, "port": port, "ingest_port": ingest_port, "http": http, "seed": seed}
    typed |= {"max_bytes": max_bytes, "insecure_public": insecure_public or None, "data_dir": data_dir}
    typed |= {"journal": journal, "log_level": log_level, "log_format": log_format}
    told = [name for name in OPTIONS if typed[name] is not None]
    # An address that nobody said follows from that of requests. Of that itself the port is no fault: it is a number.
    sources = {OPTIONS[name]: variables.get(name, "") for name in reversed(told)}
    listens = sources.get(OPTIONS["listen"], places.of(OPTIONS["listen"]))
    changed = set(_keys_of(data)) - {*_unchanged(before, data)}
    places.elsewhere.update({key: sources.get(key, listens) for key in changed})
    places.tables_elsewhere = variables.get("tables", "")
    _check_numbers(data, places)
    config, errors = judged(data)
    faults = [Fault(problem, place=places.tables_elsewhere) for problem in problems]
    faults += [fault for details in errors for fault in faults_of(details, data, places)]
    faults += _named_twice(data, places)
    if faults or config is None:
        raise ConfigError(faults, config)
    for name in told:
        origins[OPTIONS[name]] = variables.get(name, f"--{name.replace('_', '-')}")
    config.origins.update(origins)
    return config


OPTIONS = {
    "listen": ("server", "listen"),
    "port": ("server", "listen"),
    "ingest_port": ("server", "ingest"),
    "http": ("http", "listen"),
    "seed": ("server", "seed"),
    "max_bytes": ("server", "max_bytes"),
    "insecure_public": ("server", "insecure_public"),
    "data_dir": ("store", "path"),
    "journal": ("store", "journal"),
    "log_level": ("log", "level"),
    "log_format": ("log", "format"),
}
"""What each option of `serve` sets, by the parameter that it is here; `tables` are apart."""


def _named_twice(data: Mapping[str, Any], places: Places) -> list[Fault]:
    """Tables with the name of one before, whatever else is wrong with either."""
    tables = data.get("table")
    if not isinstance(tables, list):
        return []
    names = [table.get("name") if isinstance(table, dict) else None for table in tables]
    return [
        Fault(f"tables are named twice: {name!r}", place=places.of(("table", index, "name")))
        for index, name in enumerate(names)
        if isinstance(name, str) and name in names[:index]
    ]


def build_tables(config: Config) -> list[Table]:
    """Make the tables that the configuration describes, empty, in its order.

    Raises ConfigError for an extension that could be made when the settings were checked, and cannot any more.
    """
    try:
        return [table.build() for table in config.table]
    except ValueError as error:
        raise ConfigError([Fault(str(error))]) from error


# --- what people write ------------------------------------------------------------------------------------------------


def _read_toml(path: str) -> tuple[dict[str, Any], Places]:
    try:
        with open(path, "rb") as file:
            text = file.read().decode()
        data = tomllib.loads(text)
    except OSError as error:
        raise ConfigError([Fault(str(error.strerror), place=path)]) from None
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise ConfigError([Fault(f"the file is not TOML: {error}", place=f"{path}:{line}")]) from None
    except tomllib.TOMLDecodeError as error:
        told = re.search(r"at line (\d+)", str(error))
        line = int(told[1]) if told else text.count("\n") + 1
        raise ConfigError([Fault(f"the file is not TOML: {error}", place=f"{path}:{line}")]) from None
    except ValueError as error:
        # A number of thousands of digits.
        raise ConfigError([Fault(f"the file is not TOML: {error}", place=path)]) from None
    except RecursionError:
        raise ConfigError([Fault(_TOO_DEEP, place=path)]) from None
    if any(len(keys) > NESTING_MOST for keys, _ in _leaves((), data)):
        raise ConfigError([Fault(_TOO_DEEP, place=path)])
    tables = data.get("table")
    return data, Places(path, text, len(tables) if isinstance(tables, list) else 0)


def _check_numbers(data: Mapping[str, Any], places: Places) -> None:
    """Raise ConfigError for integers that TOML has not: they are more than 64 bits, which no setting is, and nothing
    that reckons with settings need expect them."""
    faults = [
        Fault("expected an integer of 64 bits", key_text(path, data), places.of(path))
        for path, value in _leaves((), data)
        if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63
    ]
    if faults:
        raise ConfigError(faults)


def _leaves(path: tuple[int | str, ...], value: Any) -> Iterator[tuple[tuple[int | str, ...], Any]]:
    """All values that have no parts, with the keys that lead there."""
    if value and isinstance(value, dict | list):
        for key, part in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _leaves((*path, key), part)
    else:
        yield path, value


def _keys_of(data: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Section and key of each setting outside of tables."""
    return [
        (section, key) for section in SECTIONS if isinstance(settings := data.get(section), dict) for key in settings
    ]


def _unchanged(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The keys that neither the command line has set nor follow from what it says."""
    return [
        (section, key)
        for section, key in _keys_of(before)
        # A NaN is the same one, and not equal to itself.
        if (was := before[section][key]) is (now := after[section][key]) or was == now
    ]


def _set_server(
    server: dict[str, Any],
    listen: str | None,
    port: int | None,
    ingest_port: int | None,
    seed: int | None,
    insecure_public: bool,
) -> None:
    if listen is not None:
        server["listen"] = listen if "://" in listen else f"tcp://{listen}"
    if port is not None:
        server["listen"] = _with_port(server.get("listen", ServerConfig().listen), port)
    if ingest_port is None and "ingest" not in server:
        if str(address := server.get("listen")).startswith("ipc://"):
            server["ingest"] = _path_after(str(address))
        else:
            ingest_port = _port_after(address, INGEST_PORT_DISTANCE)
    if ingest_port is not None:
        server["ingest"] = _with_port(server.get("ingest", ServerConfig().ingest), ingest_port)
    if seed is not None:
        server["seed"] = seed
    if insecure_public:
        server["insecure_public"] = True


def _set_http(section: Any, http: str | None, server: dict[str, Any]) -> None:
    """Settle where the status page is."""
    if not isinstance(section, dict):
        return
    if http is not None:
        section["listen"] = http
    if "listen" in section:
        return
    listen = server.get("listen", DEFAULT_LISTEN)
    ports = [_port_after(address, distance) for address in (listen, DEFAULT_LISTEN) for distance in HTTP_PORT_DISTANCES]
    # Who says where ingest is need not know of this one.
    port = next(port for port in ports if port == 0 or (port and not str(server.get("ingest")).endswith(f":{port}")))
    section["listen"] = f"127.0.0.1:{port}"


def _with_port(address: Any, port: int) -> Any:
    """The same address with another port; whatever has no port is replaced by the loopback address."""
    tcp = isinstance(address, str) and re.fullmatch(r"(tcp://.+):\d+", address)
    return f"{tcp[1] if tcp else 'tcp://127.0.0.1'}:{port}"


def _path_after(listen: str) -> str:
    """The path that goes with one listened at, so that whom the latter keeps out comes in by neither."""
    return listen if listen == FREE_PATH else f"{listen}{INGEST_SUFFIX}"


def _port_after(listen: Any, distance: int) -> int | None:
    """The port that goes with an address listened at; None, for the default one, where no port is that high."""
    tcp = re.fullmatch(r"tcp://.+:(\d{1,5})", listen) if isinstance(listen, str) else None
    port = int(tcp[1]) if tcp else -1
    if port == 0:
        return 0
    return port + distance if 0 < port <= 65535 - distance else None


_LIMITER_KEYS = tuple(
    dict.fromkeys(key for limiter in LIMITERS.values() for key in limiter.model_fields if key != "type")
)
_TABLE_KEYS = (
    *("preset", "sampler", "remover", "priority_exponent", "max_size", "max_times_sampled", "limiter"),
    *("max_bytes", "when_full"),
)


def _table_from_text(text: str, problems: list[str]) -> dict[str, Any]:
    """Make `NAME[,key=value…]` a table as in the file: a limiter's keys go into it, an exponent into the sampler."""
    name, *settings = text.split(",")
    table: dict[str, Any] = {"name": name}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals:
            problems.append(f"--table {name}: expected key=value, got {setting!r}")
        elif key not in _TABLE_KEYS + _LIMITER_KEYS:
            problems.append(f"--table {name}: {unknown(key, _TABLE_KEYS + _LIMITER_KEYS)}")
        elif key in table:
            problems.append(f"--table {name}: {key} is given twice")
        else:
            table[key] = _value(value) if key not in ("preset", "sampler", "remover", "limiter") else value
    if "priority_exponent" in table:
        exponent = table.pop("priority_exponent")
        if table.get("sampler") == "prioritized":
            table["sampler"] = {"type": "prioritized", "priority_exponent": exponent}
        else:
            problems.append(f"--table {name}: priority_exponent needs sampler=prioritized")
    of_limiter = {key: table.pop(key) for key in _LIMITER_KEYS if key in table}
    if of_limiter:
        limiter = table.pop("limiter", "min_size")
        strangers = [key for key in of_limiter if limiter in LIMITERS and key not in LIMITERS[limiter].model_fields]
        problems += [f"--table {name}: {_misplaced(key, table)}" for key in strangers]
        if not strangers:
            table["limiter"] = {"type": limiter, **of_limiter}
    return table


def _misplaced(key: str, table: dict[str, Any]) -> str:
    """What is said of a limiter's key where that limiter is not the table's."""
    if "preset" in table:
        return f"{key} is settled by preset={table['preset']}; leave it out"
    takers = [name for name, limiter in LIMITERS.items() if key in limiter.model_fields]
    return f"{key} needs limiter={' or limiter='.join(takers)}"


def _value(text: str) -> Any:
    """A number, a pair `lo:hi` of numbers, or else the text itself, for the model to refuse."""
    parts = text.split(":")
    if len(parts) == 2:
        return [_value(part) for part in parts]
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
