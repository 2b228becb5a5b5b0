"""What a peer can do wrong, one class per wire error code.

A `PeerError` is the peer's fault or a state of affairs the peer must know; it becomes one error reply and changes
nothing. Our own faults are assertions and are not in this file. Knows nothing of bytes, sockets or tables.

    PeerError
    ├── BadMessage            bad_message
    ├── BadRequest            bad_request
    ├── UnsupportedVersion    unsupported_version
    ├── UnknownOp             unknown_op
    ├── UnknownTable          unknown_table
    ├── UnknownStream         unknown_stream
    ├── SequenceGap           sequence_gap
    ├── MissingChunk          missing_chunk
    ├── SignatureMismatch     signature_mismatch
    ├── BadPriority           bad_priority
    ├── LimitExceeded         limit_exceeded
    ├── TableFull             table_full
    ├── NeverGrantable        never_grantable
    ├── Timeout               timeout
    ├── Withdrawn             withdrawn
    ├── Forbidden             forbidden
    ├── ShuttingDown          shutting_down
    ├── Loading               loading
    ├── NotDurable            not_durable
    ├── NoStore               no_store
    └── CheckpointFailed      checkpoint_failed
    BindError                 could not bind an address at start (never on the wire)
    StoreError                the disk or a store in a directory (never on the wire)
    ├── StoreNotMade          its directory cannot be made, or has what must not be replaced
    ├── StoreForbidden        this user may not read or write there
    ├── StoreInUse            another process has it
    ├── StoreUnreadable       it is damaged, or no store at all
    ├── StoreMismatch         what is in it does not go with the configuration
    └── LastCheckpointFailed  at the end

A `Fault` is an error that no reply can tell of, and so the log must.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar


def told(value: object) -> str:
    """A peer's value as an error may repeat it: short, and of containers only the kind, however deep they are."""
    if value is None or isinstance(value, bool | int | float | str | bytes):
        text = repr(value)
        return text if len(text) <= 80 else f"{text[:77]}…"
    return f"a {type(value).__name__}"


class PeerError(Exception):
    """One error reply: the class fixes code and row of the table, `message` is for people, `detail` for programs."""

    code: ClassVar[str]
    meaning: ClassVar[str]
    fault: ClassVar[str]
    retry: ClassVar[str]

    def __init_subclass__(cls) -> None:
        # The row of the table is what there is to say.
        cls.__doc__ = f"`{cls.code}`: {cls.meaning}. Fault: {cls.fault}; retry: {cls.retry}."

    def __init__(self, message: str, **detail: Any) -> None:
        super().__init__(message)
        self.message = message
        self.detail: dict[str, Any] = detail


class BadMessage(PeerError):
    code = "bad_message"
    meaning = "frames, header or arrays are malformed"
    fault = "peer"
    retry = "no"


class BadRequest(PeerError):
    code = "bad_request"
    meaning = "well formed, but a value makes no sense (n = 0, a window outside its chunks)"
    fault = "peer"
    retry = "no"


class UnsupportedVersion(PeerError):
    code = "unsupported_version"
    meaning = "the header's `v` is not spoken here; detail: `versions`"
    fault = "peer"
    retry = "with a listed version"


class UnknownOp(PeerError):
    code = "unknown_op"
    meaning = "no such operation; detail: `ops`"
    fault = "peer"
    retry = "no"


class UnknownTable(PeerError):
    code = "unknown_table"
    meaning = "no such table; detail: `tables`, those there are"
    fault = "peer"
    retry = "no"


class UnknownStream(PeerError):
    code = "unknown_stream"
    meaning = "the server does not know the stream: it restarted, or the lease ran out"
    fault = "nobody"
    retry = "as a new stream (§9)"


class SequenceGap(PeerError):
    code = "sequence_gap"
    meaning = "an earlier message of the stream has not been accepted; detail: `expected`"
    fault = "nobody"
    retry = "from `expected`"


class MissingChunk(PeerError):
    code = "missing_chunk"
    meaning = "an item refers to a chunk the stream does not hold (never sent, or below `keep_from`)"
    fault = "peer"
    retry = "no"


class SignatureMismatch(PeerError):
    code = "signature_mismatch"
    meaning = "an item does not fit its table's signature; detail: `path`, `expected`, `got`"
    fault = "peer"
    retry = "no"


class BadPriority(PeerError):
    code = "bad_priority"
    meaning = "a priority is NaN, infinite, negative or above the limit; detail: `indices`, or `keys`"
    fault = "peer"
    retry = "no"


class LimitExceeded(PeerError):
    code = "limit_exceeded"
    meaning = "a limit of §4 was exceeded; detail: `limit`, `value`, `got`"
    fault = "peer"
    retry = "smaller, or later"


class TableFull(PeerError):
    code = "table_full"
    meaning = (
        "no room within `max_bytes`, and the table rejects then; detail: `table`, `limit`, `value`, `held`, `needed`"
    )
    fault = "nobody"
    retry = "when items have left"


class NeverGrantable(PeerError):
    code = "never_grantable"
    meaning = "`min_n` is more than the table as configured can ever grant at once; detail: `largest`, `limiter`"
    fault = "peer"
    retry = "with a smaller `min_n`"


class Timeout(PeerError):
    code = "timeout"
    meaning = "the deadline passed and the limiter granted nothing; detail: `blocked_by`, `who_must_act`, `limiter`"
    fault = "nobody"
    retry = "yes"


class Withdrawn(PeerError):
    code = "withdrawn"
    meaning = "the peer took the sample back before it was granted"
    fault = "nobody"
    retry = "no"


class Forbidden(PeerError):
    code = "forbidden"
    meaning = "the peer's key does not let it ask for this; detail: `name`, `roles`, `needed` (one of these roles)"
    fault = "peer"
    retry = "with another key"


class ShuttingDown(PeerError):
    code = "shutting_down"
    meaning = "the server is stopping"
    fault = "server"
    retry = "after its restart"


class Loading(PeerError):
    code = "loading"
    meaning = (
        "the server is reading its store; detail: `phase`, `done_bytes`, `total_bytes`, `items`, `total_items`, "
        "`elapsed_s`, and `remaining_s` (an estimate) once it can be told"
    )
    fault = "nobody"
    retry = "after a pause"


class NotDurable(PeerError):
    code = "not_durable"
    meaning = (
        "the server answers only for what is on its disk, and that takes no more; or too much waits for it; detail: "
        "`reason`"
    )
    fault = "server"
    retry = "after a pause"


class NoStore(PeerError):
    code = "no_store"
    meaning = "the server was started without a store"
    fault = "operator"
    retry = "no"


class CheckpointFailed(PeerError):
    code = "checkpoint_failed"
    meaning = "the store could not be written; what was durable before still is; detail: `path`, `reason`"
    fault = "server"
    retry = "when the disk is mended"


WIRE_ERRORS: tuple[type[PeerError], ...] = (
    BadMessage,
    BadRequest,
    UnsupportedVersion,
    UnknownOp,
    UnknownTable,
    UnknownStream,
    SequenceGap,
    MissingChunk,
    SignatureMismatch,
    BadPriority,
    LimitExceeded,
    TableFull,
    NeverGrantable,
    Timeout,
    Withdrawn,
    Forbidden,
    ShuttingDown,
    Loading,
    NotDurable,
    NoStore,
    CheckpointFailed,
)


class BindError(Exception):
    """An address could not be bound at start; the message names it and the reason. `is_taken`: somebody has it."""

    def __init__(self, endpoint: str, why: str, *, is_taken: bool) -> None:
        super().__init__(f"cannot bind {endpoint}: {why}")
        self.endpoint, self.is_taken = endpoint, is_taken


class StoreError(Exception):
    """A store could not be opened, read or written; the message names it and the reason."""


class StoreNotMade(StoreError):
    """Its directory cannot be made, or has what must not be replaced."""


class StoreForbidden(StoreError):
    """This user may not read it, or not write to its directory."""


class StoreInUse(StoreError):
    """Another process has it open."""


class StoreUnreadable(StoreError):
    """It is damaged, or what is there is no store."""


class StoreMismatch(StoreError):
    """What is in it does not go with the configuration."""


class LastCheckpointFailed(StoreError):
    """What a server was told to keep at its end is not on the disk: its last checkpoint, or what its journal lacked."""


@dataclass(frozen=True, slots=True)
class Fault:
    """What a pushed message or an extension did wrong, for the log.

    `what` names its kind: faults of one kind are told as one. `error` tells the rest; where it is no PeerError it was
    raised by foreign code, and its traceback is wanted. `advice` says what to do about it. `table`: where it happened.
    """

    what: str
    error: BaseException
    advice: str
    table: str = ""
