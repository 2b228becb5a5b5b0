"""Listening sockets that a service manager opened and hands over, as sd_listen_fds(3) has it.

They outlive the daemon: who connects while it restarts waits in the kernel, and is served by the next one. Owns which
of them stands for which address of the configuration. Reads nothing from them.
"""

from __future__ import annotations

import fcntl
import os
import socket
import stat
from collections.abc import MutableMapping, Sequence

from replayd.addresses import collide, is_public

FIRST_FD = 3


class Misfit(Exception):
    """What was handed over is not what the configuration listens at."""


def handed_over(environment: MutableMapping[str, str]) -> dict[str, int]:
    """The file descriptor of each socket that was handed over, by the endpoint at which it listens.

    The variables that tell of them are taken out of the environment, for they are not meant for children. Raises Misfit
    for what is no listening stream socket.
    """
    pid, number = environment.pop("LISTEN_PID", ""), environment.pop("LISTEN_FDS", "")
    environment.pop("LISTEN_FDNAMES", None)
    if pid != str(os.getpid()) or not number.isdecimal():
        return {}
    return {_endpoint(fd): fd for fd in range(FIRST_FD, FIRST_FD + int(number))}


def assigned(fds: dict[str, int], endpoints: Sequence[str]) -> dict[str, int]:
    """The same file descriptors by the endpoint of the configuration that each of them stands for.

    Raises Misfit if one stands for none: its peers would wait for ever.
    """
    found: dict[str, int] = {}
    for where, fd in fds.items():
        # An address of this machine alone must not become one that others reach, nor the other way round in silence.
        fits = (each for each in endpoints if collide(each, where) and is_public(each) == is_public(where))
        endpoint = next(fits, None)
        if endpoint is None or endpoint in found:
            raise Misfit(
                f"the service manager hands over a socket at {where}, and the configuration listens at "
                f"{' and '.join(endpoints)}: `ListenStream=` and `[server] listen` or `ingest` must agree, "
                "set one as the other"
            )
        found[endpoint] = fd
    return found


def _endpoint(fd: int) -> str:
    try:
        is_socket = stat.S_ISSOCK(os.fstat(fd).st_mode)
    except OSError:
        is_socket = False
    if not is_socket:
        raise Misfit(f"the service manager hands over file descriptor {fd}, which is no socket: see `Sockets=`")
    handed = socket.socket(fileno=fd)
    try:
        if handed.type != socket.SOCK_STREAM or not handed.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            raise Misfit(
                f"the service manager hands over file descriptor {fd}, which listens at nothing: use `ListenStream=` "
                "and `Accept=no`"
            )
        name = handed.getsockname()
        family = handed.family
    finally:
        handed.detach()
    # libzmq accepts until there is nobody more, and has no use for them in a child.
    os.set_blocking(fd, False)
    fcntl.fcntl(fd, fcntl.F_SETFD, fcntl.FD_CLOEXEC)
    if family == socket.AF_UNIX:
        path = os.fsdecode(name)
        return f"ipc://{'@' + path[1:] if path.startswith(chr(0)) else path}"
    host, port = name[:2]
    return f"tcp://[{host}]:{port}" if family == socket.AF_INET6 else f"tcp://{host}:{port}"
