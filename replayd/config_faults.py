"""What is said of a faulty configuration: a line for each fault, with its place, its key, and what was expected.

Owns the words, and where what somebody wrote stands: in a line of the file, in a variable, on the command line.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from pydantic_core import ErrorDetails

from replayd.config_choices import CHOICES, PlainSelector, Section
from replayd.config_model import FAULTS_OF_THE_WHOLE, SECTIONS, ColumnConfig, Config, ExtensionConfig, TableConfig
from replayd.toml_lines import Path, key_lines, line_of


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault. `str()` tells it."""

    what: str
    """What was expected, and what was found."""
    key: str = ""
    """`server.listen`, `table 'replay': limiter.size`; empty: it concerns the whole."""
    place: str = ""
    """`FILE:LINE`, `FILE` or the name of a variable; empty: the command line."""

    def __str__(self) -> str:
        return ": ".join(part for part in (self.place, self.key, self.what) if part)


class ConfigError(Exception):
    """The configuration has faults, at least one. `sound`: the settings without all that is faulty, to be judged, not
    served; None if nothing is known of them."""

    def __init__(self, faults: Sequence[Fault], sound: Config | None = None) -> None:
        self.faults = sorted(faults, key=_place)
        self.sound = sound
        super().__init__("\n".join(self.problems))

    @property
    def problems(self) -> list[str]:
        """A line for each fault."""
        return [str(fault) for fault in self.faults]


@dataclass(slots=True)
class Places:
    """Where settings were written. `elsewhere` has those that are not the file's: the variable, empty for a flag; and
    so has `tables_elsewhere` of the tables beyond those of the file."""

    file: str | None = None
    text: str = ""
    tables_of_file: int = 0
    elsewhere: dict[Path, str] = field(default_factory=dict)
    tables_elsewhere: str = ""

    def of(self, path: Path) -> str:
        """The place of this key."""
        if path[:2] in self.elsewhere:
            return self.elsewhere[path[:2]]
        match path:
            case ("table", int(index), *_) if index >= self.tables_of_file:
                return self.tables_elsewhere
        if self.file is None:
            return ""
        line = line_of(key_lines(self.text), path)
        return self.file if line is None else f"{self.file}:{line}"


def _place(fault: Fault) -> tuple[str, int]:
    """Where it stands: file after file, line after line, and in the order found where there is no line."""
    file, _, line = fault.place.rpartition(":")
    return (file, int(line)) if line.isdecimal() else (fault.place, 0)


def faults_of(details: ErrorDetails, data: Mapping[str, Any], places: Places) -> list[Fault]:
    """What the model found wrong with `data`, in the words of whoever wrote that."""
    if details["type"] == FAULTS_OF_THE_WHOLE:
        return [Fault(text, place=places.of(())) for text in details["ctx"]["faults"]]
    return [_fault_of(details, data, places)]


def _fault_of(details: ErrorDetails, data: Mapping[str, Any], places: Places) -> Fault:
    location = details["loc"]
    path = _written(location)
    place = places.of(path)
    *parents, last = location or ("",)
    key, parent = key_text(path, data), key_text(_written(tuple(parents)), data)
    found = details["input"]
    match details["type"]:
        case "extra_forbidden":
            return Fault(unknown(str(last), sorted(_section(tuple(parents)).model_fields)), parent, place)
        case "missing":
            return Fault(f"{last} is missing", parent, place)
        case "union_tag_invalid":
            known = [tag.strip("' ") for tag in details["ctx"]["expected_tags"].split(",")]
            return Fault(unknown(details["ctx"]["tag"], known, "type"), key, place)
        case "union_tag_not_found" | "model_attributes_type":
            return Fault(f"expected a name, or a table with a `type`, got {found!r}", key, place)
        case "model_type" | "dict_type":
            return Fault(f"expected a table of settings, got {found!r}", key, place)
        case "value_error":
            return Fault(details["msg"].removeprefix("Value error, "), key, place)
    expected = details["msg"].replace("Input should be greater", "Input should be a value greater")
    expected = expected.replace("Input should be less", "Input should be a value less")
    return Fault(f"{expected.replace('Input should be', 'expected')}, got {found!r}", key, place)


def _written(location: Path) -> Path:
    """The key path as the file has it: the model also names the type of a selector or limiter."""
    match location:
        case ("table", int(), "sampler" | "remover" | "limiter", _, *_):
            return (*location[:3], *location[4:])
    return location


def key_text(path: Path, data: Mapping[str, Any]) -> str:
    """`server.listen`, or `table 'replay': limiter.size`."""
    match path:
        case ("table", int(index), *rest):
            entry = data["table"][index]
            name = entry.get("name", index + 1) if isinstance(entry, dict) else index + 1
            return f"table {name!r}" + (f": {'.'.join(map(str, rest))}" if rest else "")
    return ".".join(map(str, path))


def _section(location: Path) -> type[Section]:
    """The model behind a place of the file, which knows the keys there."""
    match location:
        case ():
            return Config
        case (str(section),):
            return SECTIONS[section]
        case ("table", int()):
            return TableConfig
        case ("table", int(), "signature", int()):
            return ColumnConfig
        case ("table", int(), "extensions", int()):
            return ExtensionConfig
        case ("table", int(), _, str(tag)):
            return CHOICES.get(tag, PlainSelector)
    raise AssertionError(f"no section at {location}")


def unknown(word: str, known: Sequence[str], what: str = "key") -> str:
    """That nothing is called so, and what is meant perhaps."""
    near = get_close_matches(word, known, n=1)
    return f"unknown {what} {word!r}; " + (f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}")
