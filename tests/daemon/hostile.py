"""A server that lies to a live client: what a real service would answer, forged on the way.

`HostileServer` answers over a ROUTER of its own, `calls` makes every kind of call there is. A call gives a result or a
typed error by its deadline, whatever came; a seed says what is forged and what is called.
"""

from __future__ import annotations

import contextlib
import copy
import gc
import random
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Self

import msgpack
import numpy as np
import zmq

from replayd import rate_limiters, selectors
from replayd.messages import Reply
from replayd.service import Service
from replayd.table import Table
from replayd.wire import Undecodable, decode, encode
from replayd_client import Client, TensorSpec, errors
from tests.daemon.embedded import DEADLINE_S

FORGED = 0.7
"""Of the answers; of those to `hello` a few, or there would never be a session."""
FORGED_HELLOS = 0.1
TIMEOUT_MS = 100
ITEMS = 20
LARGE = (0, 1, 255, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 40, (1 << 63) - 1, (1 << 64) - 1)
STRANGE = (None, True, 0, -1, 1.5, float("nan"), "", "x" * 200, b"", b"\xff" * 8, [], [[]], {}, {"x": {}})
CODES = (
    "timeout", "never_grantable", "sequence_gap", "unknown_stream", "limit_exceeded", "shutting_down", "loading",
    "unknown_table", "signature_mismatch", "bad_priority", "not_durable", "table_full", "", "made up", 7,
)  # fmt: skip
DETAILS = (
    "largest", "limit", "value", "got", "blocked_by", "who_must_act", "limiter", "expected", "items", "table",
)  # fmt: skip
Frames = list[bytes]


class HostileServer:
    """Answers on a thread, at `address`, until the end of the block."""

    def __init__(self, seed: int) -> None:
        self.forged = 0
        self._chance = random.Random(seed)
        tables = [
            _table("t"),
            _table("signed", signature={"x": TensorSpec((None, 3), np.float32)}),
            _table("empty", max_times_sampled=1),
        ]
        self._service = Service(tables, server_id=bytes(16), version="1", seed=seed, started_at=time.monotonic())
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._router = self._context.socket(zmq.ROUTER)
        self._router.linger = 0
        port = self._router.bind_to_random_port("tcp://127.0.0.1")
        self.address = f"127.0.0.1:{port}"
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._serve)
        self._fault: BaseException | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        self._thread.join()
        self._context.destroy(linger=0)
        assert self._fault is None, f"the server itself failed: {self._fault!r}"

    def _serve(self) -> None:
        try:
            self._lie()
        except BaseException as error:  # A thread's error is the test's.
            self._fault = error

    def _lie(self) -> None:
        while not self._stop.is_set():
            if self._router.poll(20):
                peer, *frames = self._router.recv_multipart()
                with contextlib.suppress(Undecodable):
                    op, request = decode(frames)
                    self._service.handle((peer,), op, request, time.monotonic())
            self._service.tick(time.monotonic())
            for asker, reply in self._service.drain():
                assert isinstance(asker, tuple)
                self._answer(asker[0], reply)

    def _answer(self, peer: bytes, reply: Reply) -> None:
        frames = [bytes(frame) for frame in encode(reply)]
        is_hello = msgpack.unpackb(frames[0])["op"] == "hello"
        if self._chance.random() < (FORGED_HELLOS if is_hello else FORGED):
            self.forged += 1
            for forgery in forged(frames, self._chance):
                self._router.send_multipart([peer, *forgery])
        else:
            self._router.send_multipart([peer, *frames])


def _table(name: str, **settings: Any) -> Table:
    return Table(name, selectors.Uniform(), selectors.Fifo(), 1000, rate_limiters.MinSize(1), **settings)


# --- forgeries --------------------------------------------------------------------------------------------------------


def forged(frames: Frames, chance: random.Random) -> list[Frames]:
    """The messages that go in place of this one."""
    kind = chance.choice([_fields, _fields, _fields, _bits, _cut, _frames, _payload, _noise, _error, _often])
    return kind(list(frames), chance)


def _fields(frames: Frames, chance: random.Random) -> list[Frames]:
    """The right answer but for some fields."""
    header = msgpack.unpackb(frames[0], strict_map_key=False)
    for _ in range(chance.choice((1, 1, 2, 4))):
        _forge_inside(header, chance)
    return [[msgpack.packb(header), *frames[1:]]]


def _forge_inside(values: Any, chance: random.Random) -> None:
    """Change something in a map or an array, at any depth; the id most often stays, so that somebody reads it."""
    places = list(values) if isinstance(values, dict) else list(range(len(values)))
    place = chance.choice([place for place in places if place not in ("v", "op", "id")] or places or [None])
    if place is None:
        return
    inner = values[place]
    if isinstance(inner, dict | list) and inner and chance.random() < 0.8:
        _forge_inside(inner, chance)
    elif isinstance(values, dict) and chance.random() < 0.2:
        del values[place]
    else:
        values[place] = _another(inner, chance)


def _another(value: Any, chance: random.Random) -> Any:
    if isinstance(value, bytes) and value and chance.random() < 0.8:
        size = chance.choice([size for size in (1, 2, 4, 8) if size <= len(value)])
        at = chance.randrange(len(value) // size) * size
        number = chance.choice(LARGE) & ((1 << 8 * size) - 1)
        swapped = value[:at] + number.to_bytes(size, "little") + value[at + size :]
        return chance.choice(
            [swapped, swapped, value[: chance.randrange(len(value))], value * chance.choice((2, 1000))]
        )
    if isinstance(value, int) and not isinstance(value, bool) and chance.random() < 0.7:
        return chance.choice([*LARGE, -1, min(value + 1, LARGE[-1])])
    return copy.deepcopy(chance.choice(STRANGE))


def _bits(frames: Frames, chance: random.Random) -> list[Frames]:
    which = chance.randrange(len(frames))
    frame = bytearray(frames[which])
    for _ in range(chance.choice((1, 3, 20))):
        if frame:
            frame[chance.randrange(len(frame))] ^= 1 << chance.randrange(8)
    frames[which] = bytes(frame)
    return [frames]


def _cut(frames: Frames, chance: random.Random) -> list[Frames]:
    which = chance.randrange(len(frames))
    frames[which] = frames[which][: chance.randrange(len(frames[which]) + 1)]
    return [frames]


def _frames(frames: Frames, chance: random.Random) -> list[Frames]:
    """Another number of frames, or another order."""
    which = chance.randrange(len(frames))
    fewer, more = frames[:which] + frames[which + 1 :] or [b""], [*frames, bytes(100)]
    return [chance.choice([fewer, more, frames * 2, frames[::-1], [b""]])]


def _payload(frames: Frames, chance: random.Random) -> list[Frames]:
    """Payloads that claim to be something else: of each blob the codec, its flags, and what its chunk's header says."""
    header = msgpack.unpackb(frames[0], strict_map_key=False)
    if isinstance(header.get("blobs"), bytes) and header["blobs"]:
        records = [list(struct.unpack_from("<IBBH", header["blobs"], at)) for at in range(0, len(header["blobs"]), 8)]
        for record in records:
            record[1], record[2] = chance.choice((1, 2)), chance.choice((0, 1, 2, 3, 4))
        header["blobs"] = b"".join(struct.pack("<IBBH", *record) for record in records)
    # Of a blosc chunk: format, flags, the size when decompressed, of a block, and of all.
    sizes = chance.choices(LARGE[:6], k=3)
    bomb = struct.pack("<BBBBIII", chance.choice((2, 5)), 1, chance.choice((1, 2, 33)), 8, *sizes)
    body = [(bomb + frame)[: len(frame)] for frame in frames[1:]]
    return [[msgpack.packb(header), *body]]


def _noise(frames: Frames, chance: random.Random) -> list[Frames]:
    return [[chance.randbytes(chance.choice((0, 1, 50, 5000))) for _ in range(chance.choice((1, 2, 5)))]]


def _error(frames: Frames, chance: random.Random) -> list[Frames]:
    """An error in place of a result, of a code that may be none, with a detail in which nothing is as it should be."""
    header = msgpack.unpackb(frames[0], strict_map_key=False)
    code = chance.choice(CODES)
    detail = {name: _another(chance.choice([0, b"ab"]), chance) for name in chance.sample(DETAILS, 4)}
    error = chance.choice([{"code": code, "message": "forged", "detail": detail}, {"code": code}, detail, 7])
    return [[msgpack.packb({"v": 1, "op": header["op"], "id": header["id"], "error": error})]]


def _often(frames: Frames, chance: random.Random) -> list[Frames]:
    """Never, or more often than it was asked for."""
    return [frames] * chance.choice((0, 2, 30))


# --- calls ------------------------------------------------------------------------------------------------------------


def calls(client: Client) -> dict[str, Callable[[], Any]]:
    """Every kind of call, by name."""

    def write() -> None:
        writer = client.trajectory_writer(3, timeout_ms=TIMEOUT_MS)
        try:
            for number in range(ITEMS):
                writer.append({"x": np.full(3, number, np.float32)})
                writer.create_item("t", 1.0, {"x": writer.history["x"][-1:]})
            writer.flush(timeout_ms=TIMEOUT_MS)
        finally:
            writer.close(timeout_ms=TIMEOUT_MS)

    def read_on() -> None:
        with client.dataset("t", 4, timeout_ms=TIMEOUT_MS, max_batches=3, ragged="list") as dataset:
            for _ in dataset:
                pass

    batch = {"x": np.random.default_rng(0).integers(0, 9, (ITEMS, 2, 3)).astype(np.float32)}
    wait = {"timeout_ms": TIMEOUT_MS}
    return {
        "insert_batch": lambda: client.insert_batch(batch, {"t": 1.0}, **wait),
        "insert signed": lambda: client.insert_batch(batch, {"signed": 1.0}, **wait),
        "insert": lambda: client.insert({"x": np.zeros(3, np.float32)}, {"t": 1.0}, **wait),
        "write": write,
        "sample": lambda: list(client.sample("t", 3, emit_timesteps=False, **wait)),
        "sample signed": lambda: list(
            client.sample("signed", 3, emit_timesteps=False, unpack_as_table_signature=True, **wait)
        ),
        "sample_batch": lambda: client.sample_batch("t", 8, 1, ragged="pad", **wait),
        "sample in vain": lambda: client.sample_batch("empty", 1, **wait),
        "dataset": read_on,
        "mutate_priorities": lambda: client.mutate_priorities("t", {1: 2.0, 2: 3.0}, [3], **wait),
        "info": lambda: client.info(**wait),
        "server_info": lambda: repr(client.server_info(timeout=TIMEOUT_MS / 1000)),
        "why": lambda: str(client.why("t", **wait)),
        "peek": lambda: client.peek("t", newest=5, **wait),
        "set": lambda: str(client.set("t", max_size=1000, **wait)),
        "reset": lambda: client.reset("empty", **wait),
        "checkpoint": lambda: client.checkpoint(**wait),
    }


def suffer(seed: int, count: int) -> tuple[Counter[str], int]:
    """So many calls of a client whose server lies: how often each kind of outcome came, and how much was forged.

    Raises AssertionError for an error without a type, and for a call that hangs.
    """
    chance, outcomes = random.Random(seed), Counter[str]()
    with HostileServer(seed) as server, ThreadPoolExecutor(1) as pool:
        client = Client(server.address)
        for number in range(count):
            name, call = chance.choice(list(calls(client).items()))
            which = f"call {number} of seed {seed}, {name}"
            try:
                pool.submit(call).result(DEADLINE_S)
            except errors.ReplaydError as error:
                outcomes[type(error).__name__] += 1
            except TimeoutError:
                raise AssertionError(f"{which}: no end within {DEADLINE_S} s") from None
            except Exception as error:
                raise AssertionError(f"{which}: {error!r} has no type of replayd's") from error
            else:
                outcomes["result"] += 1
            if chance.random() < 0.05:
                # A client of which something was forged goes, and another comes.
                with contextlib.suppress(errors.ReplaydError):
                    client.close(timeout_ms=TIMEOUT_MS)
                client = Client(server.address)
        with contextlib.suppress(errors.ReplaydError):
            client.close(timeout_ms=TIMEOUT_MS)
        # Errors and the frames they came through refer to each other; what is left after this is kept by somebody.
        gc.collect()
        return outcomes, server.forged
