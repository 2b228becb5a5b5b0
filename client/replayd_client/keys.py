"""The keys of a client, from the file that `replayd keys generate` made for it. Knows no sockets."""

from __future__ import annotations

import os
import stat
from typing import NamedTuple

from replayd_client.errors import DataError
from replayd_client.key_text import KEY_CHARACTERS, is_key, read_toml

KEY_FILE_VARIABLE = "REPLAYD_KEY_FILE"
"""In the environment: the file of keys of whoever names none."""


class KeyRightsError(DataError):
    """The rights of a key file are not as they must be: too few for us, or too many for others."""


class Keys(NamedTuple):
    """CURVE keys in Z85: this client's, and the public one of the server it will talk to and to no other."""

    name: str
    """That the server knows it by."""
    public: str
    secret: str
    server: str


def read_keys(path: str | os.PathLike[str] | None) -> Keys | None:
    """The keys in a file; None: in that which the environment names, and no keys if it names none.

    Raises DataError for a file that is none, and its kind KeyRightsError for one that others may read, or we may not.
    """
    path = path or os.environ.get(KEY_FILE_VARIABLE)
    if not path:
        return None
    file = os.fspath(path)
    try:
        with open(file, "rb") as content:
            mode = os.fstat(content.fileno()).st_mode
            fields = read_toml(content.read())
    except PermissionError as error:
        raise KeyRightsError(f"the key file {file}: {error.strerror}; it is for its owner's eyes alone") from error
    except OSError as error:
        raise DataError(f"the key file {file}: {error.strerror}") from error
    except ValueError as error:
        raise DataError(f"the key file {file}: {error}; `replayd keys generate` makes one") from error
    if mode & stat.S_IRWXO:
        raise KeyRightsError(
            f"the key file {file} may be read by anybody (mode {stat.S_IMODE(mode):04o}); chmod 0600 it"
        )
    values = {name: fields.get(name) for name in ("public", "secret", "server")}
    for name, value in values.items():
        if not is_key(value):
            raise DataError(
                f"the key file {file}: `{name}` must be a key, {KEY_CHARACTERS} characters of Z85; "
                "`replayd keys generate` makes one"
            )
    return Keys(str(fields.get("name", "")), **{name: str(value) for name, value in values.items()})
