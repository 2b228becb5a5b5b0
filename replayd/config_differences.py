"""Which settings are not the defaults, and who said so. Owns the words; reads nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from replayd.config_model import SECTIONS, Config


def differences(config: Config) -> Iterator[tuple[str, Any, str]]:
    """Each setting outside of tables that somebody made and that is not the default: `section.key`, its value, and the
    line of a file, the variable or the option that it has it from. What merely follows, as the port of the status page
    from that of requests, nobody made.
    """
    for section, model in SECTIONS.items():
        settings = getattr(config, section)
        for key, field in model.model_fields.items():
            origin = config.origins.get((section, key))
            if settings is None or origin is None:
                continue
            value = getattr(settings, key)
            if value != field.get_default(call_default_factory=True):
                yield f"{section}.{key}", value, origin


def settings_text(config: Config) -> str:
    """All of them in a line."""
    made = ", ".join(f"{name} = {value!r} ({origin})" for name, value, origin in differences(config))
    return f"{made or 'none'} besides the defaults"
