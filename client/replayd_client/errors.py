"""Every error the client raises, one class for each error code of the protocol and one for each fault of this side.

ReplaydError                          .code (the wire's word, "" for an error of this side), .detail (dict)
├── DataError            ValueError       what was handed in makes no sense, or cannot be written
│   └── ArgumentTypeError TypeError       it is of another kind than the call takes
├── SignatureError       ValueError       data does not fit the table's signature
├── UnknownTableError    ValueError       no such table; the message lists those there are
├── PriorityError        ValueError       NaN, infinite, negative or too large
├── LimitExceededError   ValueError       a named limit of the server or of this side
├── TableFullError       RuntimeError     no room within max_bytes, and the table rejects then
├── NeverGrantableError  ValueError       the table as configured can never grant this request
├── DeadlineExceededError TimeoutError    the deadline passed; the message says who must act
├── ConnectionLostError  ConnectionError  no server, or it went away
│   └── ShuttingDownError, LoadingError, NotDurableError   it is there and does not serve now
├── AccessDeniedError    PermissionError  the server lets nobody in with this key, or not for this
├── ClosedError          RuntimeError     used after close
├── ForkedClientError    RuntimeError     a writer used in a forked child
└── ServerError          RuntimeError     the server refused; the base of the codes no caller can put right
    └── ProtocolError (bad_message, bad_request), UnsupportedVersionError, UnknownOpError,
        UnknownStreamError, SequenceGapError, MissingChunkError, NoStoreError, CheckpointFailedError, WithdrawnError
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class ReplaydError(Exception):
    """Base of all errors of replayd. `code` is the protocol's error code or "", `detail` its numbers for programs."""

    code: str = ""

    def __init__(self, message: str = "", *, detail: Mapping[str, Any] | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.detail: dict[str, Any] = dict(detail or {})
        if code is not None:
            self.code = code

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), str(self), self.detail, self.code)


def _rebuild(cls: type[ReplaydError], message: str, detail: dict[str, Any], code: str) -> ReplaydError:
    return cls(message, detail=detail, code=code)


# Faults of what the caller hands in: all of them ValueError too.


class DataError(ReplaydError, ValueError):
    """An argument that makes no sense, or a value, structure, dtype or shape that cannot be written."""


class ArgumentTypeError(DataError, TypeError):
    """An argument of another type than the call takes; raised before anything has changed."""


class SignatureError(ReplaydError, ValueError):
    """Data that does not fit a table's signature: the message names the path, what is expected and what came."""

    code = "signature_mismatch"


class UnknownTableError(ReplaydError, ValueError):
    """There is no table of this name on the server."""

    code = "unknown_table"


class PriorityError(ReplaydError, ValueError):
    """A priority that is NaN, infinite, negative or above the limit."""

    code = "bad_priority"


class LimitExceededError(ReplaydError, ValueError):
    """A named limit was passed; `detail` names it, and has `put_off_s` if that was waited for and may still pass."""

    code = "limit_exceeded"


class TableFullError(ReplaydError, RuntimeError):
    """The table has no room for it within its `max_bytes`, or the server within its own, and rejects what has none."""

    code = "table_full"


class NeverGrantableError(ReplaydError, ValueError):
    """The table as configured can never grant this request, however long one waits."""

    code = "never_grantable"


# Time and connection.


class DeadlineExceededError(ReplaydError, TimeoutError):
    """The deadline passed. The message and `detail` carry the limiter's numbers and who must act.

    `detail["who_must_act"]` is "writers", "learners" or "operator" (who changes a setting or resumes a table), or None
    where the server names nobody: it did not answer, or nothing holds the request back but time.
    """

    code = "timeout"

    def __init__(self, message: str = "", *, detail: Mapping[str, Any] | None = None, code: str | None = None) -> None:
        super().__init__(message, detail=detail, code=code)
        self.detail.setdefault("who_must_act", None)


class ConnectionLostError(ReplaydError, ConnectionError):
    """No server answers at the address, or the one that did went away and did not come back in time."""


class AccessDeniedError(ReplaydError, PermissionError):
    """The server lets nobody in with this key, or not for this: `detail` has `name`, `roles` and the `needed` ones."""

    code = "forbidden"


class ShuttingDownError(ConnectionLostError):
    """The server is about to stop and takes no more requests."""

    code = "shutting_down"


class LoadingError(ConnectionLostError):
    """The server is still reading its saved state."""

    code = "loading"


class NotDurableError(ConnectionLostError):
    """The server answers only for what is on its disk, and that takes no more: it waits for room."""

    code = "not_durable"


# Life of client objects.


class ClosedError(ReplaydError, RuntimeError):
    """A client or writer was used after `close`."""


class ForkedClientError(ReplaydError, RuntimeError):
    """A writer made before a fork was used in the child; open a new one there."""


# Refusals which point to a fault of one of the two programs rather than of its user.


class ServerError(ReplaydError, RuntimeError):
    """The server refused a request; codes that this client does not know arrive as this class."""


class ProtocolError(ServerError):
    """Bytes or fields which the protocol does not allow, found by this side or by the server."""

    code = "bad_message"


class BadRequestError(ProtocolError):
    """A message that could be read but asks for something that the protocol does not allow."""

    code = "bad_request"


class UnsupportedVersionError(ServerError):
    """The server does not speak this client's version of the protocol."""

    code = "unsupported_version"


class UnknownOpError(ServerError):
    """The server does not know this operation."""

    code = "unknown_op"


class UnknownStreamError(ServerError):
    """The server does not know this stream: it restarted, or the lease ran out."""

    code = "unknown_stream"


class SequenceGapError(ServerError):
    """An earlier message of the stream has not arrived; `detail["expected"]` is the number to resend from."""

    code = "sequence_gap"


class MissingChunkError(ServerError):
    """An item refers to a chunk which the server does not hold."""

    code = "missing_chunk"


class NoStoreError(ServerError):
    """The server was started without a store, so there is nothing that a checkpoint could be written to."""

    code = "no_store"


class CheckpointFailedError(ServerError):
    """The server could not write a checkpoint; what was durable before still is. `detail["reason"]` tells why."""

    code = "checkpoint_failed"


class WithdrawnError(ServerError):
    """The client itself took the sample back. No user sees it: who does so waits for no answer."""

    code = "withdrawn"


_BY_CODE: dict[str, type[ReplaydError]] = {
    cls.code: cls
    for cls in (
        ProtocolError,
        BadRequestError,
        UnsupportedVersionError,
        UnknownOpError,
        UnknownTableError,
        UnknownStreamError,
        SequenceGapError,
        MissingChunkError,
        SignatureError,
        PriorityError,
        AccessDeniedError,
        LimitExceededError,
        TableFullError,
        NeverGrantableError,
        DeadlineExceededError,
        ShuttingDownError,
        LoadingError,
        NotDurableError,
        NoStoreError,
        CheckpointFailedError,
        WithdrawnError,
    )
}


def error_from_wire(code: str, message: str, detail: Mapping[str, Any] | None = None) -> ReplaydError:
    """Return the error of this code; a code that this client does not know becomes a `ServerError`."""
    return _BY_CODE.get(code, ServerError)(message or code, detail=detail, code=code)
