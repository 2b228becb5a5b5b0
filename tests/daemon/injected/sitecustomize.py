"""Python imports this before all else in daemons whose disk is to be found full, see `tests/daemon/full_disk.py`."""

from tests.daemon.full_disk import inject

inject()
