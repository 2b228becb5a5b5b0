"""Messages as the vectors describe them, made from the values of both halves of the codec, and the other way round.

Plain data: arrays are lists, bytes are hex, every field is there.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from replayd import messages as server
from replayd.payloads import Payloads
from replayd_client import array_messages, array_wire, wire
from replayd_client import messages as client

VECTORS = Path(__file__).parent / "vectors"

Message = dict[str, Any]


@cache
def vectors(group: str) -> list[dict[str, Any]]:
    """The vectors of one file, in its order."""
    found: list[dict[str, Any]] = json.loads((VECTORS / f"{group}.json").read_text(encoding="utf-8"))["vectors"]
    assert found, f"{group} has no vectors"
    return found


def frames(vector: dict[str, Any]) -> list[bytes]:
    return [bytes.fromhex(frame) for frame in vector["frames"]]


# --- the server's values ----------------------------------------------------------------------------------------------


def of_request(op: str, request: server.Request) -> Message:
    """What the server understood."""
    head: Message = {"op": op, "id": request.id}
    match request:
        case server.Hello():
            return {**head, "client": request.client}
        case server.Insert():
            return {
                **head,
                "stream": request.stream.hex(),
                "seq": request.seq,
                "keep_from": request.keep_from,
                "chunks": None if request.chunks is None else _of_chunks(request.chunks),
                "items": None if request.items is None else _of_items(request.items),
            }
        case server.Sample():
            return {
                **head,
                "table": request.table,
                "n": request.n,
                "min_n": request.min_n,
                "timeout_ms": round(request.timeout_s * 1000),
            }
        case server.Update():
            return {
                **head,
                "table": request.table,
                "keys": request.keys.tolist(),
                "priorities": request.priorities.tolist(),
                "deletes": request.deletes.tolist(),
            }
        case server.Reset() | server.Why():
            return {**head, "table": request.table}
        case server.Peek():
            keys = request.keys.tolist()
            return {**head, "table": request.table, "order": request.order, "n": request.n, "keys": keys}
        case server.Set():
            return {**head, "table": request.table, "changes": request.changes}
        case server.KeepAlive() | server.CloseStream():
            return {**head, "stream": request.stream.hex()}
        case server.Info() | server.Checkpoint() | server.Withdraw():
            return head


def _of_chunks(chunks: server.ChunkBatch) -> Message:
    widths = [len(chunks.schemas[schema].columns) for schema in chunks.schema_of.tolist()]
    return {
        "first": chunks.first,
        "rows": chunks.rows.tolist(),
        "episodes": chunks.episodes.tolist(),
        "schemas": [schema.blob.hex() for schema in chunks.schemas],
        "schema_of": chunks.schema_of.tolist(),
        "blobs": [_of_records(records) for records in np.split(chunks.records, np.cumsum(widths)[:-1])],
        "payloads": [payload.hex() for payload in payloads_in(chunks)],
        **({} if chunks.policy_versions is None else {"policy_versions": chunks.policy_versions.tolist()}),
    }


def payloads_in(chunks: server.ChunkBatch) -> list[bytes]:
    """The payload of each chunk of an insert."""
    body = b"".join(map(bytes, chunks.body))
    ends = [0, *np.cumsum(chunks.nbytes).tolist()]
    assert ends[-1] == len(body)
    return [body[a:b] for a, b in pairwise(ends)]


def _packed(payloads: Sequence[bytes]) -> list[server.Buffer]:
    """The frames in which the server sends these payloads."""
    sizes = np.array([len(payload) for payload in payloads], np.int64)
    store = Payloads()
    return store.fetch(store.put([b"".join(payloads)], [len(payloads)], sizes), sizes) if payloads else []


def _of_items(items: server.ItemBatch) -> Message:
    return {
        "tables": list(items.tables),
        "table_of": items.table_of.tolist(),
        "chunk": items.chunk.tolist(),
        "chunks": items.chunks.tolist(),
        "offset": items.offset.tolist(),
        "length": items.length.tolist(),
        "templates": [template.blob.hex() for template in items.templates],
        "template_of": items.template_of.tolist(),
        "priority": items.priority.tolist(),
        # Came later than the other fields, so their vectors do not have it.
        **({} if items.at_max is None else {"at_max": items.at_max.astype(int).tolist()}),
    }


def _of_records(records: Any) -> list[list[int]]:
    decoded = np.frombuffer(records, server.BLOB_RECORD)
    assert not decoded["zero"].any()
    return [[int(r["stored_bytes"]), int(r["codec"]), int(r["flags"])] for r in decoded]


def to_reply(message: Message) -> server.Reply:
    """The value from which the server encodes this message."""
    op, id = message["op"], message["id"]
    if "error" in message:
        error = message["error"]
        return server.Failed(op, id, error["code"], error["message"], _plain(error["detail"]))
    if op in ("sample", "peek"):
        return _to_items_reply(message)
    fields = {key: value for key, value in message.items() if key not in ("op", "id")}
    if fields.get("first_key", 0) is None:
        del fields["first_key"]
    if "missing" in fields:
        fields["missing"] = np.array(fields["missing"], np.uint64)
    return server.Result(op, id, _plain(fields))


def _plain(fields: Message) -> Message:
    """Fields whose values are bytes are written as hex in a description."""
    return {key: bytes.fromhex(value) if key in ("server_id", "stream") else value for key, value in fields.items()}


def _to_items_reply(message: Message) -> server.Sampled | server.Peeked:
    def numbers(name: str, dtype: Any = np.int64) -> Any:
        return np.array(message[name], dtype)

    payloads = [bytes.fromhex(payload) for payload in message["payloads"]]
    shown = server.Shown(
        keys=numbers("keys", np.uint64),
        priorities=numbers("priorities", np.float64),
        times_sampled=numbers("times_sampled"),
        chunk=numbers("chunk"),
        chunks=numbers("chunks"),
        offset=numbers("offset"),
        length=numbers("length"),
        templates=[bytes.fromhex(template) for template in message["templates"]],
        template_of=numbers("template_of"),
        rows=numbers("rows"),
        schemas=[bytes.fromhex(schema) for schema in message["schemas"]],
        schema_of=numbers("schema_of"),
        records=np.frombuffer(b"".join(map(_to_records, message["blobs"])), np.uint64),
        nbytes=sum(map(len, payloads)),
        body=_packed(payloads),
    )
    if message["op"] == "peek":
        return server.Peeked(message["id"], shown, numbers("ages_s", np.float64), numbers("missing", np.uint64))
    return server.Sampled(message["id"], shown, numbers("probabilities", np.float64), numbers("table_sizes"))


def _to_records(blobs: Sequence[Sequence[int]]) -> bytes:
    return np.array([(*blob, 0) for blob in blobs], server.BLOB_RECORD).tobytes()


# --- the client's values ----------------------------------------------------------------------------------------------


def encode_as_client(message: Message, body_frames: Sequence[bytes]) -> list[bytes]:
    """The frames which the client makes of this request; the body is cut into frames as given."""
    op, id = message["op"], message["id"]
    match op:
        case "hello":
            made = wire.encode_hello(id, message["client"])
        case "insert":
            chunks, items = message["chunks"], message["items"]
            made = array_wire.encode_insert(
                id,
                bytes.fromhex(message["stream"]),
                message["seq"],
                message["keep_from"],
                None if chunks is None else _to_chunks(chunks, body_frames),
                None if items is None else _to_items(items),
            )
        case "sample":
            made = array_wire.encode_sample(id, message["table"], message["n"], message["min_n"], message["timeout_ms"])
        case "update":
            keys = np.array(message["keys"], np.uint64)
            deletes = np.array(message["deletes"], np.uint64)
            made = array_wire.encode_update(
                id, message["table"], keys, np.array(message["priorities"], np.float64), deletes
            )
        case "reset":
            made = wire.encode_reset(id, message["table"])
        case "info":
            made = wire.encode_info(id)
        case "why":
            made = wire.encode_why(id, message["table"])
        case "peek":
            keys = np.array(message["keys"], np.uint64)
            made = array_wire.encode_peek(id, message["table"], message["order"], message["n"], keys)
        case "set":
            made = wire.encode_set(id, message["table"], message["changes"])
        case "keepalive":
            made = wire.encode_keepalive(id, bytes.fromhex(message["stream"]))
        case "close_stream":
            made = wire.encode_close_stream(id, bytes.fromhex(message["stream"]))
        case "checkpoint":
            made = wire.encode_checkpoint(id)
        case "withdraw":
            made = wire.encode_withdraw(id)
        case _:
            raise AssertionError(f"the client has no encoder for {op}")
    return [bytes(frame) for frame in made]


def _to_chunks(chunks: Message, body_frames: Sequence[bytes]) -> array_messages.ChunkBatch:
    return array_messages.ChunkBatch(
        first=chunks["first"],
        rows=np.array(chunks["rows"], np.int64),
        schemas=[bytes.fromhex(schema) for schema in chunks["schemas"]],
        records=b"".join(_to_records(blobs) for blobs in chunks["blobs"]),
        body=list(body_frames),
        episodes=np.array(chunks["episodes"], np.int64),
        schema_of=np.array(chunks["schema_of"], np.int64),
        policy_versions=np.array(chunks["policy_versions"], np.int64) if "policy_versions" in chunks else None,
    )


def _to_items(items: Message) -> array_messages.ItemBatch:
    return array_messages.ItemBatch(
        tables=items["tables"],
        chunk=np.array(items["chunk"], np.int64),
        length=np.array(items["length"], np.int64),
        priority=np.where(items.get("at_max", 0), array_messages.AT_MAX, np.array(items["priority"], np.float64)),
        table_of=np.array(items["table_of"], np.int64),
        chunks=np.array(items["chunks"], np.int64),
        offset=np.array(items["offset"], np.int64),
        templates=[bytes.fromhex(template) for template in items["templates"]],
        template_of=np.array(items["template_of"], np.int64),
    )


def of_reply(reply: wire.Reply) -> Message:
    """What the client understood; a sample's payloads are left as one `body`, its records flat."""
    match reply:
        case client.ErrorReply():
            error = {"code": reply.error.code, "message": str(reply.error), "detail": _hexed(reply.error.detail)}
            return {"op": reply.op, "id": reply.id, "error": error}
        case client.HelloReply():
            tables = {
                name: {}
                if table.signature is None
                else {"signature": [[list(path), dtype, list(shape)] for path, dtype, shape in table.signature]}
                for name, table in reply.tables.items()
            }
            return {
                "op": "hello",
                "id": reply.id,
                "server_id": reply.server_id.hex(),
                "server": reply.server,
                "versions": list(reply.versions),
                "codecs": list(reply.codecs),
                "window_messages": reply.window_messages,
                "window_bytes": reply.window_bytes,
                "lease_ms": reply.lease_ms,
                "max_wait_ms": reply.max_wait_ms,
                "limits": reply.limits,
                "tables": tables,
            }
        case array_messages.InsertReply():
            return {
                "op": "insert",
                "id": reply.id,
                "items": reply.items,
                "duplicate": reply.duplicate,
                "first_key": reply.first_key,
            }
        case array_messages.SampleReply():
            return {
                "op": "sample",
                "id": reply.id,
                **_of_shown(reply.shown),
                **_listed(reply, ("probabilities", "table_sizes")),
            }
        case array_messages.PeekReply():
            return {"op": "peek", "id": reply.id, **_of_shown(reply.shown), **_listed(reply, ("ages_s", "missing"))}
        case client.WhyReply():
            sides = [{k: v for k, v in side._asdict().items() if v is not None} for side in reply.waiting]
            sides = [{**side, "who": list(side["who"])} for side in sides]
            return {
                "op": "why",
                "id": reply.id,
                "table": reply.table,
                "verdict": reply.verdict,
                "advice": reply.advice,
                "waiting": sides,
                "paused": list(reply.paused),
                "size": reply.size,
                "max_size": reply.max_size,
                "limiter": reply.limiter,
            }
        case client.SetReply():
            return {"op": "set", "id": reply.id, "before": reply.before, "after": reply.after}
        case array_messages.UpdateReply():
            return {
                "op": "update",
                "id": reply.id,
                "updated": reply.updated,
                "deleted": reply.deleted,
                "missing": reply.missing.tolist(),
            }
        case client.ResetReply():
            return {"op": "reset", "id": reply.id, "removed": reply.removed}
        case client.InfoReply():
            return _hexed({key: value for key, value in reply.fields.items() if key != "v"})
        case client.CheckpointReply():
            fields = reply._asdict()
            return {"op": "checkpoint", "bytes": fields.pop("nbytes"), **fields}
        case client.DoneReply():
            return {"op": reply.op, "id": reply.id}


def _hexed(fields: Message) -> Message:
    return {key: value.hex() if isinstance(value, bytes) else value for key, value in fields.items()}


_SHOWN_ARRAYS = (
    "keys", "priorities", "times_sampled", "chunk", "chunks", "offset", "length", "template_of", "rows", "schema_of",
)  # fmt: skip


def _of_shown(shown: array_messages.ShownItems) -> Message:
    return {
        **_listed(shown, _SHOWN_ARRAYS),
        "templates": [template.hex() for template in shown.templates],
        "schemas": [schema.hex() for schema in shown.schemas],
        "blobs": _of_records(shown.records.tobytes()),
        "body": b"".join(shown.body).hex(),
    }


def _listed(of: object, names: Sequence[str]) -> Message:
    return {name: getattr(of, name).tolist() for name in names}


def flattened(message: Message) -> Message:
    """The description of a reply with items as `of_reply` gives it; any other as it is."""
    if message["op"] not in ("sample", "peek") or "error" in message:
        return message
    flat = {key: value for key, value in message.items() if key != "payloads"}
    flat["blobs"] = [blob for chunk in message["blobs"] for blob in chunk]
    flat["body"] = "".join(message["payloads"])
    return flat
