"""Judging settings whole: what a fault hides is looked for in what is sound without it.

The model does not look at how settings go together while one of them is faulty. So what is faulty is replaced by
something beyond reproach, and the rest is judged again, until nothing new is found. Owns these replacements; knows
neither words nor places.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from copy import deepcopy
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from replayd.config_model import Config

_SAFE: Mapping[tuple[str, str], Any] = {
    # Port 0 is nobody else's, and loopback nobody else can reach.
    ("server", "listen"): "tcp://127.0.0.1:0",
    ("server", "ingest"): "",
    ("server", "insecure_public"): True,
    ("http", "listen"): "off",
    # Somebody wanted keys and a store, wherever.
    ("access", "keys"): ".",
    ("store", "path"): ".",
    # Whatever else is said of a table is met by this size.
    ("table", "max_size"): 10**15,
}
"""Values that break no rule about several settings, where the default might."""


def judged(data: Mapping[str, Any]) -> tuple[Config | None, list[ErrorDetails]]:
    """The settings, and every error that is to be found in them.

    With errors the settings are those without what is faulty, and without the tables in which anything is; None if
    even these are not to be had.
    """
    rest = deepcopy(dict(data))
    found: dict[tuple[Any, ...], ErrorDetails] = {}
    faulty: set[int] = set()
    with warnings.catch_warnings():
        while True:
            try:
                config = Config.model_validate(rest)
            except ValidationError as error:
                errors = {(each["loc"], each["type"], each["msg"]): each for each in error.errors()}
                if errors.keys() <= found.keys():
                    return None, [*found.values()]
                for details in [each for identity, each in errors.items() if identity not in found]:
                    _replace(rest, details["loc"])
                    faulty |= {place for place in details["loc"][1:2] if isinstance(place, int)}
                found |= errors
                # What is doubtful has been said, and replacements are not to be doubted.
                warnings.simplefilter("ignore")
            else:
                sound = [table for index, table in enumerate(config.table) if index not in faulty]
                return (config.model_copy(update={"table": sound}) if found else config), [*found.values()]


def _replace(data: dict[str, Any], location: tuple[int | str, ...]) -> None:
    """Put something sound in the place of what is faulty: a key, or the whole that its keys do not make."""
    match location:
        case ("table",):
            del data["table"]
        case ("table", int(index)):
            # Others may speak of it.
            name = entry.get("name") if isinstance(entry := data["table"][index], dict) else None
            data["table"][index] = {"name": name} if isinstance(name, str) else _named(index)
        case ("table", int(index), str(key), *_):
            _put(data["table"][index], "table", key, _named(index).get(key))
        case ("server",) if isinstance(data["server"], dict):
            # Its keys are sound, and requests and ingest at one place.
            data["server"]["ingest"] = ""
        case (str(section),) if section in Config.model_fields:
            data[section] = {key: value for (its, key), value in _SAFE.items() if its == section}
        case (str(section), str(key), *_) if section in Config.model_fields:
            _put(data[section], section, key, None)
        case (str(unknown), *_):
            data.pop(unknown, None)
        case ():
            # All parts are sound, and do not go together: of each what the others have no part in.
            for table in data.get("table", ()):
                table.pop("extensions", None)
            for (section, key), value in _SAFE.items():
                if section in ("server", "http"):
                    data.setdefault(section, {})[key] = value


def _put(settings: dict[str, Any], section: str, key: str, value: Any) -> None:
    settings.pop(key, None)
    if (value := _SAFE.get((section, key), value)) is not None:
        settings[key] = value


def _named(index: int) -> dict[str, Any]:
    """A table that is sound, with a name of its own."""
    return {"name": f"table {index + 1}"}
