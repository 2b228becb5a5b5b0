"""The file to begin with: it can be read, it means the defaults, and it has every key with words of its own."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from replayd.config import read_config
from replayd.config_choices import LIMITERS, Section
from replayd.config_environment import variables
from replayd.config_model import SECTIONS, ColumnConfig, Config, ExtensionConfig, TableConfig
from replayd.config_text import default_text, toml_value, words_below


def made(text: str) -> str:
    """The text with every setting made."""
    return re.sub(r"^#(?! |$)", "", text, flags=re.MULTILINE)


def test_the_file_as_it_stands_means_the_defaults(tmp_path: Path) -> None:
    path = tmp_path / "replayd.toml"
    path.write_text(default_text())
    config = read_config(str(path))
    assert config == read_config()
    assert config.table == Config().table


def test_every_setting_of_the_file_can_be_made(tmp_path: Path) -> None:
    path = tmp_path / "replayd.toml"
    path.write_text(made(default_text()))
    config, defaults = read_config(str(path)), read_config()
    assert config.store is not None
    for section, model in SECTIONS.items():
        for key, field in model.model_fields.items():
            if not field.examples and section != "store":
                assert getattr(getattr(config, section), key) == getattr(getattr(defaults, section), key), key


def test_every_key_is_there_with_words_above_it() -> None:
    lines = made(default_text()).splitlines()
    data = tomllib.loads("\n".join(lines))
    for section, model in SECTIONS.items():
        assert set(data[section]) == set(model.model_fields)
    assert set(data["table"][0]) == set(TableConfig.model_fields) - {"preset"}
    keys = [number for number, line in enumerate(lines) if re.match(r"(# preset|\w+) = ", line)]
    assert len(keys) == sum(len(model.model_fields) for model in (*SECTIONS.values(), TableConfig))
    assert all(lines[number - 1].startswith("# ") for number in keys)


def test_every_variable_and_every_limiter_with_its_keys_is_named() -> None:
    text = default_text()
    assert all(f"\n# {name}\n" in text for name in variables())
    for name, model in LIMITERS.items():
        (line,) = re.findall(rf'^#     \{{ type = "{name}".*$', text, re.MULTILINE)
        assert all(key in line for key in model.model_fields)


@pytest.mark.parametrize("model", [Config, *SECTIONS.values(), TableConfig, ColumnConfig, ExtensionConfig])
def test_every_key_of_the_model_has_words(model: type[Section]) -> None:
    assert words_below(model).keys() == model.model_fields.keys()
    assert all(words_below(model).values())


@pytest.mark.parametrize("value", [True, -3, 1.5, 'a "quoted"\nü', [1, ["x"]], {"a": {"b": [False]}}, 10_000_000])
def test_a_value_is_written_as_it_is_read(value: object) -> None:
    assert tomllib.loads(f"x = {toml_value(value)}") == {"x": value}
