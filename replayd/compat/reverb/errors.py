"""The errors of the incumbent that are classes of their own, and the way to them from replayd's.

Its other errors are Python's: ValueError for bad arguments, TypeError for values that cannot be stored, RuntimeError
for what the server refuses.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from replayd.compat.reverb._directory import UnknownTable
from replayd_client import errors as replayd_errors


class ReverbError(Exception):
    """Base of the errors below."""


class DeadlineExceededError(ReverbError):
    """A call with a timeout did not end in time; what it began goes on."""


@contextmanager
def translated(overdue: str = "") -> Iterator[None]:
    """Within it replayd's errors arrive as the incumbent's users expect them, with replayd's text.

    A deadline that passed and a server that was not there in time are DeadlineExceededError: without a timeout of the
    caller's neither is raised at all. `overdue` is what its text begins with. An unknown table is UnknownTable here;
    where it is a bad argument, who checks arguments says so before.
    """
    try:
        yield
    except (replayd_errors.DeadlineExceededError, replayd_errors.ConnectionLostError) as error:
        raise DeadlineExceededError(f"{overdue}: {error}" if overdue else str(error)) from error
    except replayd_errors.UnknownTableError as error:
        raise UnknownTable(error.detail.get("table", ""), error.detail.get("tables", ())) from error
    except replayd_errors.ReplaydError as error:
        if isinstance(error, replayd_errors.LimitExceededError) and "put_off_s" in error.detail:
            raise DeadlineExceededError(f"{overdue}: {error}" if overdue else str(error)) from error
        # The others are a ValueError or a RuntimeError already; what is neither cannot be put right by the caller.
        if isinstance(error, (ValueError, RuntimeError)):
            raise
        raise RuntimeError(str(error)) from error
