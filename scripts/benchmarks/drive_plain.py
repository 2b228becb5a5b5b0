"""A peer of the protocol without our client: plain pyzmq and msgpack, one item a message, as other languages might."""

from __future__ import annotations

import os
import struct
from typing import Any

import msgpack
import zmq

from benchmarks.worker import Turns, main

WINDOW = 128
"""Messages left unacknowledged, which is what a server grants."""


def insert(address: str, table: str, payload: int) -> Turns:
    """Inserts of a single item, sent ahead of their replies."""
    socket = zmq.Context().socket(zmq.DEALER)
    socket.connect(address)
    number, open_messages = 0, 0
    body = os.urandom(payload)
    packer = msgpack.Packer()
    fields: dict[str, Any] = {
        "v": 1,
        "op": "insert",
        "stream": os.urandom(16),
        "rows": struct.pack("<I", 1),
        "schemas": [packer.pack([[["x"], "float32", [payload // 4]]])],
        "blobs": struct.pack("<IBBH", payload, 0, 0, 0),
        "tables": [table],
        "length": struct.pack("<I", 1),
        "priority": struct.pack("<d", 1.0),
    }
    yield {}
    while True:
        for _ in range(WINDOW // 2):
            fields.update(id=number, seq=number, keep_from=number, first_chunk=number, chunk=struct.pack("<Q", number))
            socket.send_multipart([packer.pack(fields), body])
            number += 1
        open_messages += WINDOW // 2
        taken = 0
        while open_messages > WINDOW // 2:
            header = socket.recv()
            if b"first_key" not in header:
                raise RuntimeError(msgpack.unpackb(header))
            open_messages -= 1
            taken += 1
        yield taken


ROLES: dict[str, Any] = {"insert": insert}

if __name__ == "__main__":
    main(ROLES)
