"""Files of secret keys: the server's, and the one that a client is given, which knows the server too.

Owns how they are written (TOML, for their owner's eyes alone) and what is wrong with one. Knows no roles.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

import zmq

from replayd.access import (
    AccessError,
    NoRights,
    NotMade,
    read_file,
    unmakeable,
)
from replayd.ownership import give_to_owner_of_directory
from replayd_client.key_text import KEY_CHARACTERS, is_key

SERVER_FILE = "server.key"
"""The server's own, in a directory of keys."""
SECRET_MODE = 0o600


def make_server_key(path: Path) -> str:
    """Make the server's keys, unless they are there; return the public one. Raises AccessError."""
    if path.exists():
        return public_of(read_server_secret(path))
    public, secret = (key.decode() for key in zmq.curve_keypair())
    _write(path, "The server's keys. Whoever has the secret one can pass for it.", public=public, secret=secret)
    return public


def make_client_key(path: Path, name: str, server: str) -> str:
    """Make the file of a client; return its public key. Raises AccessError if there is one."""
    public, secret = (key.decode() for key in zmq.curve_keypair())
    told = f"The keys of {name!r}: replayd_client.Client(address, key_file=…), or REPLAYD_KEY_FILE."
    _write(path, told, name=name, public=public, secret=secret, server=server)
    return public


def read_server_secret(path: Path) -> str:
    """The server's secret key. Raises AccessError; a file that others may read is none."""
    fields, mode = read_file(path)
    if mode & (stat.S_IRWXG | stat.S_IRWXO) & ~stat.S_IRGRP:
        raise NoRights(f"{path}: others may read it (mode {stat.S_IMODE(mode):04o}); chmod 0600 it")
    secret = fields.get("secret")
    if not is_key(secret):
        raise AccessError(f"{path}: `secret` must be a secret key, {KEY_CHARACTERS} characters of Z85")
    return secret


def public_of(secret: str) -> str:
    """The public key that goes with a secret one."""
    return zmq.curve_public(secret.encode()).decode()


def _write(path: Path, told: str, **fields: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, SECRET_MODE)
    except FileExistsError:
        raise NotMade(f"{path} is there already; revoke its name, or remove the file, to make another") from None
    except OSError as error:
        raise unmakeable(path, error) from None
    with os.fdopen(descriptor, "w") as file:
        file.write(f"# {told}\n")
        file.writelines(f"{name} = '{value}'\n" for name, value in fields.items())
    give_to_owner_of_directory(path)
