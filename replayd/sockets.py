"""The sockets of the daemon: how they are made, where they turn out to be, and how frames come out of them."""

from __future__ import annotations

import errno
import fcntl
import os
import socket as unix
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import zmq

from replayd.connections import Connections
from replayd.errors import BindError
from replayd.gate import Gate
from replayd.limits import FRAME_BYTES
from replayd.messages import Peer

LINGER_MS = 1000
"""Time for the last replies to leave at the end."""

COPIED_BYTES = 256 << 10
"""Bytes that are not in a frame yet are copied into one below this size. To lend them to libzmq takes 45 µs, for it
must tell when it needs them no more; to copy as much takes less.
"""

PATH_MODE = 0o660
"""Of the socket of an `ipc://` path: who may write to it may connect, so its owner and its group come in, whatever the
umask. Whoever wants it narrower keeps it in a directory that others may not enter."""

ALONE_S = 5.0
"""How long another daemon may take to bind in the same directory, which is a matter of milliseconds."""

_OPTIONS: Mapping[int, Mapping[int, int]] = {
    zmq.ROUTER: {
        # Without it libzmq drops replies to a full or vanished peer and says nothing.
        zmq.ROUTER_MANDATORY: 1,
        # More than a peer may have open and unread (window_messages + unread_replies), so acknowledgements and samples
        # of one that has stopped for a while never meet it.
        zmq.SNDHWM: 320,
        zmq.RCVHWM: 100,
        # A peer that lost power is noticed, and its queue freed, within 50 s; one that is stopped for half a minute
        # keeps what it was sent. Not on PULL: left unread it hears no answers.
        zmq.HEARTBEAT_IVL: 5000,
        zmq.HEARTBEAT_TIMEOUT: 45000,
    },
    zmq.PULL: {zmq.RCVHWM: 100},
}
_READABLE = int(zmq.POLLIN)
_MORE, _LAST = int(zmq.SNDMORE | zmq.NOBLOCK), int(zmq.NOBLOCK)
_COMMON_OPTIONS: Mapping[int, int] = {
    zmq.LINGER: LINGER_MS,
    zmq.MAXMSGSIZE: FRAME_BYTES.value,
    zmq.BACKLOG: 1024,
    zmq.HANDSHAKE_IVL: 5000,
    zmq.TCP_KEEPALIVE: 1,
}


def bound(
    context: zmq.Context[Any], kind: int, endpoint: str, connections: Connections, gate: Gate | None, fd: int | None
) -> zmq.Socket[Any]:
    """A socket of this kind at an endpoint, its connections counted, and those alone that the gate lets in if there is
    one. Raises BindError.

    `fd`: a socket that listens there already, and is taken over. The file of an `ipc://` path is made anew, for owner
    and group (`PATH_MODE`), unless somebody accepts connections there.
    """
    path = None if fd is not None else _path_of(endpoint)
    socket: zmq.Socket[Any] = context.socket(kind)
    socket.copy_threshold = COPIED_BYTES
    if "[" in endpoint:
        socket.setsockopt(zmq.IPV6, 1)
    for option, value in (*_COMMON_OPTIONS.items(), *_OPTIONS[kind].items()):
        socket.setsockopt(option, value)
    if fd is not None:
        socket.setsockopt(zmq.USE_FD, fd)
    if gate is not None:
        gate.guard(socket)
    connections.watch(socket)
    try:
        if path is None:
            socket.bind(endpoint)
            return socket
        with _alone_beside(path, endpoint):
            _refuse_if_taken(path, endpoint)
            socket.bind(endpoint)
            path.chmod(PATH_MODE)
    except (zmq.ZMQError, OSError) as error:
        raise BindError(endpoint, os.strerror(error.errno or 0), is_taken=error.errno == errno.EADDRINUSE) from error
    return socket


def _path_of(endpoint: str) -> Path | None:
    """The file of an endpoint; None if it has none that is known before it is bound, as an abstract one (`@`)."""
    path = endpoint.removeprefix("ipc://")
    return None if path == endpoint or path.startswith("@") or path == "*" else Path(path)


@contextmanager
def _alone_beside(path: Path, endpoint: str) -> Iterator[None]:
    """While inside, no other daemon looks whether a path in this directory is taken: of two that find one left behind,
    the second would delete the socket of the first. Raises BindError if another one stays inside."""
    with ExitStack() as held:
        # Where a directory cannot be opened or locked, as on some file systems of a network, it is as it was before.
        with suppress(OSError):
            directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            held.callback(os.close, directory)
            deadline = time.monotonic() + ALONE_S
            while not _locked(directory):
                if time.monotonic() > deadline:
                    raise BindError(endpoint, "another process holds its directory locked", is_taken=False)
                time.sleep(ALONE_S / 500)
        yield


def _locked(directory: int) -> bool:
    try:
        fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _refuse_if_taken(path: Path, endpoint: str) -> None:
    """libzmq deletes whatever is at the path, and one that listens there would never hear of anybody again."""
    try:
        is_socket = stat.S_ISSOCK(path.stat().st_mode)
    except FileNotFoundError:
        return
    except OSError as error:
        raise BindError(endpoint, str(error.strerror), is_taken=False) from error
    if not is_socket:
        raise BindError(endpoint, "there is a file that is no socket", is_taken=False)
    with unix.socket(unix.AF_UNIX, unix.SOCK_STREAM) as probe:
        # A full backlog is somebody, too.
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except (ConnectionRefusedError, FileNotFoundError):
            return
        except PermissionError as error:
            raise BindError(endpoint, "there is a socket of somebody else", is_taken=True) from error
        except BlockingIOError:
            pass
        except OSError as error:
            raise BindError(endpoint, str(error.strerror), is_taken=False) from error
    raise BindError(endpoint, f"{os.strerror(errno.EADDRINUSE)}: somebody answers there", is_taken=True)


def address_of(socket: zmq.Socket[Any]) -> str:
    """The endpoint of a bound socket, with its real port."""
    address = socket.getsockopt(zmq.LAST_ENDPOINT)
    assert isinstance(address, bytes)
    return address.rstrip(b"\0").decode()


def received(socket: zmq.Socket[Any]) -> list[Any]:
    """The frames of the next message. Raises zmq.Again if there is none.

    Each frame tells whether another follows: `recv_multipart` asks the socket for that, which doubles the time a frame
    takes (4.7 µs against 2.1).
    """
    frames: list[Any] = [socket.recv(_LAST, copy=False)]
    while frames[-1].more:
        frames.append(socket.recv(_LAST, copy=False))
    return frames


def arrived(router: zmq.Socket[Any], most: int) -> Iterator[tuple[Peer, list[Any]]]:
    """The requests that have arrived at a ROUTER, at most so many, as far as they are asked for: peer and frames."""
    for number in range(most):
        # Most turns bring one request: to ask whether there are more takes 2 µs, and to be refused another one 20.
        if number == 1 and not int(router.getsockopt(zmq.EVENTS)) & _READABLE:
            return
        try:
            # libzmq puts the sender's name before each message; as bytes it takes 2 µs less than as a frame.
            sender = router.recv(_LAST)
        except zmq.Again:
            return
        frames = received(router)
        # A REQ peer puts an empty frame before its message and wants it back.
        if len(frames) > 1 and len(frames[0]) == 0:
            yield (sender, b""), frames[1:]
        else:
            yield (sender,), frames


def origin(frames: Sequence[Any]) -> str:
    """The address of who sent these frames, as far as libzmq knows it."""
    with suppress(zmq.ZMQError):
        return str(frames[-1].get("Peer-Address")) or "this machine"
    return "this machine"


def send(socket: zmq.Socket[Any], frames: Sequence[Any]) -> None:
    """Send a message without waiting. Raises zmq.Again, and what else zmq says, before any of it is sent.

    `send_multipart` looks at each frame and adds its flags anew, which doubles the time a frame takes (4.2 µs against
    1.8).
    """
    for frame in frames[:-1]:
        socket.send(frame, _MORE, copy=False)
    socket.send(frames[-1], _LAST, copy=False)


def own_frame(payload: memoryview) -> zmq.Frame:
    """A copy in libzmq's memory: such a frame is sent again without copying, which halves the time of a sample of 40 kB
    (11 µs against 35 for bytes)."""
    frame = zmq.Frame(payload, copy=True)
    # pyzmq keeps what a frame was made of, and through it all that came in the same message.
    payload.release()
    return frame
