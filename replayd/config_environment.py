"""Settings in the environment: `[server] listen` is REPLAYD_SERVER_LISTEN, and so on for each key of each section.

They win over the file, and options of the command line win over them. Tables have no such variables: their number is
not settled, and `serve --table`, which is REPLAYD_SERVE_TABLE, adds some. Owns the names and how text becomes a value.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, get_args

from pydantic import BeforeValidator

from replayd.config_model import SECTIONS
from replayd.toml_lines import Path


def variables() -> dict[str, tuple[str, str]]:
    """The section and key of each variable."""
    return {
        f"REPLAYD_{section}_{key}".upper(): (section, key)
        for section, model in SECTIONS.items()
        for key in model.model_fields
    }


def put_environment(data: dict[str, Any], environment: Mapping[str, str]) -> dict[Path, str]:
    """Put the variables' values over those of the file; which variable each key has its value from.

    A variable that looks like one of ours and is none is warned of, and not refused: others put some there, Kubernetes
    after its services.
    """
    known = variables()
    taken: dict[Path, str] = {}
    for name, text in environment.items():
        if name in known:
            section, key = known[name]
            if isinstance(settings := data.setdefault(section, {}), dict):
                settings[key] = _value(section, key, text)
                taken[section, key] = name
        elif name.startswith(tuple(f"REPLAYD_{section.upper()}_" for section in SECTIONS)):
            near = get_close_matches(name, known, n=1)
            if near:
                warnings.warn(f"{name} in the environment is no setting; did you mean {near[0]}?", stacklevel=2)
    return taken


def _value(section: str, key: str, text: str) -> Any:
    """The text as what the key takes, or as it is, for the model to refuse."""
    field = SECTIONS[section].model_fields[key]
    kinds = get_args(field.annotation) or (field.annotation,)
    if bool in kinds:
        return {"true": True, "false": False, "yes": True, "no": False, "1": True, "0": False}.get(text.lower(), text)
    if list in kinds or getattr(field.annotation, "__origin__", None) is list:
        return text.split()
    if any(isinstance(each, BeforeValidator) for each in field.metadata):
        # It has a unit, "60s": the model reads the text itself. A mere number may be meant as such.
        return int(text) if re.fullmatch(r"\d+", text) else text
    for kind in (int, float):
        if kind in kinds:
            try:
                return kind(text)
            except ValueError:
                continue
    return text
