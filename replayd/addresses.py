"""Addresses as the configuration writes them: which can be listened at, and who can reach them.

Owns their form. Opens nothing.
"""

from __future__ import annotations

import ipaddress
import os
import re

FREE_PATH = "ipc://*"
"""What stands for a path that nobody has."""
OFF = "off"
"""What stands for no address where there may be none."""
PATH_MOST_BYTES = 107
"""What the kernel takes for the path of a socket: `sun_path` has 108 bytes with the 0 at its end; see unix(7)."""
INGEST_SUFFIX = "-ingest"
"""What ingest's path has after that of requests, unless it is said where it is."""


def bindable(address: str) -> str:
    """The same address: tcp://HOST:PORT or ipc://PATH. Raises ValueError if it is none."""
    if address.startswith("ipc://") and len(address) > len("ipc://"):
        if (size := len(os.fsencode(address.removeprefix("ipc://")))) > PATH_MOST_BYTES:
            raise ValueError(f"expected a path of at most {PATH_MOST_BYTES} bytes in {address!r}, which has {size}")
        return address
    host, port = _host_and_port(address)
    if host != "*" and host != "localhost":
        try:
            ipaddress.ip_address(host.strip("[]"))
        except ValueError:
            raise ValueError(f"expected a numeric host address in {address!r}, got {host!r}") from None
    if port > 65535:
        raise ValueError(f"expected a port from 0 to 65535 in {address!r}")
    return address


def ingest_bindable(address: str) -> str:
    """As `bindable`, of ingest's address, which may be none and may follow from that of requests."""
    try:
        return address and bindable(address)
    except ValueError as error:
        if not address.startswith("ipc://") or not address.endswith(INGEST_SUFFIX):
            raise
        raise ValueError(
            f"{error}; unless `ingest` is said it is the path of `listen` and {INGEST_SUFFIX!r}: shorten that, or set "
            'ingest to another address, or to "" for none'
        ) from None


def is_public(address: str) -> bool:
    """Whether other machines may reach a socket bound there."""
    if not address.startswith("tcp://"):
        return False
    host, _ = _host_and_port(address)
    return host != "localhost" and (host == "*" or not ipaddress.ip_address(host.strip("[]")).is_loopback)


def is_wildcard(address: str) -> bool:
    """Whether the address means all of this machine's, and so none that one could connect to."""
    if not address.startswith("tcp://"):
        return False
    host, _ = _host_and_port(address)
    return host == "*" or (host != "localhost" and ipaddress.ip_address(host.strip("[]")).is_unspecified)


def collide(address: str, other: str) -> bool:
    """Whether two sockets would want one place. Port 0 is a free one, so never taken, and so is FREE_PATH."""
    if not (address.startswith("tcp://") and other.startswith("tcp://")):
        return address == other != FREE_PATH
    (host, port), (other_host, other_port) = (
        _host_and_port(each.replace("//localhost:", "//127.0.0.1:")) for each in (address, other)
    )
    return port == other_port != 0 and (host == other_host or is_wildcard(address) or is_wildcard(other))


def http_address(address: str) -> str:
    """The same address: HOST:PORT without a scheme, or "off". Raises ValueError if it is none."""
    if address != OFF:
        try:
            bindable(f"tcp://{address}")
        except ValueError:
            raise ValueError(f'expected "HOST:PORT", HOST a number, or "off", got {address!r}') from None
    return address


def _host_and_port(address: str) -> tuple[str, int]:
    match = re.fullmatch(r"tcp://(\[[^\]]+\]|[^:/\[\]]+):(\d{1,9})", address)
    if match is None:
        raise ValueError(f'expected "tcp://HOST:PORT" or "ipc://PATH", got {address!r}')
    return match[1], int(match[2])
