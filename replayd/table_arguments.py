"""What a table can be made of. A wrong object would be noticed only with the first item: by the loop, which it would
end.
"""

from __future__ import annotations

import copy
import inspect
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from replayd.capacity import WHEN_FULL
from replayd.columns import CONTROL_CHARACTERS
from replayd.limits import NAME_BYTES
from replayd.rate_limiters import RateLimiter

_SELECTOR_METHODS = ("add", "remove", "update", "clear", "draw", "describe", "validate")


HOOKS = ("on_insert", "on_sample", "on_update", "on_delete", "on_reset")
"""What an extension may have."""


def check_extensions(name: str, extensions: Any) -> tuple[Any, ...]:
    """The extensions; raises TypeError for what is none, which would be silent for ever."""
    if isinstance(extensions, str | bytes):
        raise TypeError(f"table {name!r}: extensions must be a sequence of objects, got {extensions!r}")
    found = tuple(extensions)
    for extension in found:
        try:
            check_extension(extension)
        except TypeError as error:
            raise TypeError(f"table {name!r}: {error}") from None
    return found


def check_extension(extension: Any) -> None:
    """Raise TypeError for an object that is no extension. Looking at it may run foreign code, and raise whatever."""
    if isinstance(extension, type):
        raise TypeError(f"{extension!r} is a class; did you mean {extension.__name__}()?")
    hooks = {name: getattr(extension, name) for name in HOOKS if hasattr(extension, name)}
    if not hooks or not all(callable(hook) for hook in hooks.values()):
        raise TypeError(f"an extension has methods of {', '.join(HOOKS)}; got {extension!r}")
    for name, hook in hooks.items():
        if inspect.iscoroutinefunction(hook) or inspect.isasyncgenfunction(hook):
            raise TypeError(f"{name} of {extension!r} is async; nobody would await it")
        if inspect.isgeneratorfunction(hook):
            raise TypeError(f"{name} of {extension!r} is a generator; nobody would go through it")
    _copies_to(extension)


def anew(name: str, extensions: Sequence[Any]) -> list[Any]:
    """Extensions like these for another table, since one object serves one: deep copies.

    Raises TypeError for one that refuses to be copied.
    """
    try:
        return copy.deepcopy(list(extensions))
    except Exception as error:
        raise TypeError(
            f"table {name!r}: its extensions cannot be copied for another table ({type(error).__name__}: {error}); "
            "name others as `extensions`, or give them a __deepcopy__"
        ) from error


def check_tables_together(tables: Sequence[Any]) -> None:
    """Judge the tables of a server: there is one, each has a name of its own and was in no server before, and their
    extensions fit. Raises ValueError."""
    if not tables:
        raise ValueError("a server needs at least one table")
    names = [table.name for table in tables]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"tables are named twice: {', '.join(twice)}")
    taken = [table.name for table in tables if table.is_bound]
    if taken:
        raise ValueError(
            f"tables that already belong to a server, or did: {', '.join(taken)}; Table.replace() makes an empty "
            "one of the same settings"
        )
    check_extensions_together({table.name: table.extensions for table in tables})


def check_extensions_together(extensions: Mapping[str, Sequence[Any]]) -> None:
    """Judge the extensions of a server's tables, which are given by name.

    Raises ValueError for one that serves two tables, and for one that copies to a table that there is not.
    """
    users: dict[int, str] = {}
    for table, served in extensions.items():
        for extension in served:
            kind = type(extension).__name__
            other = users.setdefault(id(extension), table)
            if other != table:
                raise ValueError(f"tables {other!r} and {table!r} share one {kind}: an extension serves one table")
            for target in _copies_to(extension):
                if target not in extensions:
                    known = ", ".join(map(repr, extensions))
                    raise ValueError(
                        f"table {table!r}: {kind} copies to table {target!r}, which is not there; there are: {known}"
                    )


def _copies_to(extension: Any) -> tuple[str, ...]:
    """The tables that an extension says it copies to; they are what may be checked before the first copy."""
    named = getattr(extension, "copies_to", ())
    if not isinstance(named, tuple | list) or not all(isinstance(table, str) for table in named):
        raise TypeError(f"copies_to of {extension!r} must be a sequence of names, got {named!r}")
    return tuple(named)


def check_arguments(
    name: Any, sampler: Any, remover: Any, max_size: int, rate_limiter: Any, max_bytes: Any, when_full: Any
) -> None:
    """Raise TypeError for what is of a wrong kind, ValueError for what makes no sense; warn of what is of no use."""
    if not isinstance(name, str):
        raise TypeError(f"a table's name must be a string, got {name!r}")
    for role, selector in (("sampler", sampler), ("remover", remover)):
        if isinstance(selector, type) or not all(hasattr(selector, method) for method in _SELECTOR_METHODS):
            hint = f"; did you mean {selector.__name__}()?" if isinstance(selector, type) else ""
            raise TypeError(f"table {name!r}: {role} must be a selector object, got {selector!r}{hint}")
    if not isinstance(rate_limiter, RateLimiter):
        raise TypeError(f"table {name!r}: rate_limiter must be a rate limiter object, got {rate_limiter!r}")
    if not name or len(name.encode()) > NAME_BYTES.value or CONTROL_CHARACTERS.search(name):
        raise ValueError(f"a table's name has 1 to {NAME_BYTES.value} bytes, no control characters; got {name!r}")
    if max_size < 1:
        raise ValueError(f"table {name!r}: max_size must be at least 1, got {max_size}")
    if max_bytes is not None and (isinstance(max_bytes, bool) or not isinstance(max_bytes, int)):
        raise TypeError(f"table {name!r}: max_bytes must be an integer or None, got {max_bytes!r}")
    if max_bytes is not None and max_bytes < 1:
        raise ValueError(f"table {name!r}: max_bytes must be at least 1, got {max_bytes}")
    if when_full not in WHEN_FULL:
        raise ValueError(f"table {name!r}: when_full is one of {', '.join(WHEN_FULL)}, got {when_full!r}")
    if sampler is remover:
        raise ValueError(f"table {name!r}: sampler and remover must be two objects")
    if max_size < rate_limiter.min_size_to_sample:
        warnings.warn(
            f"table {name!r}: with max_size {max_size} below min_size_to_sample {rate_limiter.min_size_to_sample} "
            "nothing can ever be sampled: raise the one or lower the other",
            stacklevel=3,
        )
