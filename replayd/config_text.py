"""The configuration as a text to begin with: every key, with what it means and its default, made from the model.

A line `#key = value` is a setting that is not made, since it is the default or an example; words begin with `# `.
"""

from __future__ import annotations

from collections.abc import Iterator
from inspect import cleandoc
from json import dumps
from textwrap import wrap
from typing import Any

from pydantic import BeforeValidator
from pydantic.fields import FieldInfo

from replayd.config_choices import LIMITERS, Section
from replayd.config_environment import variables
from replayd.config_model import SECTIONS, Config, TableConfig, seconds

WIDTH = 110

_HEAD = """\
# Settings of replayd. A line `#key = value` shows the default, or an example where there is none; take the # away to
# change it. What stands here wins over the defaults, variables of the environment (named above each key) win over
# that, and options of `replayd serve` over both. `replayd check-config FILE` tells all faults, with their lines.
# At SIGHUP the file is read again: what can change while the daemon runs does, the rest is told in the log.
"""


def default_text() -> str:
    """The whole file. As it stands it means the defaults; so it does with the # of all defaults taken away."""
    return "\n".join([_HEAD, *_sections(), *_table()])


def _sections() -> Iterator[str]:
    names = {key: name for name, key in variables().items()}
    for section, model in SECTIONS.items():
        yield from _words(Config.model_fields[section].description)
        # A section that need not be there is made by taking the # away from its name as well.
        yield f"[{section}]" if Config.model_fields[section].default is not None else f"#[{section}]"
        for key, field in model.model_fields.items():
            yield ""
            yield from _words(field.description)
            yield f"# {names[section, key]}"
            yield _setting(key, field)
        yield ""


def _table() -> Iterator[str]:
    yield from _words(Config.model_fields["table"].description)
    yield "[[table]]"
    for key, field in TableConfig.model_fields.items():
        yield ""
        yield from _words(field.description)
        if key == "limiter":
            for name, model in LIMITERS.items():
                yield from _words(f"- {name}: {cleandoc(model.__doc__ or '').splitlines()[0]}")
                keys = {key: each for key, each in model.model_fields.items() if key != "type"}
                needed = "".join(f", {key} = …" for key, each in keys.items() if each.is_required())
                further = "".join(f"[, {key} = …]" for key, each in keys.items() if not each.is_required())
                yield f'#     {{ type = "{name}"{needed}{further} }}'
        if key == "name":
            yield 'name = "replay"'
        elif key == "preset":
            # It would contradict the settings below, were all of them made.
            yield f"# {_setting(key, field).removeprefix('#')}"
        else:
            yield _setting(key, field)


def _words(text: str | None) -> Iterator[str]:
    assert text, "a key without words in the model"
    yield from wrap(text, WIDTH, initial_indent="# ", subsequent_indent="#   ", break_on_hyphens=False)


def _setting(key: str, field: FieldInfo) -> str:
    """One line, not made: the default, or the example where there is none."""
    value = field.examples[0] if field.examples else field.get_default(call_default_factory=True)
    if any(isinstance(each, BeforeValidator) and each.func is seconds for each in field.metadata):
        value = f"{value:g}s"
    return f"#{key} = {toml_value(value)}"


def toml_value(value: Any) -> str:
    """A value as TOML has it, on one line."""
    if isinstance(value, Section):
        settings = {key: getattr(value, key) for key in type(value).model_fields}
        value = settings["type"] if settings.keys() == {"type"} else settings
    match value:
        case bool():
            return str(value).lower()
        case int() | float():
            return f"{value:_}" if isinstance(value, int) else repr(value)
        case str():
            return dumps(value, ensure_ascii=False)
        case list():
            return f"[{', '.join(map(toml_value, value))}]"
        case dict():
            return "{ " + ", ".join(f"{key} = {toml_value(each)}" for key, each in value.items()) + " }"
    raise AssertionError(f"TOML has no {value!r}: a key without a default needs an example")
