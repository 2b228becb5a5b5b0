"""The random requests of `traffic`, in the wire's own form, through a reception and in turns as a loop takes them."""

from __future__ import annotations

from typing import Any

import msgpack
import numpy as np

from replayd.messages import CloseStream, Insert, KeepAlive, Request, Reset, Sample, Set, Update, Withdraw
from replayd.reception import Reception
from replayd.service import Service
from tests.model.traffic import Traffic


class WireTraffic(Traffic):
    """A turn's requests all come at the time at its end."""

    def __init__(self, seed: int, now: float) -> None:
        super().__init__(seed)
        self.now = now
        self.sent: list[tuple[tuple[bytes, ...] | None, list[bytes]]] = []

    def turn(self, reception: Reception, service: Service) -> list[tuple[tuple[bytes, ...] | None, list[bytes]]]:
        """Some requests arrive together; what they were."""
        self.sent = []
        before = self.now
        for _ in range(self.random.randint(0, 6)):
            self.step(service)
        # What a step did to the time was done between two turns.
        self.now = max(before, self.now) + self.random.choice([0.0, 0.25, 1.0])
        give(reception, self.sent, self.now)
        return self.sent

    def pass_time(self, service: Service, seconds: float) -> None:
        self.now += seconds

    def _was_refused(self, request: Request) -> bool:
        """It is not known before the turn is over, and what follows is refused too."""
        return False

    def _ask(self, service: Service, peer: str, request: Request) -> None:
        frames = encoded(request)
        if frames is not None:
            name = f"{peer} {self.connection}".encode()
            is_pushed = peer == "writer" and self.random.random() < 0.1 and isinstance(request, Insert)
            self.sent.append((None if is_pushed else (name,), frames))


def give(reception: Reception, sent: list[tuple[tuple[bytes, ...] | None, list[bytes]]], now: float) -> float | None:
    """One turn of a loop."""
    for peer, frames in sent:
        reception.take(peer, frames, now)
    reception.settle(now)
    return reception.end_turn(now)


def encoded(request: Request) -> list[bytes] | None:
    """A request as its frames; None for those that only look."""
    fields: dict[str, Any] = {"v": 1, "op": _OPS.get(type(request), ""), "id": request.id}
    body: list[bytes] = []
    match request:
        case Insert():
            fields |= {"stream": request.stream, "seq": request.seq, "keep_from": request.keep_from}
            fields |= _chunk_fields(request) | _item_fields(request)
            body = list(request.chunks.body) if request.chunks else []
        case Sample():
            fields |= {"table": request.table, "n": request.n, "min_n": request.min_n}
            fields["timeout_ms"] = int(request.timeout_s * 1000)
        case Update():
            fields |= {"table": request.table, "keys": request.keys.tobytes()}
            fields |= {"priorities": request.priorities.tobytes(), "deletes": request.deletes.tobytes()}
        case Set():
            fields |= {"table": request.table, "changes": request.changes}
        case Reset():
            fields["table"] = request.table
        case Withdraw():
            pass
        case KeepAlive() | CloseStream():
            fields["stream"] = request.stream
        case _:
            return None
    return [msgpack.packb(fields), *body]


_OPS = {
    Insert: "insert",
    Sample: "sample",
    Update: "update",
    Set: "set",
    Reset: "reset",
    KeepAlive: "keepalive",
    CloseStream: "close_stream",
    Withdraw: "withdraw",
}


def _chunk_fields(request: Insert) -> dict[str, Any]:
    chunks = request.chunks
    if chunks is None:
        return {}
    fields = {
        "first_chunk": chunks.first,
        "rows": chunks.rows.astype("<u4").tobytes(),
        "episodes": chunks.episodes.astype("<u8").tobytes(),
        "schemas": [schema.blob for schema in chunks.schemas],
        "blobs": chunks.records.tobytes(),
    }
    if len(chunks.schemas) > 1:
        fields["schema_of"] = chunks.schema_of.astype("<u2").tobytes()
    if chunks.policy_versions is not None:
        fields["policy_versions"] = chunks.policy_versions.astype("<u8").tobytes()
    return fields


def _item_fields(request: Insert) -> dict[str, Any]:
    items = request.items
    if items is None:
        return {}
    fields = {
        "tables": items.tables,
        "table_of": items.table_of.astype("<u2").tobytes(),
        "chunk": items.chunk.astype("<u8").tobytes(),
        "chunks": items.chunks.astype("<u4").tobytes(),
        "offset": items.offset.astype("<u4").tobytes(),
        "length": items.length.astype("<u4").tobytes(),
        "templates": [template.blob for template in items.templates],
        "template_of": items.template_of.astype("<u2").tobytes(),
        "priority": items.priority.tobytes(),
    }
    if items.at_max is not None:
        fields["at_max"] = items.at_max.astype(np.uint8).tobytes()
    return fields
