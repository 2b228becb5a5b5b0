"""What the command line says to do with what a store has."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from replayd_client import Client, errors
from tests.daemon.conftest import StartDaemon
from tests.daemon.harness import run_replayd

RATIO = (
    'limiter = { type = "rate_limiter", samples_per_insert = 1.0, min_size_to_sample = 1, min_diff = 0.0, '
    "max_diff = 50.0 }"
)


def test_the_command_line_has_limiters_begin_anew_and_tables_left_behind(
    start_daemon: StartDaemon, tmp_path: Path
) -> None:
    first, second = tmp_path / "first.toml", tmp_path / "second.toml"
    first.write_text(f'[[table]]\nname = "t"\nsampler = "fifo"\n{RATIO}\n[[table]]\nname = "gone"\n')
    second.write_text(f'[[table]]\nname = "t"\nsampler = "fifo"\n{RATIO}\n[[table]]\nname = "new"\n')
    data = ("--data-dir", str(tmp_path / "data"))
    daemon = start_daemon("--config", str(first), *data)
    with Client(daemon.address) as client:
        client.insert_batch(np.zeros((10, 1, 2)), {"t": 1.0, "gone": 1.0})
        client.sample_batch("t", 10)
        with pytest.raises(errors.DeadlineExceededError):
            client.sample_batch("t", 1, timeout_ms=100)
    daemon.stop()
    refused = run_replayd("serve", "--port", "0", "--config", str(second), *data)
    assert refused.returncode == os.EX_CONFIG
    assert "table 'gone' has 10 items in the store" in refused.stderr
    assert "--drop-removed-tables" in refused.stderr
    again = start_daemon("--config", str(second), *data, "--drop-removed-tables", "--reset-limiter")
    with Client(again.address) as client:
        tables = client.server_info()
        assert {name: table.current_size for name, table in tables.items()} == {"t": 10, "new": 0}
        assert len(client.sample_batch("t", 5).info.key) == 5
        client.insert(np.zeros(2), {"new": 1.0})
        said = run_replayd("info", "--address", again.address).stdout
        told = client.info()["store"]["differences"]
        assert [line[:11] for line in told] == ["table 'new'", "table 'gone"]
        assert all(f"  {line}\n" in said for line in told)
    assert "table 'new' is not in the store" in again.output()
    assert "table 'gone' is not in the configuration, so its 10 items are left behind" in again.output()
