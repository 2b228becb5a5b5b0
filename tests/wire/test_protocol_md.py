"""protocol.md and the code say the same: its tables, its bytes, its snippet and its names are checked against both."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest

from replayd import selectors
from replayd.durability import Checkpoint, Durability, Progress
from replayd.errors import WIRE_ERRORS
from replayd.journal import Journal, JournalOptions
from replayd.limits import LIMITS, PRIORITY_MAX, SMALL_PAYLOAD_BYTES
from replayd.messages import OPS, PEEK_ORDERS, Result
from replayd.rate_limiters import MinSize, SampleToInsertRatio
from replayd.selectors import MAX_PRIORITY_EXPONENT
from replayd.service import Service
from replayd.settings import SETTINGS
from replayd.table import Table
from replayd.wire import decode, encode
from replayd_client.columns import DTYPE_NAMES
from replayd_client.wire import decode_reply
from tests.wire.descriptions import frames, vectors

PROTOCOL = Path(__file__).resolve().parents[2] / "protocol.md"
TEXT = PROTOCOL.read_text(encoding="utf-8")


def table(name: str) -> list[list[str]]:
    """The rows between a table's markers, without the heading; code marks are taken off the first cell."""
    between = re.search(rf"<!-- table: {name} -->\n(.*?)<!-- end: {name} -->", TEXT, re.DOTALL)
    assert between is not None, f"there is no table {name}"
    rows = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in between[1].splitlines()]
    return [[first.strip("`"), *rest] for first, *rest in rows[2:]]


def section(number: str) -> str:
    """The text below a heading such as `6.2`, down to the next heading of any depth."""
    found = re.search(rf"^#+ {re.escape(number)}\.? [^\n]*\n(.*?)(?=^#+ |\Z)", TEXT, re.DOTALL | re.MULTILINE)
    assert found is not None, f"there is no section {number}"
    return found[1]


# --- tables -----------------------------------------------------------------------------------------------------------


def test_the_table_of_limits_is_the_code() -> None:
    assert table("limits") == [[limit.name, str(limit.value), limit.reason] for limit in LIMITS]


def test_the_table_of_errors_is_the_code() -> None:
    assert table("errors") == [[error.code, error.meaning, error.fault, error.retry] for error in WIRE_ERRORS]


def test_the_table_of_ops_is_the_code_and_each_op_has_a_section() -> None:
    assert [row[0] for row in table("ops")] == list(OPS)
    for number, op in enumerate(OPS, start=1):
        assert f"\n### 6.{number} {op}\n" in TEXT
        assert section(f"6.{number}").lstrip().startswith("*Does*: ")


def test_the_table_of_settings_is_the_code() -> None:
    assert [row[0] for row in table("settings")] == list(SETTINGS)
    assert f"0 to {MAX_PRIORITY_EXPONENT:g}" in next(rule for name, _, rule in table("settings") if "exponent" in name)
    assert all(f"`{order}`" in section("6.8") for order in PEEK_ORDERS)


def test_numbers_in_the_text_are_those_of_the_code() -> None:
    assert PRIORITY_MAX == 1e90
    assert "at most 1e90" in section("4")
    assert SMALL_PAYLOAD_BYTES == 16 * 1024
    assert "16 KiB" in section("4.3")
    assert f"`{' '.join(DTYPE_NAMES)}`" in section("4.1")


# --- info -------------------------------------------------------------------------------------------------------------


def busy_service() -> Service:
    """Every kind of table, with parked inserts and parked samples: every key that info can have."""
    ratio = SampleToInsertRatio(1.0, 1, 2.0)
    tables = [
        Table("per", selectors.Prioritized(0.5), selectors.Prioritized(1.0), 9, ratio).replace(max_bytes=9999),
        Table("replay", selectors.Uniform(), selectors.Fifo(), 9, MinSize(5)),
        Table.queue("queue", 1),
    ]
    service = Service(tables, server_id=bytes(16), version="1.0", seed=0, started_at=0.0, max_bytes=9999)
    hello = msgpack.packb({"v": 1, "op": "hello", "id": 1, "client": "actor 7"})
    assert service.handle("actor", *decode([hello]), now=1.0) is None
    for seq, name in enumerate(["queue", "queue", "replay"]):
        [header, body] = frames(next(v for v in vectors("requests") if v["name"] == "insert-one"))
        fields = {**msgpack.unpackb(header), "seq": seq, "tables": [name], "first_chunk": seq}
        fields["chunk"] = fields["policy_versions"] = seq.to_bytes(8, "little")
        assert service.handle("actor", *decode([msgpack.packb(fields), body]), now=1.0) is None
    sample = msgpack.packb({"v": 1, "op": "sample", "id": 1, "table": "replay", "n": 1})
    assert service.handle("learner", *decode([sample]), now=1.5) is None
    pause = msgpack.packb({"v": 1, "op": "set", "id": 1, "table": "per", "changes": {"paused_samples": True}})
    assert service.handle("operator", *decode([pause]), now=1.5) is None
    service.drain()
    service.counters.vitals.resident_bytes = 1 << 26
    service.durability = Durability(
        path="/var/lib/replayd",
        last=Checkpoint(generation=2, of=1.0, duration_s=0.1, held_ms=1.0, chunks=3, nbytes=4, items=5),
        last_error="no space left on device",
        restored_generation=1,
        differences=["table 'per': max_size is 9 by the configuration, and was 8 when it was saved"],
        running=Progress(began_at=1.5),
        waits="70 MB of a checkpoint wait for the disk",
        replayed=7,
    )
    journal = Journal(JournalOptions("sync"), service, lambda entries: None, next_entry=1)
    journal.last_error = "no space left on device"
    service.durability.journal = journal.report
    return service


def info_fields(service: Service) -> dict[str, Any]:
    service.handle("operator", *decode([msgpack.packb({"v": 1, "op": "info", "id": 1})]), now=2.0)
    [(_, reply)] = service.drain()
    assert isinstance(reply, Result)
    decoded: dict[str, Any] = msgpack.unpackb(encode(reply)[0])
    return {key: value for key, value in decoded.items() if key not in ("v", "op", "id")}


def paths(value: Any, at: str = "") -> Iterator[str]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from paths(inner, f"{at}.{key}" if at else key)
    elif isinstance(value, list):
        for inner in value:
            yield from paths(inner, f"{at}[]")
    else:
        yield at


def test_every_key_of_info_is_documented_and_the_other_way_round() -> None:
    sent = set(paths(info_fields(busy_service())))
    documented = [key for key, *_ in table("info")]
    assert len(set(documented)) == len(documented)
    assert set(documented) == sent


def test_optional_keys_of_info_are_those_which_a_service_can_leave_out() -> None:
    plain = Table("replay", selectors.Uniform(), selectors.Fifo(), 9, MinSize(1))
    quiet = Service([plain], server_id=bytes(16), version="1.0", seed=0, started_at=0.0)
    left_out = set(paths(info_fields(busy_service()))) - set(paths(info_fields(quiet)))
    optional = {key for key, kind, _ in table("info") if "optional" in kind}
    # What tells of parked requests and of paused sides is absent where there are none.
    entries = ("tables[].waiting[].", "tables[].paused[]")
    assert {key for key in left_out if not key.startswith(entries)} == {
        key for key in optional if not key.startswith(entries)
    }


def test_keys_of_info_that_a_reset_sets_to_zero_are_marked() -> None:
    service = busy_service()
    [header, *_] = frames(next(v for v in vectors("requests") if v["name"] == "reset"))
    fields = {**msgpack.unpackb(header), "table": "replay"}
    service.handle("operator", *decode([msgpack.packb(fields)]), now=2.0)
    service.drain()
    replay = info_fields(service)["tables"][1]
    kinds = {key: kind.split(",")[0] for key, kind, _ in table("info")}
    assert set(kinds.values()) == {"now", "total", "reset"}
    for key, kind in kinds.items():
        if kind == "reset":
            found: Any = replay
            for part in key.removeprefix("tables[].").split("."):
                found = found[part]
            assert found == 0, key


# --- fields -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("op", OPS)
def test_every_field_of_a_vector_is_named_in_its_section(op: str) -> None:
    text = section(f"6.{list(OPS).index(op) + 1}")
    ours = [v for group in ("requests", "replies", "session") for v in vectors(group) if v["message"]["op"] == op]
    # Keys that are there to be ignored, and info, which has a table.
    strange = {"colour", "ages_s", "notes"}
    for vector in ours if op != "info" else []:
        for name in msgpack.unpackb(frames(vector)[0]).keys() - {"v", "op", "id"} - strange:
            assert f"`{name}`" in text, f"{name} of {vector['name']}"


def test_details_of_errors_are_named_in_their_table() -> None:
    meanings = {code: meaning for code, meaning, *_ in table("errors")}
    for vector in vectors("errors"):
        found = vector["message"]["error"]
        # What tells where the fault is goes without saying.
        obvious = {"table", "item", "chunk", "stream", "size"}
        for name in found["detail"].keys() - obvious:
            assert f"`{name}`" in meanings[found["code"]], f"{name} of {found['code']}"


# --- the worked example -----------------------------------------------------------------------------------------------


def shown_frames() -> list[tuple[str, int, int, bytes]]:
    """(vector, frame, size it is said to have, bytes) of each dump of §13, in order; offsets are checked."""
    shown: list[tuple[str, int, int, bytes]] = []
    for block in re.findall(r"```\n(.*?)```", section("13"), re.DOTALL):
        for line in block.splitlines():
            if title := re.fullmatch(r"(\S+), frame (\d+), (\d+) bytes", line):
                shown.append((title[1], int(title[2]), int(title[3]), b""))
                continue
            dump = re.match(r"([0-9a-f]{4})  ((?:[0-9a-f]{2} )*[0-9a-f]{2})(?:  |$)", line)
            assert dump is not None, f"not a line of a dump: {line}"
            name, frame, size, data = shown[-1]
            assert int(dump[1], 16) == len(data), f"{name}, frame {frame}: {line}"
            shown[-1] = (name, frame, size, data + bytes.fromhex(dump[2]))
    return shown


def test_the_bytes_of_the_worked_example_are_the_vectors() -> None:
    shown = shown_frames()
    expected = [(v["name"], i, len(frame), frame) for v in vectors("session") for i, frame in enumerate(frames(v))]
    assert shown == expected


def test_each_line_of_a_header_says_what_its_bytes_mean() -> None:
    """The right column names every key in order, and the value of those that are plain."""
    for block in re.findall(r"```\n(.*?)```", section("13"), re.DOTALL):
        name = block.split(",", 1)[0]
        header = frames(next(v for v in vectors("session") if v["name"] == name))[0]
        said = re.findall(r'"(\w+)": (.*?)(?=, "\w+": |$)', block, re.MULTILINE)
        fields = msgpack.unpackb(header)
        assert [key for key, _ in said] == list(fields), name
        for key, text in said:
            value = fields[key]
            if isinstance(value, bool | int | str):
                assert text == (f'"{value}"' if isinstance(value, str) else str(value).lower()), f"{name}: {key}"
            elif isinstance(value, bytes) and text.startswith(("u", "f")):
                [(kind, count, numbers)] = re.findall(r"^(\w+)\[(\d+)\] (.*)$", text)
                dtype = {"u64": "<u8", "u32": "<u4", "u16": "<u2", "f64": "<f8"}[kind]
                assert np.frombuffer(value, dtype).tolist() == [float(n) for n in numbers.split(", ")]
                assert len(value) == int(count) * np.dtype(dtype).itemsize


def test_the_snippet_reads_what_a_server_sends() -> None:
    [snippet] = re.findall(r"```python\n(.*?)```", section("6.3"), re.DOTALL)
    names: dict[str, Any] = {"np": np, "msgpack": msgpack}
    exec(snippet, names)  # noqa: S102 — the text under test
    read = names["read_sample"]
    for group, name in (
        ("session", "sample-reply"),
        ("replies", "sample-defaults-omitted"),
        ("replies", "sample-frames"),
    ):
        header, *body = frames(next(v for v in vectors(group) if v["name"] == name))
        reply = decode_reply([header, *body])
        found = list(read(msgpack.unpackb(header), body))
        assert [int(key) for key, _ in found] == reply.shown.keys.tolist()  # type: ignore[union-attr]
        for (_, columns), length in zip(found, reply.shown.length.tolist(), strict=True):  # type: ignore[union-attr]
            assert {len(values) for values in columns.values()} == {length}
    header, *body = frames(next(v for v in vectors("session") if v["name"] == "sample-reply"))
    [(_, columns)] = read(msgpack.unpackb(header), body)
    assert columns[("obs",)].tolist() == [[0.25, 2.0], [1.5, 4.0]]
    assert columns[("action",)].tolist() == [0, 2]


# --- the document itself ----------------------------------------------------------------------------------------------


def test_references_to_sections_lead_somewhere() -> None:
    numbers = set(re.findall(r"^#+ (\d+(?:\.\d+)?)\.? ", TEXT, re.MULTILINE))
    for number in re.findall(r"§(\d+(?:\.\d+)?)", TEXT):
        assert number in numbers, f"§{number}"


def test_lines_are_short_and_the_whole_is_not_long() -> None:
    lines = TEXT.splitlines()
    assert len(lines) <= 1050
    long = [
        line for line in lines if len(line) > 120 and not line.startswith("|") and not re.match(r"[0-9a-f]{4}  ", line)
    ]
    assert not long
