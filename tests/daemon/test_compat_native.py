"""Programs of both kinds at one table: what either writes the other reads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import replayd
from replayd.compat import reverb
from replayd.compat.reverb.trajectory_dataset import TrajectoryDataset
from tests.daemon.compat import by_priority, data
from tests.daemon.compat import fifo as reverb_fifo
from tests.daemon.embedded import fifo

pytest_plugins = ["tests.daemon.embedded_fixtures"]

SIGNATURE = {"b": {"c": replayd.TensorSpec((None,), np.int64)}, "a": replayd.TensorSpec((2,), np.float32)}


Users = tuple[reverb.Client, replayd.Client]


def users(serve: Callable[..., replayd.Server], client_of: Callable[..., replayd.Client]) -> Users:
    """A client of either kind of a server that is replayd's own."""
    server = serve(fifo("table", signature=SIGNATURE), fifo("any"))
    return reverb.Client(f"localhost:{server.port}"), client_of(server)


def write(client: Any) -> None:
    with client.trajectory_writer(3) as writer:
        for step in range(3):
            writer.append({"b": {"c": step}, "a": np.float32(step)})
        history = writer.history
        writer.create_item("table", 2.0, {"b": {"c": history["b"]["c"][[2, 0]]}, "a": history["a"][-2:]})


def test_what_programs_of_reverb_write_has_its_paths_for_others(serve: Any, client_of: Any) -> None:
    theirs, ours = users(serve, client_of)
    write(theirs)
    sample = ours.sample_batch("table", 1)
    assert sample.data["b"]["c"].tolist() == [[2, 0]]
    assert sample.data["a"].tolist() == [[1.0, 2.0]]
    assert sample.info.priority.tolist() == [2.0]


def test_what_others_write_is_read_by_programs_of_reverb(serve: Any, client_of: Any) -> None:
    theirs, ours = users(serve, client_of)
    write(ours)
    sample = next(theirs.sample("table", emit_timesteps=False, unpack_as_table_signature=True))
    assert sample.data["b"]["c"].tolist() == [2, 0]
    assert sample.info.priority == 2.0
    write(ours)
    dataset = TrajectoryDataset.from_table_signature(theirs.server_address, "table", 1, rate_limiter_timeout_ms=20)
    assert [sample.data["a"].tolist() for sample in dataset.take(1)] == [[1.0, 2.0]]


def test_the_signature_of_another_server_is_compared_before_anything_is_sent(serve: Any, client_of: Any) -> None:
    theirs, _ = users(serve, client_of)
    assert theirs.server_info()["table"].signature["a"].dtype == "float32"
    with theirs.trajectory_writer(1) as writer:
        writer.append({"x": 1.0})
        with pytest.raises(ValueError, match="table"):
            writer.create_item("table", 1.0, {"x": writer.history["x"][:]})
    assert theirs.server_info()["table"].current_size == 0


def test_another_server_takes_no_negative_priorities_and_says_so_at_once(serve: Any, client_of: Any) -> None:
    theirs, _ = users(serve, client_of)
    with theirs.trajectory_writer(1) as writer:
        writer.append(1)
        with pytest.raises(ValueError):
            writer.create_item("any", -1.0, writer.history[:])
        writer.create_item("any", 1.0, writer.history[:])
    assert data(theirs, "any") == [[[1]]]


def test_strings_are_columns_of_bytes_to_others(serve: Any, client_of: Any) -> None:
    theirs, ours = users(serve, client_of)
    theirs.insert({"s": "text"}, {"any": 1.0})
    assert ours.sample_batch("any", 1).data["s"].tolist() == [[b"text"]]
    ours.reset("any")
    ours.insert({"s": "größe"}, {"any": 1.0})
    [[step]] = theirs.sample("any", 1)
    assert step.data[0].item() == "größe".encode()


def test_cells_of_several_columns_are_one_column_to_others(serve: Any, client_of: Any) -> None:
    theirs, ours = users(serve, client_of)
    with theirs.trajectory_writer(3) as writer:
        for step in range(3):
            writer.append({"a": step, "b": 10 + step})
        cells = [*writer.history["a"][:2], *writer.history["b"][1:]]
        writer.create_item("any", 1.0, {"x": reverb.TrajectoryColumn(cells)})
    assert ours.sample_batch("any", 1).data["x"].tolist() == [[0, 1, 11, 12]]


@pytest.mark.parametrize("is_kept", [True, False])
def test_priorities_of_reverbs_tables_are_other_numbers_of_the_same_order_to_others_unless_prioritized(
    client_of: Any, is_kept: bool
) -> None:
    sampler = reverb.selectors.Prioritized(1.0) if is_kept else reverb.selectors.MaxHeap()
    server = reverb.Server([by_priority("table", sampler)])
    theirs, ours = server.localhost_client(), client_of(f"localhost:{server.port}")
    given = [0.0, 1e-3, 1.0, 7.0, 1e12] if is_kept else [-1e12, -7.0, -1e-3, 0.0, 1e-3, 1.0, 7.0, 1e12]
    for priority in given:
        theirs.insert(1, {"table": priority})
    seen = [item.info.priority for item in ours.peek("table", oldest=10)]
    assert (seen == given) == is_kept
    assert seen == sorted(seen)
    assert len(set(seen)) == len(given)
    server.stop()


def test_a_table_of_a_server_that_ended_says_how_it_is_served_again(serve: Any) -> None:
    table = fifo("table")
    serve(table).stop()
    with pytest.raises(ValueError, match=r"table; Table\.replace\(\)"):
        serve(table)
    serve(table.replace())


def test_a_server_of_reverb_has_its_tables_and_one_more_for_others(client_of: Any) -> None:
    server = reverb.Server([reverb_fifo("table", signature=reverb.TensorSpec((None,), np.int64))])
    ours = client_of(f"localhost:{server.port}")
    assert set(ours.server_info()) == {"table", "~reverb"}
    ours.insert({"any": 1.5}, {"table": 1.0})
    assert data(server.localhost_client(), "table") == [[[1.5]]]
    server.stop()
