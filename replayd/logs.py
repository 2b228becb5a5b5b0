"""The log of the daemon: lines on stderr for people, entries of the journal under systemd, or JSON.

Owns how a record is written, and where to. A record may have the fields of FIELDS (`extra=` of a call of the log), by
which whoever reads the journal or JSON can look for it; and `passing=True` if the next line outdates it, which then
takes its place on a terminal. Must not know what is logged.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import struct
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TextIO

FIELDS = ("event", "table", "peer")
"""`event` names the kind of a line, `table` the table it is about, `peer` who caused it, in hexadecimal digits."""

JOURNAL = "/run/systemd/journal/socket"

ERASE_LINE = "\r\x1b[2K"

MESSAGE_BYTES = 32_768
"""Of one entry of the journal: with its other fields it fits into a datagram, and no traceback is longer."""

_PRIORITIES = ((logging.CRITICAL, 2), (logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6), (0, 7))


def begin(format: str, level: str, environment: Mapping[str, str]) -> str:
    """Have this process log from `level` on; which format is used.

    `format` is "text", "json", "journald", or "auto": "journald" where stderr goes to the journal, else "text".
    """
    if format == "auto":
        format = "journald" if is_journal(environment.get("JOURNAL_STREAM", "")) else "text"
    handler: logging.Handler
    if format == "journald":
        handler = _JournalHandler()
    elif format == "json":
        handler = logging.StreamHandler()
        handler.setFormatter(_JsonFormatter())
    else:
        handler = _LineHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s"))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    return format


def end_line() -> None:
    """Whatever is written to stderr next, by others, begins a line of its own."""
    for handler in logging.getLogger().handlers:
        if isinstance(handler, _LineHandler):
            handler.end_line()


def is_journal(stream: str) -> bool:
    """Whether stderr is the stream `DEVICE:INODE` that JOURNAL_STREAM names; it may have been redirected since."""
    try:
        stderr = os.fstat(sys.stderr.fileno())
    except (OSError, ValueError, AttributeError):
        return False
    return stream == f"{stderr.st_dev}:{stderr.st_ino}"


class _LineHandler(logging.StreamHandler[TextIO]):
    """Lines on stderr. On a terminal one that is passing is written over by the next."""

    def __init__(self) -> None:
        super().__init__()
        self._is_open = False

    def emit(self, record: logging.LogRecord) -> None:
        passes = getattr(record, "passing", False) and self.stream.isatty()
        self.terminator = "" if passes else "\n"
        super().emit(record)
        self._is_open = passes

    def format(self, record: logging.LogRecord) -> str:
        text = super().format(record)
        if not self.terminator:
            # Of a line that is broken by the terminal, only the end could be erased.
            text = text[: (os.get_terminal_size(self.stream.fileno()).columns or 80) - 1]
        return f"{ERASE_LINE}{text}" if self._is_open else text

    def end_line(self) -> None:
        if self._is_open:
            self.stream.write("\n")
            self.flush()
            self._is_open = False


class _JsonFormatter(logging.Formatter):
    """One object a line: `time` in UTC, `level`, `message`, and those of FIELDS that the record has."""

    def format(self, record: logging.LogRecord) -> str:
        when = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        entry = {"time": when.replace("+00:00", "Z"), "level": record.levelname.lower(), "message": _message(record)}
        return json.dumps(entry | _fields(record), ensure_ascii=False)


class _JournalHandler(logging.Handler):
    """Writes entries in the journal's own protocol; while that does not answer, lines with a priority on stderr, which
    goes there as well."""

    def __init__(self) -> None:
        super().__init__()
        self._path = JOURNAL
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        # A journal that is behind must not hold up the loop twice.
        self._socket.setblocking(False)

    def emit(self, record: logging.LogRecord) -> None:
        try:
            message, priority = _message(record), _priority(record)
            fields = {
                "MESSAGE": message.encode(errors="replace")[:MESSAGE_BYTES].decode(errors="ignore"),
                "PRIORITY": str(priority),
                "SYSLOG_IDENTIFIER": "replayd",
                "SYSLOG_PID": str(os.getpid()),
                "CODE_FILE": record.pathname,
                "CODE_LINE": str(record.lineno),
                "CODE_FUNC": record.funcName or "",
                **{f"REPLAYD_{name.upper()}": value for name, value in _fields(record).items()},
            }
            try:
                self._socket.sendto(journal_entry(fields), self._path)
            except OSError:
                lines = message.splitlines() or [""]
                sys.stderr.write("".join(f"<{priority}>{line}\n" for line in lines))
                sys.stderr.flush()
        except Exception:
            self.handleError(record)

    def close(self) -> None:
        self._socket.close()
        super().close()


def journal_entry(fields: Mapping[str, str]) -> bytes:
    """One entry in the native protocol of the journal: `NAME=VALUE` lines; a value of several lines with its length."""
    parts = []
    for name, value in fields.items():
        data = value.encode(errors="replace")
        parts.append(
            b"%s\n%s%s\n" % (name.encode(), struct.pack("<Q", len(data)), data)
            if b"\n" in data
            else b"%s=%s\n" % (name.encode(), data)
        )
    return b"".join(parts)


def _message(record: logging.LogRecord) -> str:
    text = record.getMessage()
    return f"{text}\n{logging.Formatter().formatException(record.exc_info)}" if record.exc_info else text


def _fields(record: logging.LogRecord) -> dict[str, str]:
    return {name: str(getattr(record, name)) for name in FIELDS if getattr(record, name, None)}


def _priority(record: logging.LogRecord) -> int:
    return next(priority for level, priority in _PRIORITIES if record.levelno >= level)
