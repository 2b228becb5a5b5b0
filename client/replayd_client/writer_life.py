"""What all writers have in common for their users: the report, and how they end."""

from __future__ import annotations

from types import TracebackType
from typing import ClassVar, Literal, Self

from replayd_client.errors import ArgumentTypeError, ClosedError, ReplaydError
from replayd_client.pool import ConnectionPool
from replayd_client.scalars import checked_integer
from replayd_client.writer_core import EXIT_TIMEOUT_MS, WriterCore
from replayd_client.writer_report import WriterReport

MAX_POLICY_VERSION = 2**63 - 1
"""protocol.md §6.2."""


class WriterLife:
    """The base of writers: a context manager that flushes and closes. One that is dropped sends what it has and closes
    in the background, so nobody waits for it."""

    _core: WriterCore
    _made_by: ClassVar[str]
    """The client's method that makes one."""

    def __new__(cls, *parts: object) -> Self:
        # Before the arguments are compared with those of __init__, of which a caller of the class knows nothing.
        if not parts or not isinstance(parts[0], WriterCore | ConnectionPool):
            raise ArgumentTypeError(f"a {cls.__name__} is made by client.{cls._made_by}(…), not by calling its class")
        return super().__new__(cls)

    def report(self) -> WriterReport:
        """Bytes appended and bytes stored of each column, in the chunks that are finished."""
        return self._core.report()

    @property
    def policy_version(self) -> int:
        """Version of the policy that acts in the steps appended from now on, an integer from 1 on; 0 (the default): not
        said. To be set whenever a newer policy begins to act, before its first step.

        The server tells by how many versions what a table draws lags behind the newest that came into it. Setting it
        raises DataError for what is no version, and as the next `append` what the server refused meanwhile.
        """
        return self._core.policy_version

    @policy_version.setter
    def policy_version(self, version: int) -> None:
        self._core.act_by(checked_integer("policy_version", version, 0, MAX_POLICY_VERSION))

    @property
    def open_items(self) -> int:
        """Items that the server has not acknowledged."""
        return self._core.open_items

    @property
    def closed(self) -> bool:
        """Whether the writer was closed, by `close`, by its `with` block or by its client."""
        return self._core.closed

    def close(self, timeout_ms: float | Literal["own"] | None = "own") -> None:
        """Flush and close. May be called again; every other call raises ClosedError then.

        The deadline is the writer's own `timeout_ms` unless another is given, as it is of all calls that wait for
        acknowledgements.

        Raises DeadlineExceededError, which says who must act, LimitExceededError where all writers keep too much, or
        ConnectionLostError if items are not acknowledged in time: whether those arrived is not known. Raises too what
        the server refused of items created earlier, and ClosedError if another thread closes it meanwhile. The writer
        is closed all the same.
        """
        error = self._core.close(timeout_ms)
        if error is not None:
            raise error

    def __enter__(self) -> Self:
        if self._core.closed:
            raise ClosedError("the writer is closed")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
        else:
            # Who is on the way out with an error is not kept waiting, and keeps that error.
            self._core.close_quietly(0 if isinstance(error, ReplaydError) else EXIT_TIMEOUT_MS)

    def __del__(self) -> None:
        # An interpreter that failed in __init__ leaves no core.
        core = getattr(self, "_core", None)
        if core is not None:
            core.abandon()
