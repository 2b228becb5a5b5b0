"""Where in a TOML text each key is defined, which tomllib does not tell.

Reads only text that tomllib has accepted, so it need not judge: it walks over headers, keys and values, and notes the
line of each. Must not know what the keys mean.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

Path = tuple[str | int, ...]
"""A key path: names of tables and keys, positions in arrays."""

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_BASIC = re.compile(r'"(?:[^"\\]|\\.)*"')
_LITERAL = re.compile(r"'[^']*'")
_LONG = {'"""': re.compile(r'"""(?:[^\\]|\\.)*?"{3,5}', re.DOTALL), "'''": re.compile(r"'''.*?'{3,5}", re.DOTALL)}
_SCALAR = re.compile(r"[^\s,\]}#][^,\]}#\n]*")
_BLANK = re.compile(r"[ \t]*")
_BLANK_LINES = re.compile(r"(?:[ \t\r\n]+|#[^\n]*)*")


def key_lines(text: str) -> dict[Path, int]:
    """The line, from 1 on, where each key path of this text first stands: of tables, keys and elements of arrays."""
    # So does tomllib.
    return _Scanner(text.replace("\r\n", "\n")).scanned()


def line_of(lines: dict[Path, int], path: Sequence[str | int]) -> int | None:
    """The line of the longest beginning of this path that has one; None if not even its first part has."""
    for length in range(len(path), 0, -1):
        if (line := lines.get(tuple(path[:length]))) is not None:
            return line
    return None


class _Scanner:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._line = 1
        self._counted_to = 0
        self._lines: dict[Path, int] = {}
        self._lengths: dict[Path, int] = {}
        """Of arrays of tables: how many there are so far."""

    def scanned(self) -> dict[Path, int]:
        table: Path = ()
        self._skip(_BLANK_LINES)
        while self._at < len(self._text):
            if self._peek("[["):
                table = self._header("[[", "]]", is_array=True)
            elif self._peek("["):
                table = self._header("[", "]", is_array=False)
            else:
                self._pair(table)
            self._skip(_BLANK_LINES)
        return self._lines

    # --- what stands on lines of its own ------------------------------------------------------------------------------

    def _header(self, opening: str, closing: str, *, is_array: bool) -> Path:
        line = self._now()
        self._at += len(opening)
        *parents, last = self._key()
        self._at += len(closing)
        path: Path = ()
        for parent in parents:
            path = self._entered((*path, parent), line)
        path = (*path, last)
        self._note(path, line)
        if is_array:
            self._lengths[path] = self._lengths.get(path, 0) + 1
            path = (*path, self._lengths[path] - 1)
            self._note(path, line)
        return path

    def _entered(self, path: Path, line: int) -> Path:
        """A table that a dotted header goes through: of an array of tables it is the last one."""
        self._note(path, line)
        return (*path, self._lengths[path] - 1) if path in self._lengths else path

    def _pair(self, table: Path) -> None:
        line = self._now()
        path = table
        for part in self._key():
            path = (*path, part)
            self._note(path, line)
        self._at += 1  # The equals sign.
        self._skip(_BLANK)
        self._value(path)

    def _key(self) -> list[str]:
        """A key, in parts where it is dotted; leaves the place after it and after blanks."""
        parts = []
        while True:
            self._skip(_BLANK)
            start = self._at
            if self._peek('"'):
                self._skip(_BASIC)
                parts.append(_unescaped(self._text[start + 1 : self._at - 1]))
            elif self._peek("'"):
                self._skip(_LITERAL)
                parts.append(self._text[start + 1 : self._at - 1])
            else:
                self._skip(_BARE)
                parts.append(self._text[start : self._at])
            self._skip(_BLANK)
            if not self._peek("."):
                return parts
            self._at += 1

    # --- values -------------------------------------------------------------------------------------------------------

    def _value(self, path: Path) -> None:
        for quotes, pattern in _LONG.items():
            if self._peek(quotes):
                self._skip(pattern)
                return
        if self._peek("["):
            self._array(path)
        elif self._peek("{"):
            self._inline_table(path)
        else:
            self._skip(_BASIC if self._peek('"') else _LITERAL if self._peek("'") else _SCALAR)

    def _array(self, path: Path) -> None:
        self._at += 1
        self._skip(_BLANK_LINES)
        position = 0
        while not self._peek("]"):
            self._note((*path, position), self._now())
            self._value((*path, position))
            self._skip_comma()
            position += 1
        self._at += 1

    def _inline_table(self, path: Path) -> None:
        self._at += 1
        self._skip(_BLANK_LINES)
        while not self._peek("}"):
            self._pair(path)
            self._skip_comma()
        self._at += 1

    def _skip_comma(self) -> None:
        self._skip(_BLANK_LINES)
        if self._peek(","):
            self._at += 1
        self._skip(_BLANK_LINES)

    # --- places -------------------------------------------------------------------------------------------------------

    def _peek(self, text: str) -> bool:
        return self._text.startswith(text, self._at)

    def _skip(self, pattern: re.Pattern[str]) -> None:
        match = pattern.match(self._text, self._at)
        assert match is not None, f"line {self._now()} is not TOML, and tomllib took it"
        self._at = match.end()

    def _now(self) -> int:
        """The line of the place where the scanner is."""
        self._line += self._text.count("\n", self._counted_to, self._at)
        self._counted_to = self._at
        return self._line

    def _note(self, path: Path, line: int) -> None:
        self._lines.setdefault(path, line)


def _unescaped(text: str) -> str:
    """A quoted key as tomllib reads it; hardly any has an escape."""
    if "\\" not in text:
        return text
    import tomllib

    key: str = tomllib.loads(f'key = "{text}"')["key"]
    return key
