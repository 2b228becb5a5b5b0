"""The golden vectors through both halves of the codec: the same bytes mean the same message on either side."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from replayd import selectors
from replayd.blobs import parse_schema, parse_template
from replayd.errors import WIRE_ERRORS, PeerError
from replayd.messages import OPS
from replayd.rate_limiters import MinSize
from replayd.service import Service
from replayd.table import Table
from replayd.wire import Undecodable, decode, encode
from replayd_client.codecs import SPARSE, decode_rows
from replayd_client.columns import Column, Schema
from replayd_client.errors import DataError
from replayd_client.messages import ErrorReply
from replayd_client.templates import Template
from replayd_client.wire import decode_reply
from tests.wire import make_vectors
from tests.wire.descriptions import (
    VECTORS,
    encode_as_client,
    flattened,
    frames,
    of_reply,
    of_request,
    to_reply,
    vectors,
)

Vector = dict[str, Any]


def named(found: list[Vector]) -> list[Any]:
    return [pytest.param(vector, id=vector["name"]) for vector in found]


SESSION = vectors("session")
REQUESTS = [*vectors("requests"), *(v for v in SESSION if v["direction"] == "request")]
REPLIES = [*vectors("replies"), *(v for v in SESSION if v["direction"] == "reply")]
CANONICAL_REQUESTS = [vector for vector in REQUESTS if vector.get("canonical", True)]
CANONICAL_REPLIES = [vector for vector in [*REPLIES, *vectors("errors")] if vector.get("canonical", True)]


def service(server_id: bytes = bytes(16), version: str = "1.0") -> Service:
    """One table, `replay`, which gives the item of the largest priority once it has two."""
    table = Table("replay", selectors.MaxHeap(), selectors.Fifo(), 100, MinSize(2))
    return Service([table], server_id=server_id, version=version, seed=0, started_at=0.0)


# --- the files --------------------------------------------------------------------------------------------------------


def test_each_file_of_vectors_is_what_its_maker_writes() -> None:
    assert {path.stem for path in VECTORS.glob("*.json")} == set(make_vectors.GROUPS)
    for group in make_vectors.GROUPS:
        assert (VECTORS / f"{group}.json").read_text(encoding="utf-8") == make_vectors.rendered(group), group


def test_vectors_show_every_op_both_ways_and_every_error_both_ways() -> None:
    assert {vector["message"]["op"] for vector in vectors("requests")} == set(OPS)
    assert {vector["message"]["op"] for vector in vectors("replies")} == set(OPS)
    codes = {error.code for error in WIRE_ERRORS}
    assert codes <= {vector["message"]["error"]["code"] for vector in vectors("errors")}
    # These are about states that one request cannot bring about.
    states = {"sequence_gap", "signature_mismatch", "never_grantable", "timeout", "table_full"}
    states |= {"forbidden", "shutting_down", "loading", "not_durable", "checkpoint_failed", "withdrawn"}
    assert {vector["error"] for vector in vectors("refusals")} == codes - states


# --- requests ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("vector", named(REQUESTS))
def test_the_server_reads_a_request(vector: Vector) -> None:
    op, request = decode(frames(vector), pushed=vector.get("pushed", False))
    assert of_request(op, request) == vector["message"]


@pytest.mark.parametrize("vector", named(CANONICAL_REQUESTS))
def test_the_client_writes_a_request(vector: Vector) -> None:
    sent = frames(vector)
    assert encode_as_client(vector["message"], sent[1:]) == sent


@pytest.mark.parametrize("vector", named(vectors("refusals")))
def test_the_server_refuses_a_request_and_says_which(vector: Vector) -> None:
    asked = service()
    try:
        op, request = decode(frames(vector), pushed=vector.get("pushed", False))
    except Undecodable as fault:
        asked.refuse("peer", fault.op, fault.id, fault.error)
    else:
        asked.handle("peer", op, request, now=0.0)
    [(_, reply)] = asked.drain()
    told = decode_reply(encode(reply))
    assert isinstance(told, ErrorReply)
    assert (told.error.code, told.op, told.id) == (vector["error"], vector["op"], vector["id"])
    asked.validate()
    assert len(asked.chunks) == 0
    assert len(asked.streams) == 0


# --- replies ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("vector", named(CANONICAL_REPLIES))
def test_the_server_writes_a_reply(vector: Vector) -> None:
    assert [bytes(frame) for frame in encode(to_reply(vector["message"]))] == frames(vector)


@pytest.mark.parametrize("vector", named([*REPLIES, *vectors("errors")]))
def test_the_client_reads_a_reply(vector: Vector) -> None:
    assert of_reply(decode_reply(frames(vector))) == flattened(vector["message"])


# --- blobs ------------------------------------------------------------------------------------------------------------


def blob_vectors(kind: str, expected: str = "message") -> list[Any]:
    return named([vector for vector in vectors("blobs") if vector["kind"] == kind and expected in vector])


@pytest.mark.parametrize("vector", blob_vectors("schema"))
def test_both_sides_read_a_schema(vector: Vector) -> None:
    [blob] = frames(vector)
    ours = [[list(c.path), c.dtype, list(c.shape)] for c in parse_schema(blob).columns]
    theirs = Schema.decode(blob)
    assert ours == vector["message"]
    assert [[list(c.path), c.dtype.name, list(c.shape)] for c in theirs.columns] == vector["message"]
    assert theirs.encode() == blob


@pytest.mark.parametrize("vector", blob_vectors("template"))
def test_both_sides_read_a_template(vector: Vector) -> None:
    [blob] = frames(vector)
    theirs = Template.decode(blob)
    read = [[o.path, o.squeeze, o.parts] for o in theirs.outputs]
    assert json.loads(json.dumps(read)) == vector["message"]
    assert theirs.encode() == blob
    ours = parse_template(blob)
    shown = [(list(o.path), o.squeeze, set(o.columns), o.rows) for o in ours.outputs]
    assert shown == [
        (path, squeeze, {column for column, _ in parts}, sum(run[1] for _, runs in parts for run in runs) or None)
        for path, squeeze, parts in vector["message"]
    ]
    parts = [part for *_, parts in vector["message"] for part in parts]
    rows = [start + i * stride for _, runs in parts for start, n, stride in runs for i in range(n)]
    assert ours.span == max(rows, default=0) + 1
    assert ours.width == max((column for column, _ in parts), default=-1) + 1


@pytest.mark.parametrize("vector", [*blob_vectors("schema", "error"), *blob_vectors("template", "error")])
def test_neither_side_takes_a_bad_description(vector: Vector) -> None:
    [blob] = frames(vector)
    ours, theirs = (parse_schema, Schema.decode) if vector["kind"] == "schema" else (parse_template, Template.decode)
    with pytest.raises(PeerError) as refused:
        ours(blob)
    assert refused.value.code == vector["error"]
    with pytest.raises(DataError):
        theirs(blob)


@pytest.mark.parametrize("vector", blob_vectors("column"))
def test_a_column_blob_holds_its_rows(vector: Vector) -> None:
    message = vector["message"]
    buffer = memoryview(frames(vector)[0])
    column = Column(("x",), message["dtype"], tuple(message["shape"]))
    out = np.empty((len(message["rows"]), *column.shape), column.array_dtype)
    present = decode_rows(column, buffer, message["codec"], message["flags"], out)
    rows = [row if present is None or present[n] else None for n, row in enumerate(out.tolist())]
    if message["dtype"] == "bytes":
        rows = [row.hex() for row in rows]
    assert rows == message["rows"]
    assert (present is not None) == bool(message["flags"] & SPARSE)


# --- one session ------------------------------------------------------------------------------------------------------


def test_the_session_of_the_worked_example_happens_as_written() -> None:
    daemon = service(server_id=make_vectors.SERVER, version="1.0")
    answers: list[tuple[str, list[bytes]]] = []
    for vector in SESSION:
        if vector["direction"] == "request":
            op, request = decode(frames(vector))
            assert daemon.handle(vector["peer"], op, request, now=0.0) is None
            answers += [(str(peer), [bytes(frame) for frame in encode(reply)]) for peer, reply in daemon.drain()]
            daemon.validate()
            continue
        assert answers, f"{vector['name']} has not come"
        peer, answer = answers.pop(0)
        assert peer == vector["peer"]
        if vector["name"] == "hello-reply":
            said, shown = of_reply(decode_reply(answer)), dict(vector["message"])
            assert said.pop("limits"), "a server tells its limits"
            assert shown.pop("limits") == {}
            assert said == shown
        else:
            assert answer == frames(vector), vector["name"]
    assert not answers, "there was an answer nobody expects"


def test_vectors_are_plain_json_with_hex() -> None:
    for group in make_vectors.GROUPS:
        for vector in vectors(group):
            assert vector["shows"]
            assert vector["direction"] in ("request", "reply", "blob")
            assert all(bytes.fromhex(frame).hex() == frame for frame in vector["frames"])
            assert ("message" in vector) != ("error" in vector)
            json.dumps(vector, allow_nan=False)
