"""What is told of settings that are not the defaults: all that somebody made, and where; nothing that nobody did."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pytest

from replayd.cli import main
from replayd.config import read_config
from replayd.config_differences import differences, settings_text
from replayd.config_environment import variables

MADE = {
    ("server", "listen"): '"tcp://127.0.0.1:9000"',
    ("server", "ingest"): '"tcp://127.0.0.1:9001"',
    ("server", "seed"): "3",
    ("server", "max_bytes"): '"1GiB"',
    ("server", "lease"): '"5s"',
    ("server", "insecure_public"): "true",
    ("http", "listen"): '"off"',
    ("log", "level"): '"debug"',
    ("log", "format"): '"json"',
    ("access", "keys"): '"keys"',
    ("store", "path"): '"store"',
    ("store", "checkpoint_interval"): '"1s"',
    ("store", "checkpoint_on_stop"): "false",
    ("store", "journal"): '"sync"',
    ("store", "journal_interval"): '"5s"',
    ("store", "journal_max_bytes"): '"1MiB"',
}
"""Of every key a value, as the file has it, that is not the default."""

OPTIONS: dict[str, Any] = {
    "listen": "127.0.0.1:9000",
    "port": 9000,
    "ingest_port": 9001,
    "http": "off",
    "seed": 3,
    "max_bytes": "1GiB",
    "insecure_public": True,
    "data_dir": "store",
    "journal": "sync",
    "log_level": "debug",
    "log_format": "json",
}
OF_NO_SETTING = {"config_path", "tables", "endpoint_file", "strict", "allow_empty", "reset_limiter"}
OF_NO_SETTING |= {"drop_removed_tables", "shrink_tables"}

pytestmark = pytest.mark.filterwarnings("ignore:insecure_public changes nothing")


def test_every_setting_is_looked_at() -> None:
    assert MADE.keys() == set(variables().values())
    assert OPTIONS.keys() | OF_NO_SETTING == {option.name for option in main.commands["serve"].params}


@pytest.mark.parametrize("key", MADE, ids=".".join)
def test_a_setting_of_the_file_is_told_with_its_line(tmp_path: Path, key: tuple[str, str]) -> None:
    path = tmp_path / "replayd.toml"
    # Without a path there is no store that anything could be said of.
    also = 'path = "store"\n' if key[0] == "store" and key[1] != "path" else ""
    path.write_text(f"\n[{key[0]}]\n{key[1]} = {MADE[key]}\n{also}")
    told = {name: where for name, _, where in differences(read_config(str(path)))}
    assert told.pop(".".join(key)) == f"{path}:3"
    assert told == ({"store.path": f"{path}:4"} if also else {})


@pytest.mark.parametrize(("variable", "key"), variables().items())
def test_a_setting_of_the_environment_is_told_with_its_variable(variable: str, key: tuple[str, str]) -> None:
    environment = {variable: MADE[key].strip('"'), **({"REPLAYD_STORE_PATH": "store"} if key[0] == "store" else {})}
    environment[variable] = MADE[key].strip('"')
    told = {name: where for name, _, where in differences(read_config(environment=environment))}
    assert told[".".join(key)] == variable
    assert told.keys() == {".".join(key)} | ({"store.path"} if key[0] == "store" else set())


@pytest.mark.parametrize("name", OPTIONS)
def test_a_setting_of_an_option_is_told_with_its_name_or_its_variable(name: str) -> None:
    (option,) = [option for option in main.commands["serve"].params if option.name == name]
    assert isinstance(option, click.Option)
    also = {"data_dir": "store"} if name == "journal" else {}
    settings = {name: OPTIONS[name], **also}
    first, *others = [where for *_, where in differences(read_config(**settings)) if where != "--data-dir" or not also]
    assert (first, others) == (option.opts[0], [])
    told = [where for *_, where in differences(read_config(**settings, variables={name: "REPLAYD_SERVE_X"}))]
    assert "REPLAYD_SERVE_X" in told


def test_who_says_it_last_is_who_is_told(tmp_path: Path) -> None:
    path = tmp_path / "replayd.toml"
    path.write_text('[server]\nlisten = "tcp://127.0.0.1:9000"\n[log]\nlevel = "debug"\n')
    environment = {"REPLAYD_LOG_LEVEL": "error", "REPLAYD_SERVER_LISTEN": "tcp://127.0.0.1:9100"}
    assert [*differences(read_config(str(path), environment=environment, port=9200))] == [
        ("server.listen", "tcp://127.0.0.1:9200", "--port"),
        ("log.level", "error", "REPLAYD_LOG_LEVEL"),
    ]


def test_the_default_is_no_difference_whoever_says_it(tmp_path: Path) -> None:
    path = tmp_path / "replayd.toml"
    path.write_text('[server]\nlisten = "tcp://127.0.0.1:7077"\nlease = "60s"\n[http]\nlisten = "127.0.0.1:7078"\n')
    config = read_config(str(path), environment={"REPLAYD_LOG_LEVEL": "info"}, port=7077)
    assert settings_text(config) == "none besides the defaults"
