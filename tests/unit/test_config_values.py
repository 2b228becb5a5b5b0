"""Whatever value of TOML stands at whatever key, it is taken or told of: nothing else ever comes out of a file."""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from replayd.access import ROLES, AccessError, Holder, read_allowed, write_allowed
from replayd.config import build_tables, read_config
from replayd.config_choices import CHOICES
from replayd.config_faults import ConfigError
from replayd.config_model import SECTIONS, ColumnConfig, ExtensionConfig, TableConfig

VALUES = {
    "text": "'x'",
    "no text": "''",
    "NUL": r'"\u0000"',
    "astral": "'\U0001f600'",
    "size": "'1e400GiB'",
    "digits of a size": f"'{'9' * 400}GiB'",
    "time": "'60s'",
    "minus one": "-1",
    "zero": "0",
    "largest": str((1 << 63) - 1),
    "65 bits": str(1 << 64),
    "400 digits": "1" * 400,
    "5000 digits": "1" * 5000,
    "half": "0.5",
    "large float": "1e300",
    "infinity": "-inf",
    "NaN": "nan",
    "bool": "true",
    "moment": "2026-01-01T00:00:00Z",
    "day": "2026-01-01",
    "hour": "12:00:00",
    "no list": "[]",
    "list of text": "['actor']",
    "list in list": "[['actor']]",
    "list of all sorts": "[1, 'a', {a = 1}, [2026-01-01]]",
    "pair of 400 digits": f"[{'1' * 400}, 2]",
    "no table": "{}",
    "table in a list": "[{}]",
    "type that is a list": "{type = ['x']}",
    "type that is a day": "{type = 2026-01-01}",
    "nested table": "{a = {b = [1]}}",
    "100 brackets": "[" * 100 + "]" * 100,
    "450 brackets": "[" * 450 + "]" * 450,
    "3000 brackets": "[" * 3000 + "]" * 3000,
}

SOUND = {
    "min_size_to_sample": "1",
    "samples_per_insert": "1.0",
    "error_buffer": "10.0",
    "size": "3",
    "priority_exponent": "0.5",
    "path": "['a']",
    "dtype": "'int8'",
    "shape": "[1]",
    "type": "'priority_diffusion'",
    "options": "{}",
}
"""What else an inline table needs."""


def inline(settings: dict[str, str]) -> str:
    return "{" + ", ".join(f"{key} = {value}" for key, value in settings.items()) + "}"


def files(value: str) -> Iterator[tuple[str, str]]:
    """A file for each key there is with this value there, and what its fault must name."""
    for section, model in SECTIONS.items():
        yield section, f"{section} = {value}"
        for key in [*model.model_fields, "stranger"]:
            needed = {"store": "path = 'p'", "access": "keys = 'k'"}.get(section, "")
            needed = "" if needed.startswith(f"{key} ") else needed
            yield f"{section}.{key}", f"[{section}]\n{needed}\n{key} = {value}"
    yield "table", f"table = {value}"
    yield "table", f"table = [{value}]"
    for key in [*TableConfig.model_fields, "stranger"]:
        yield "table", "[[table]]\n" + ("" if key == "name" else "name = 't'\n") + f"{key} = {value}"
    table = "[[table]]\nname = 't'\n"
    for choice, model in CHOICES.items():
        place = "sampler" if choice == "prioritized" else "limiter"
        sound = {key: SOUND[key] for key in model.model_fields if key in SOUND} | {"type": f"'{choice}'"}
        for key in [*model.model_fields, "stranger"]:
            yield place, f"{table}{place} = {inline(sound | {key: value})}"
    for place, part in (("signature", ColumnConfig), ("extensions", ExtensionConfig)):
        sound = {key: SOUND[key] for key in part.model_fields}
        for key in [*sound, "stranger"]:
            yield place, f"{table}{place} = [{inline(sound | {key: value})}]"
    for key in ("decay", "distance", "stranger"):
        options = inline({key: value})
        yield "extensions", f"{table}extensions = [{inline({'type': SOUND['type'], 'options': options})}]"


WHOLE = ("the file is not TOML", "brackets within brackets")
"""Faults of a file that name no key."""


def told_of(path: Path) -> str:
    """What is said of the configuration in this file; empty: it is taken."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            build_tables(read_config(str(path)))
        except ConfigError as error:
            return str(error)
    return ""


@pytest.mark.parametrize("value", VALUES.values(), ids=[name.replace(" ", "_") for name in VALUES])
def test_any_value_at_any_key_of_the_configuration_is_taken_or_told_of(value: str, tmp_path: Path) -> None:
    path = tmp_path / "replayd.toml"
    told = 0
    # Every key meets a third of the values, and every value a third of the keys.
    first = [*VALUES.values()].index(value) % 3
    for named, text in list(files(value))[first::3]:
        path.write_text(text)
        said = told_of(path)
        told += bool(said)
        if said:
            assert str(path) in said
        if said and not any(text in said for text in WHOLE):
            assert named.partition(".")[0] in said
            assert "stranger" in said or "stranger" not in text
    assert told > 5


KEY = "rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7"


@pytest.mark.parametrize("value", VALUES.values(), ids=[name.replace(" ", "_") for name in VALUES])
def test_any_value_at_any_key_of_the_allow_list_is_taken_or_told_of(value: str, tmp_path: Path) -> None:
    path = tmp_path / "allowed.toml"
    holder = Holder("actor", KEY, ("actor",))
    for text in (
        f"actor = {value}",
        f"[actor]\nkey = {value}\nroles = ['actor']",
        f"[actor]\nkey = '{KEY}'\nroles = {value}",
        f"[actor]\nkey = '{KEY}'\nroles = ['learner', {value}]",
        f"[actor]\nkey = '{KEY}'\nroles = ['actor']\nstranger = {value}",
        f"[[actor]]\nkey = {value}",
        f"[actor.7]\nkey = {value}",
    ):
        path.write_text(text)
        is_taken = text == f"[actor]\nkey = '{KEY}'\nroles = ['actor']"
        with nullcontext() if is_taken else pytest.raises(AccessError) as caught:
            assert read_allowed(path) == {KEY: holder}
        if caught is not None:
            assert str(path) in str(caught.value)
            assert "[actor]" in str(caught.value) or len(value) > 800


def test_what_was_written_of_holders_is_read_again_whatever_their_names(tmp_path: Path) -> None:
    rng = random.Random(7)
    alphabet = "abc.- '\"\\#[]=\t\x7fé\U0001f600\u2028"
    names = ["actor.7", "", "a]b", *("".join(rng.choices(alphabet, k=rng.randrange(1, 9))) for _ in range(200))]
    path = tmp_path / "allowed.toml"
    holders = {}
    for n, name in enumerate(dict.fromkeys(names)):
        key = f"{n:040}"
        holders[key] = Holder(name, key, (rng.choice([*ROLES]),))
    write_allowed(path, holders)
    assert read_allowed(path) == holders
