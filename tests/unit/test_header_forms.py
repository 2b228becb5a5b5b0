"""Headers of one form read as a matrix say what each says when it is unpacked by itself."""

from __future__ import annotations

import struct
from random import Random
from typing import Any

import msgpack
import pytest

from replayd.errors import PeerError
from replayd.header import read_header
from replayd.header_forms import Form

UINTS = ("id", "seq")
BINS = ("rows", "stream", "long", "nothing")


def packed(chance: Random, width: int) -> bytes:
    """A header whose numbers take `width` bytes, 0: in their tag."""
    least, most = (0, 127) if width == 0 else (1 << (8 * width - 1), (1 << (8 * width - (width == 8))) - 1)
    if width == 8:
        least = 1 << 32
    fields: dict[str, Any] = {
        "v": 1,
        "op": "insert",
        "id": chance.randint(least, most),
        "rows": chance.randbytes(4),
        "names": ["a", "ü"],
        "seq": chance.randint(least, most),
        "stream": chance.randbytes(16),
        "long": chance.randbytes(300),
        "nothing": b"",
        "other": 7,
    }
    return msgpack.packb(fields)


def said(form: Form, header: bytes) -> dict[str, Any] | None:
    rows = form.read([header])
    if rows is None:
        return None
    assert rows.dtype.names is not None
    return {name: int(rows[0][name]) if name in UINTS else rows[0][name].item() for name in rows.dtype.names}


@pytest.mark.parametrize("width", [0, 1, 2, 4, 8])
def test_headers_of_one_form_say_what_each_says_by_itself(width: int) -> None:
    chance = Random(width)
    headers = [packed(chance, width) for _ in range(50)]
    rows = Form(headers[0], UINTS, BINS).read(headers)
    assert rows is not None
    for row, header in zip(rows, headers, strict=True):
        fields = msgpack.unpackb(header)
        assert [int(row[name]) for name in UINTS] == [fields[name] for name in UINTS]
        assert [row[name].item() for name in BINS[:3]] == [fields[name] for name in BINS[:3]]


@pytest.mark.parametrize("width", [0, 1, 2, 4, 8])
def test_a_header_with_any_byte_changed_is_of_another_form_or_says_what_it_says_by_itself(width: int) -> None:
    chance = Random(width)
    header = packed(chance, width)
    form = Form(header, UINTS, BINS)
    names = set(said(form, header) or {})
    same = 0
    for at in range(len(header)):
        for change in (1, 0x80, chance.randint(1, 255)):
            changed = bytes([*header[:at], header[at] ^ change, *header[at + 1 :]])
            found = said(form, changed)
            if found is None:
                continue
            same += 1
            try:
                fields = read_header([changed]).fields
            except PeerError:
                pytest.fail(f"byte {at} makes no header, and the form has it")
            assert found == {name: fields[name] for name in names}
            assert {k: v for k, v in fields.items() if k not in names} == {
                k: v for k, v in msgpack.unpackb(header).items() if k not in names
            }
    assert same > 300


def test_numbers_of_other_encodings_are_read_as_they_are_meant() -> None:
    def made(number: int) -> bytes:
        # A signed number of eight bytes, which no packer would take for a small one.
        return b"\x82" + msgpack.packb("id") + b"\xd3" + struct.pack(">q", number) + msgpack.packb("seq") + b"\x05"

    form = Form(made(5), UINTS, BINS)
    assert said(form, made(9)) == {"id": 9, "seq": 5}
    assert said(form, made(-9)) == {"id": -9, "seq": 5}


def test_a_number_that_is_not_unsigned_or_a_field_of_another_kind_may_not_differ() -> None:
    form = Form(msgpack.packb({"id": -3, "seq": "a", "rows": [1]}), UINTS, BINS)
    assert not any(name in form for name in (*UINTS, *BINS))
    assert form.read([msgpack.packb({"id": -4, "seq": "a", "rows": [1]})]) is None
