"""Lines of keys: every key that tomllib reads has one, and it is the line where the key stands."""

from __future__ import annotations

import random
import tomllib
from collections.abc import Iterator
from typing import Any

import pytest

from replayd.toml_lines import Path, key_lines, line_of


def paths(value: Any, path: Path = ()) -> Iterator[Path]:
    """All key paths of what tomllib returns."""
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in children:
        yield (*path, key)
        yield from paths(child, (*path, key))


TEXT = '''\
# a comment with = and [brackets]
title = "a # b"        # 2
"quoted key".'l.it' = { a = 1, "b c" = [1, 2] }

[server]               # 5
listen = """
x = 3
"""
ingest = \'\'\'
[no]\'\'\'
day = 1979-05-27 07:32:00Z
many = [               # 12
  1,
  # two
  { deep = "]" },      # 15
  [ "a,b",
    'c}' ],
]
a.b.c = -1_000.5e3     # 19

[[table]]              # 21
name = "one"
[table.limiter]
type = "min_size"

[[ table ]]            # 26
name = "two"
signature = [
  { path = ["x"], shape = [-1] },
  { path = ["y",
    "z"], shape = [] },
]
[[table.nested]]       # 33
k = true
[[table.nested]]       # 35
k = """ends in quotes"""""
last = "\\"escaped\\""
'''


def test_every_key_of_a_text_has_the_line_where_it_stands() -> None:
    lines = key_lines(TEXT)
    assert set(paths(tomllib.loads(TEXT))) == set(lines)
    for path, line in (
        (("title",), 2),
        (("quoted key", "l.it", "b c", 1), 3),
        (("server",), 5),
        (("server", "listen"), 6),
        (("server", "ingest"), 9),
        (("server", "day"), 11),
        (("server", "many", 1, "deep"), 15),
        (("server", "many", 2, 1), 17),
        (("server", "a", "b", "c"), 19),
        (("table", 0), 21),
        (("table", 0, "limiter"), 23),
        (("table", 0, "limiter", "type"), 24),
        (("table", 1), 26),
        (("table", 1, "signature", 1), 30),
        (("table", 1, "signature", 1, "path", 1), 31),
        (("table", 1, "nested", 1), 35),
        (("table", 1, "nested", 1, "last"), 37),
    ):
        assert lines[path] == line, path


def test_lines_are_the_same_whatever_ends_them() -> None:
    assert key_lines(TEXT.replace("\n", "\r\n")) == key_lines(TEXT)


def test_a_path_that_is_not_there_has_the_line_of_what_it_would_be_in() -> None:
    lines = key_lines("[server]\nseed = 1\n")
    assert line_of(lines, ("server", "lease")) == 1
    assert line_of(lines, ("server", "seed", 0, "x")) == 2
    assert line_of(lines, ("store", "path")) is None
    assert line_of(lines, ()) is None


def test_a_text_without_keys_has_none() -> None:
    assert key_lines("") == key_lines("\n# nothing\n") == {}


class Writer:
    """Writes a random text, and notes the line of each key as it does."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.text = ""
        self.expected: dict[Path, int] = {}
        for table in range(self.random.randrange(1, 5)):
            self.noise()
            self.note(("t",))
            self.note(("t", table))
            self.text += self.random.choice(["[[t]]", "[[ t ]]", '[["t"]]']) + self.random.choice(["\n", " # x = [\n"])
            for key in range(self.random.randrange(4)):
                self.noise()
                self.pair(("t", table), f"k{key}")
                self.text += "\n"

    def note(self, path: Path) -> None:
        self.expected.setdefault(path, self.text.count("\n") + 1)

    def noise(self) -> None:
        self.text += self.random.choice(["", "\n", "# a = 1\n", "  "])

    def pair(self, path: Path, key: str, depth: int = 0) -> None:
        self.note((*path, key))
        self.text += self.random.choice([key, f'"{key}"', f"'{key}'"]) + self.random.choice(["=", " = "])
        self.value((*path, key), depth)

    def value(self, path: Path, depth: int) -> None:
        kind = self.random.randrange(4 if depth < 3 else 2)
        if kind == 2:
            self.text += "["
            for position in range(self.random.randrange(4)):
                self.text += self.random.choice(["", "\n", " # ],\n"])
                self.note((*path, position))
                self.value((*path, position), depth + 1)
                self.text += ","
            self.text += self.random.choice(["]", "\n]"])
        elif kind == 3:
            self.text += "{"
            for position in range(self.random.randrange(3)):
                self.text += ", " if position else " "
                self.pair(path, f"i{position}", depth + 1)
            self.text += " }"
        else:
            self.text += self.random.choice(
                [
                    "1",
                    "-0.5",
                    "true",
                    '"a\\"]"',
                    "'#'",
                    '"""\n}\n"""',
                    "'''\n'\n'''",
                    "1979-05-27 07:32:00",
                    '""',
                    "inf",
                ]
            )


@pytest.mark.parametrize("seed", range(60))
def test_the_lines_of_any_text_are_those_where_its_keys_were_written(seed: int) -> None:
    writer = Writer(seed)
    assert set(paths(tomllib.loads(writer.text))) == set(writer.expected), writer.text
    assert key_lines(writer.text) == writer.expected, writer.text
