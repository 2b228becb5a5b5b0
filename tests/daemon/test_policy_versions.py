"""Writers say which version of the policy acts, and the server tells how far behind the newest what is drawn lags."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from replayd.cli import main
from replayd_client import Client, VectorItem, errors, structured
from tests.daemon.embedded import fifo

pytest_plugins = ["tests.daemon.embedded_fixtures"]

Serve = Callable[..., Any]
ClientOf = Callable[[Any], Client]
OLD, NEW = 7, 12
STEPS = 3
"""Appended while each of the two versions acts."""


def step(n: int) -> dict[str, Any]:
    return {"x": np.float32(n)}


def by_writer(client: Client) -> None:
    with client.writer(1) as writer:
        for version in (OLD, NEW):
            writer.policy_version = version
            for n in range(STEPS):
                writer.append(step(n))
                writer.create_item("t", 1, 1.0)


def by_trajectory_writer(client: Client) -> None:
    with client.trajectory_writer(num_keep_alive_refs=4, chunk_length=4) as writer:
        for version in (OLD, NEW):
            writer.policy_version = np.int64(version)
            for n in range(STEPS):
                writer.append(step(n))
                writer.create_item("t", 1.0, {"x": writer.history["x"][-1:]})
            assert writer.policy_version == version


def by_structured_writer(client: Client) -> None:
    pattern = structured.pattern_from_transform(step(0), lambda ref: {"x": ref["x"][-1:]})
    with client.structured_writer([structured.create_config(pattern, "t")]) as writer:
        for version in (OLD, NEW):
            writer.policy_version = version
            for n in range(STEPS):
                writer.append(step(n))


def by_batch_writer(client: Client) -> None:
    with client.batch_writer() as writer:
        for version in (OLD, NEW):
            writer.policy_version = version
            for n in range(STEPS):
                writer.insert({"x": np.full((1, 1), n, np.float32)}, {"t": 1.0})


def by_vector_writer(client: Client) -> None:
    with client.vector_writer(1, [VectorItem("t", window=1)], observations=()) as writer:
        for version in (OLD, NEW):
            writer.policy_version = version
            for n in range(STEPS):
                writer.append({"x": np.full(1, n, np.float32)}, np.zeros(1, bool))


WRITERS = [by_writer, by_trajectory_writer, by_structured_writer, by_batch_writer, by_vector_writer]


def staleness(client: Client) -> tuple[int, int, float]:
    """The newest version, draws that were counted, and the sum of their staleness."""
    (table,) = client.info()["tables"]
    found = table["staleness_versions"]
    return table["newest_policy_version"], sum(found["counts"]), found["sum"]


@pytest.mark.parametrize("write", WRITERS)
def test_what_a_writer_says_acts_is_what_its_next_steps_are_stale_by(
    serve: Serve, client_of: ClientOf, write: Callable[[Client], None]
) -> None:
    client = client_of(serve(fifo("t", max_times_sampled=1)))
    write(client)
    for _ in range(2 * STEPS):
        client.sample_batch("t", 1)
    assert staleness(client) == (NEW, 2 * STEPS, STEPS * (NEW - OLD))


def test_windows_over_steps_of_two_versions_are_as_stale_as_the_older(serve: Serve, client_of: ClientOf) -> None:
    client = client_of(serve(fifo("t", max_times_sampled=1)))
    with client.vector_writer(2, [VectorItem("t", window=4)], observations=()) as writer:
        for version in (OLD, NEW, NEW):
            writer.policy_version = version
            for n in range(4):
                writer.append({"x": np.full(2, n, np.float32)}, np.zeros(2, bool))
            writer.flush()
    # Of each environment a window by the old one alone, and four that begin in the chunk that began with it.
    for _ in range(10):
        client.sample_batch("t", 1)
    assert staleness(client) == (NEW, 10, 10 * (NEW - OLD))


def test_a_writer_says_no_version_unless_told(serve: Serve, client_of: ClientOf) -> None:
    client = client_of(serve(fifo("t")))
    with client.writer(1) as writer:
        assert writer.policy_version == 0
        writer.append(step(1))
        writer.create_item("t", 1, 1.0)
    client.sample_batch("t", 1)
    assert "staleness_versions" not in client.info()["tables"][0]


@pytest.mark.parametrize("version", [-1, 1 << 63, 1.0, "1", None, True])
def test_what_is_no_version_is_refused_and_the_last_one_stays(serve: Serve, client_of: ClientOf, version: Any) -> None:
    with client_of(serve(fifo("t"))).writer(1) as writer:
        writer.policy_version = 3
        with pytest.raises(errors.DataError, match="policy_version must be an integer"):
            writer.policy_version = version
        assert writer.policy_version == 3


def test_info_tells_people_the_newest_version_and_how_far_draws_lag_behind(serve: Serve, client_of: ClientOf) -> None:
    server = serve(fifo("t"), fifo("silent"))
    client = client_of(server)

    def told() -> list[str]:
        said = CliRunner().invoke(main, ["info", "--address", server.address]).stdout
        return [line.strip() for line in said.splitlines() if line.startswith("  policy")]

    assert told() == []
    by_writer(client)
    assert told() == ["policy   newest version 12"]
    client.sample_batch("t", 4)
    assert told() == ["policy   newest version 12; draws lag 5.0 behind on average"]


def test_a_new_version_leaves_an_open_step_open(serve: Serve, client_of: ClientOf) -> None:
    client = client_of(serve(fifo("t")))
    with client.trajectory_writer(num_keep_alive_refs=2) as writer:
        writer.append({"x": np.float32(1), "y": None}, partial_step=True)
        writer.policy_version = NEW
        assert writer.step_is_open
        writer.append({"y": np.float32(2)})
        writer.create_item("t", 1.0, {name: column[-1:] for name, column in writer.history.items()})
    batch = client.sample_batch("t", 1)
    assert batch.data["x"].tolist() == [[1.0]]
    assert batch.data["y"].tolist() == [[2.0]]
    assert staleness(client) == (NEW, 1, 0.0)


def test_a_closed_writer_takes_no_version(serve: Serve, client_of: ClientOf) -> None:
    with client_of(serve(fifo("t"))).writer(1) as writer:
        pass
    with pytest.raises(errors.ClosedError):
        writer.policy_version = 1
