"""Messages with the manners of protocol buffers."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

from replayd.compat.reverb._messages import INT32, Message


class Part(Message, fields={"number": INT32, "ratio": float}):
    pass


class Whole(
    Message,
    fields={
        "flag": bool,
        "count": INT32,
        "part": Part,
        "other": Part,
        "name": str,
        "parts": [Part],
        "anything": object,
    },
    oneofs={"choice": ("count", "part")},
):
    pass


def test_what_was_not_set_reads_as_its_default() -> None:
    whole = Whole()
    assert (whole.flag, whole.count, whole.name, whole.parts, whole.anything) == (False, 0, "", [], None)
    assert whole.part == Part()
    assert whole.part.number == 0


def test_only_parts_and_members_of_groups_tell_whether_they_were_set() -> None:
    whole = Whole(count=0, flag=False)
    assert whole.HasField("count")
    assert not whole.HasField("part")
    assert not whole.HasField("other")
    for name in ("flag", "name", "parts"):
        with pytest.raises(ValueError, match="does not have presence"):
            whole.HasField(name)


def test_setting_one_of_a_group_unsets_the_others() -> None:
    whole = Whole(part=Part(number=1))
    assert whole.WhichOneof("choice") == "part"
    whole.count = 3
    assert whole.WhichOneof("choice") == "count"
    assert whole.part == Part()
    assert Whole().WhichOneof("choice") is None


def test_a_part_is_there_once_something_in_it_is_set() -> None:
    whole = Whole(count=1)
    assert whole.part.number == 0
    assert not whole.HasField("part")
    whole.part.number = 2
    assert whole.HasField("part")
    assert not whole.HasField("count")
    assert whole.part.number == 2


def test_a_repeated_field_is_a_list() -> None:
    whole = Whole()
    whole.parts.append(Part(number=1))
    assert whole.parts == [Part(number=1)]


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("count", 1.5, TypeError),
        ("count", "1", TypeError),
        ("count", 2**31, ValueError),
        ("count", -(2**31) - 1, ValueError),
        ("name", 1, TypeError),
        ("unknown", 1, AttributeError),
        ("part", Part(), AttributeError),
        ("parts", [], AttributeError),
    ],
)
def test_a_field_takes_values_of_its_kind(name: str, value: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        setattr(Whole(), name, value)


def test_numbers_may_be_given_as_integers() -> None:
    assert Part(ratio=2).ratio == 2.0
    with pytest.raises(TypeError):
        Part(ratio="2")


@pytest.mark.parametrize("values", [{"part": Whole()}, {"parts": [1]}, {"other": None, "part": 3}])
def test_a_message_is_made_of_parts_of_their_class(values: dict[str, Any]) -> None:
    with pytest.raises(TypeError):
        Whole(**values)


@pytest.mark.parametrize(
    "ask",
    [
        lambda whole: Whole(unknown=1),
        lambda whole: whole.HasField("unknown"),
        lambda whole: whole.WhichOneof("unknown"),
        lambda whole: whole.WhichOneof("flag"),
    ],
)
def test_a_name_that_is_none_is_a_value_error(ask: Any) -> None:
    with pytest.raises(ValueError, match="Whole has no"):
        ask(Whole())


def test_an_attribute_that_is_none_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError):
        Whole().unknown  # noqa: B018


def test_messages_are_equal_by_what_was_set() -> None:
    assert Part(number=0) == Part()
    assert Whole(count=0) != Whole()
    assert Whole(other=Part()) != Whole()
    assert Part() != Whole()
    with pytest.raises(TypeError):
        hash(Part())


def test_fields_are_listed_by_name_if_they_say_something() -> None:
    whole = Whole(flag=False, count=0, other=Part(), name="", parts=[])
    assert [(field.name, value) for field, value in whole.ListFields()] == [("count", 0), ("other", Part())]


def test_copies_are_their_own() -> None:
    whole = Whole(part=Part(number=1), parts=[Part(number=2)])
    for other in (copy.deepcopy(whole), pickle.loads(pickle.dumps(whole))):  # noqa: S301 - our own bytes
        assert other == whole
        other.part.number = 5
        other.parts[0].number = 6
    assert (whole.part.number, whole.parts[0].number) == (1, 2)


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (Part(), ""),
        (Part(number=-2, ratio=1), "number: -2\nratio: 1\n"),
        (Part(ratio=1 / 3), "ratio: 0.33333333333333331\n"),
        (Part(ratio=0.1), "ratio: 0.1\n"),
        (Part(ratio=1.7976931348623157e308), "ratio: 1.7976931348623157e+308\n"),
        (Whole(flag=True, other=Part()), "flag: true\nother {\n}\n"),
        (Whole(name='a "b"'), 'name: "a \\"b\\""\n'),
        (Whole(parts=[Part(number=1), Part()]), "parts {\n  number: 1\n}\nparts {\n}\n"),
    ],
)
def test_its_text_is_that_of_protocol_buffers(message: Message, text: str) -> None:
    assert repr(message) == str(message) == text
