"""Who may do what: roles, what each lets its holder ask, and the holders by their public keys.

Owns the allow-list as it is kept in a file of TOML, one section a name. Knows no sockets; `gate` asks it. It must not
know numpy and what knows that, such as `messages`: `replayd keys` needs nothing else of the daemon.

    [actor-7]
    key = "rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7"
    roles = ["actor"]
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from json import dumps
from pathlib import Path
from typing import Any

from replayd.errors import Forbidden
from replayd.ownership import give_to_owner_of_directory
from replayd_client.key_text import KEY_CHARACTERS, is_key, read_toml

_EVERYBODY = frozenset(("hello", "info", "why"))
_ACTOR = _EVERYBODY | {"insert", "keepalive", "close_stream"}
_LEARNER = _EVERYBODY | {"sample", "withdraw", "update", "peek"}
ROLES: Mapping[str, frozenset[str]] = {
    "actor": _ACTOR,
    "learner": _LEARNER,
    "admin": _ACTOR | _LEARNER | {"set", "reset", "checkpoint"},
}
"""The operations that each role lets its holder ask for."""

ALLOWED_FILE = "allowed.toml"
"""The list, in a directory of keys."""
ALLOWED_MODE = 0o640
"""Of the list: names and public keys are no secrets, and nobody's business either."""


class AccessError(Exception):
    """A file of keys that cannot be used, and why."""


class NoRights(AccessError):
    """The rights of a file are not as they must be: too few for us, or too many for others."""


class NotMade(AccessError):
    """A file cannot be made."""


@dataclass(frozen=True, slots=True)
class Holder:
    """Who has a key, and what it is good for."""

    name: str
    key: str
    roles: tuple[str, ...]

    def refusal(self, op: str) -> Forbidden | None:
        """Why this holder may not ask for that; None if it may."""
        if not self.roles:
            whose = f"the key of {self.name!r}" if self.name else "the key of this connection"
            return Forbidden(f"{whose} is good no more: it was revoked", name=self.name, roles=[], needed=[])
        if any(op in ROLES[role] for role in self.roles):
            return None
        needed = [role for role, ops in ROLES.items() if op in ops]
        return Forbidden(
            f"{self.name!r} has the role {', '.join(self.roles)}; {op} takes the role {' or '.join(needed)}",
            name=self.name,
            roles=list(self.roles),
            needed=needed,
        )


def read_allowed(path: Path) -> dict[str, Holder]:
    """The holders in a file, by their public keys. Raises AccessError with all that is wrong."""
    sections, _ = read_file(path)
    problems: list[str] = []
    holders: dict[str, Holder] = {}
    for name, fields in sections.items():
        fault = _fault(fields)
        if fault is not None:
            problems.append(f"{path}: [{name}]: {fault}")
            continue
        holder = Holder(name, fields["key"], tuple(fields["roles"]))
        if holder.key in holders:
            problems.append(f"{path}: [{name}] has the key of [{holders[holder.key].name}]")
        holders[holder.key] = holder
    if problems:
        raise AccessError("\n".join(problems))
    return holders


def read_file(path: Path) -> tuple[dict[str, Any], int]:
    """What a file of keys says, and its mode. Raises AccessError."""
    try:
        return read_toml(path.read_bytes()), path.stat().st_mode
    except OSError as error:
        raise unreadable(path, error) from None
    except ValueError as error:
        raise AccessError(f"{path}: {error}") from None


def unreadable(path: Path, error: OSError) -> AccessError:
    """What to do about a file of keys that cannot be read."""
    if isinstance(error, FileNotFoundError):
        return AccessError(f"{path}: {error.strerror}; `replayd keys generate` makes it")
    if isinstance(error, PermissionError):
        return NoRights(f"{path}: {error.strerror}; let it belong to the user that the daemon runs as")
    return AccessError(f"{path}: {error.strerror}")


def unmakeable(path: Path, error: OSError) -> AccessError:
    """What to do about a file of keys that cannot be made."""
    if isinstance(error, PermissionError):
        return NoRights(f"{path}: {error.strerror}; run this as the user that the directory belongs to")
    return NotMade(f"{path}: {error.strerror}; name a directory that can be written to")


def write_allowed(path: Path, holders: Mapping[str, Holder]) -> None:
    """Put these in the place of what is in the file, all at once. Raises NoRights, NotMade."""
    text = "# Who may come in. Written by `replayd keys`; the daemon reads it again on SIGHUP.\n"
    for holder in holders.values():
        roles = ", ".join(f'"{role}"' for role in holder.roles)
        name = holder.name if re.fullmatch(r"[A-Za-z0-9_-]+", holder.name) else _quoted(holder.name)
        text += f"\n[{name}]\nkey = '{holder.key}'\nroles = [{roles}]\n"
    replacement = path.with_name(f".{path.name}.new")
    try:
        replacement.write_text(text, "utf-8")
        replacement.chmod(ALLOWED_MODE)
        give_to_owner_of_directory(replacement)
        replacement.replace(path)
    except OSError as error:
        raise unmakeable(path, error) from None


def _quoted(name: str) -> str:
    """A name as TOML takes any: within one that stands bare a dot would begin a section of its own."""
    return dumps(name, ensure_ascii=False).replace("\x7f", "\\u007f")


def _fault(fields: object) -> str | None:
    if not isinstance(fields, dict):
        return "must be a section with `key` and `roles`"
    if unknown := sorted(fields.keys() - {"key", "roles"}):
        return f"unknown: {', '.join(unknown)}; a holder has `key` and `roles`"
    key, roles = fields.get("key"), fields.get("roles")
    if not is_key(key):
        return f"`key` must be a public key, {KEY_CHARACTERS} characters of Z85"
    # A list has no hash, and a dict would look into its own.
    if not isinstance(roles, list) or not roles or not all(isinstance(role, str) and role in ROLES for role in roles):
        return f"`roles` must be one or more of {', '.join(ROLES)}"
    return None
