"""Messages with the manners of protocol buffers, which the incumbent hands out and takes: plain objects.

Fields have kinds and defaults, sub-messages are there when asked for, setting a member of a one-of unsets the others,
`HasField` tells what was set, and text is protocol buffers' text. Nothing is serialised.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

INT32: int = 2**31 - 1
INT64: int = 2**63 - 1


class FieldName(NamedTuple):
    """What `ListFields` says of a field."""

    name: str


class Message:
    """The base of messages. Equal to one of its class with the same fields; mutable, so not hashable.

    A class names its `fields` in order, each with its kind: INT32, INT64, `bool`, `float`, `str`, a class of messages,
    a list with one such class for a repeated field, or `object` for what is kept as it is. Of the members of a group in
    `oneofs` one can be set; whether it is can be asked, as of messages.
    """

    _fields: ClassVar[Mapping[str, Any]] = {}
    _oneofs: ClassVar[Mapping[str, tuple[str, ...]]] = {}
    _values: dict[str, Any]
    _parent: tuple[Message, str] | None
    __hash__ = None  # type: ignore[assignment]

    def __init_subclass__(cls, fields: Mapping[str, Any], oneofs: Mapping[str, tuple[str, ...]] | None = None) -> None:
        cls._fields, cls._oneofs = fields, oneofs or {}

    def __init__(self, **values: Any) -> None:
        self.__dict__.update(_values={}, _parent=None)
        for name, value in values.items():
            if value is not None:
                self._put(name, _checked(self._kind(name), value))

    def HasField(self, name: str) -> bool:  # noqa: N802 - protocol buffers' word
        """Whether a sub-message or a member of a one-of is set. Raises ValueError for any other field."""
        kind = self._kind(name)
        if not _is_message(kind) and kind is not object and not self._rivals(name):
            raise ValueError(f"Field {type(self).__name__}.{name} does not have presence.")
        return name in self._values

    def WhichOneof(self, group: str) -> str | None:  # noqa: N802
        """The member of the group that is set. Raises ValueError if there is no such group."""
        if group not in self._oneofs:
            raise ValueError(f'Protocol message {type(self).__name__} has no "{group}" field.')
        return next((name for name in self._oneofs[group] if name in self._values), None)

    def ListFields(self) -> list[tuple[FieldName, Any]]:  # noqa: N802
        """The fields that are set, without those that are at their default and cannot tell."""
        return [(FieldName(name), self._values[name]) for name in self._fields if self._is_listed(name)]

    def __getattr__(self, name: str) -> Any:
        # Asked only for what is no attribute of the class.
        kind = self._fields.get(name)
        if kind is None:
            raise AttributeError(name)
        if name in self._values:
            return self._values[name]
        if isinstance(kind, list):
            return self._values.setdefault(name, [])
        if _is_message(kind):
            # It becomes a part of this message when something in it is set.
            child = kind()
            child.__dict__["_parent"] = (self, name)
            return child
        return None if kind is object else 0 if isinstance(kind, int) else kind()

    def __setattr__(self, name: str, value: Any) -> None:
        kind = self._fields.get(name)
        if kind is None:
            raise AttributeError(f'Protocol message {type(self).__name__} has no "{name}" field.')
        if isinstance(kind, list) or _is_message(kind):
            raise AttributeError(f"Assignment not allowed to message or repeated field {type(self).__name__}.{name}")
        self._put(name, _checked(kind, value))

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        assert isinstance(other, Message)
        return self.ListFields() == other.ListFields()

    def __repr__(self) -> str:
        return "".join(_text(field.name, value) for field, value in self.ListFields())

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuilt, (type(self), self._values)

    @classmethod
    def _kind(cls, name: str) -> Any:
        if name not in cls._fields:
            raise ValueError(f'Protocol message {cls.__name__} has no "{name}" field.')
        return cls._fields[name]

    @classmethod
    def _rivals(cls, name: str) -> tuple[str, ...]:
        return next((names for names in cls._oneofs.values() if name in names), ())

    def _put(self, name: str, value: Any) -> None:
        for rival in self._rivals(name):
            self._values.pop(rival, None)
        self._values[name] = value
        if self._parent is not None:
            parent, place = self._parent
            self.__dict__["_parent"] = None
            parent._put(place, self)

    def _is_listed(self, name: str) -> bool:
        if name not in self._values:
            return False
        kind = self._fields[name]
        return bool(_is_message(kind) or kind is object or self._rivals(name) or self._values[name])


def _rebuilt(cls: type[Message], values: Mapping[str, Any]) -> Message:
    return cls(**values)


def _is_message(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Message)


def _checked(kind: Any, value: Any) -> Any:
    """The value as its field keeps it. Raises TypeError for one of another kind, ValueError for a number too large."""
    if isinstance(kind, list):
        return [_checked(kind[0], each) for each in value]
    if _is_message(kind):
        if not isinstance(value, kind):
            raise TypeError(f"expected a {kind.__name__}, got a {type(value).__name__}")
        return value
    if isinstance(kind, int):
        number = operator.index(value)
        if not -kind - 1 <= number <= kind:
            raise ValueError(f"Value out of range: {number}")
        return number
    if kind is bool:
        return bool(operator.index(value))
    if kind is float:
        if isinstance(value, str):
            raise TypeError(f"must be a real number, not {type(value).__name__}")
        return float(value)
    if kind is str and not isinstance(value, str):
        raise TypeError(f"expected a str, got a {type(value).__name__}")
    return value


def _text(name: str, value: Any, indent: str = "") -> str:
    if isinstance(value, list):
        return "".join(_text(name, each, indent) for each in value)
    if isinstance(value, Message):
        inner = "".join(_text(field.name, each, indent + "  ") for field, each in value.ListFields())
        return f"{indent}{name} {{\n{inner}{indent}}}\n"
    return f"{indent}{name}: {_scalar_text(value)}\n"


def _scalar_text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        short = f"{value:.15g}"
        return short if float(short) == value else f"{value:.17g}"
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
    return str(value)
