"""The configuration as a text to begin with: every key, with what it means and its default, made from the model.

A line `#key = value` is a setting that is not made, since it is the default or an example; words begin with `# `.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from inspect import cleandoc, getsource
from itertools import pairwise
from json import dumps
from textwrap import wrap
from typing import Any

from pydantic import BeforeValidator
from pydantic.fields import FieldInfo

from replayd.config_choices import LIMITERS, Section
from replayd.config_environment import variables
from replayd.config_model import SECTIONS, Config, TableConfig
from replayd.config_units import as_seconds

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
    of_sections = words_below(Config)
    for section, model in SECTIONS.items():
        yield from _words(of_sections[section])
        # A section that need not be there is made by taking the # away from its name as well.
        yield f"[{section}]" if Config.model_fields[section].default is not None else f"#[{section}]"
        of_keys = words_below(model)
        for key, field in model.model_fields.items():
            yield ""
            yield from _words(of_keys[key])
            yield f"# {names[section, key]}"
            yield _setting(key, field)
        yield ""


def _table() -> Iterator[str]:
    yield from _words(words_below(Config)["table"])
    yield "[[table]]"
    of_keys = words_below(TableConfig)
    for key, field in TableConfig.model_fields.items():
        yield ""
        yield from _words(of_keys[key])
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


def words_below(model: type[Section]) -> dict[str, str]:
    """What stands below each key of the model, in its source.

    pydantic's `use_attribute_docstrings` finds the same, at each import of the model: that was 70 ms of every start of
    the daemon.
    """
    (definition,) = ast.parse(getsource(model)).body
    assert isinstance(definition, ast.ClassDef)
    return {
        key: cleandoc(words)
        for each, below in pairwise(definition.body)
        if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name) and (key := each.target.id)
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant)
        if isinstance(words := below.value.value, str)
    }


def _words(text: str) -> Iterator[str]:
    yield from wrap(text, WIDTH, initial_indent="# ", subsequent_indent="#   ", break_on_hyphens=False)


def _setting(key: str, field: FieldInfo) -> str:
    """One line, not made: the default, or the example where there is none."""
    value = field.examples[0] if field.examples else field.get_default(call_default_factory=True)
    if any(isinstance(each, BeforeValidator) and each.func is as_seconds for each in field.metadata):
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
