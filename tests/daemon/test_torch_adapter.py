"""The PyTorch adapter against a real daemon. Skipped where PyTorch is missing; `scripts/check-torch` installs it."""

from __future__ import annotations

import pickle
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import replayd_client
from replayd_client import Client
from tests.daemon.harness import DaemonProcess, environment

try:
    import torch
except ImportError:
    torch = None  # type: ignore[assignment]

needs_torch = pytest.mark.skipif(torch is None, reason="PyTorch is not installed: scripts/check-torch")


@pytest.fixture
def replay(start_daemon: Any) -> Any:
    """Address of a daemon whose table gives each of 40 items of two steps once, in order; and one of ragged items."""
    fifo = "sampler=fifo,max_times_sampled=1"
    daemon: DaemonProcess = start_daemon("--table", f"t,{fifo}", "--table", f"ragged,{fifo}")
    with Client(daemon.address) as client:
        numbers = np.arange(40)
        steps = {"x": np.stack([numbers, -numbers], 1).astype(np.float32), "done": np.zeros((40, 2), bool)}
        client.insert_batch(steps, {"t": 1.0})
        with client.trajectory_writer(3) as writer:
            for length in (1, 3, 2):
                for step in range(length):
                    writer.append({"y": step + 1})
                writer.create_item("ragged", 1.0, {"y": writer.history["y"][-length:]})
                writer.end_episode()
    return daemon.address


@needs_torch
def test_batches_are_tensors_of_the_decoded_arrays(replay: str) -> None:
    dataset = replayd_client.torch.ReplayDataset(replay, "t", 8, max_batches=5)
    batches = list(dataset)
    assert [batch.data["x"][:, 0].tolist() for batch in batches] == [list(range(n, n + 8)) for n in range(0, 40, 8)]
    batch = batches[0]
    assert batch.data["x"].dtype == torch.float32
    assert batch.data["x"].shape == (8, 2)
    assert batch.data["done"].dtype == torch.bool
    assert batch.data["x"].is_contiguous()
    assert [tensor.dtype for tensor in batch.info] == [
        *(torch.uint64, torch.float64, torch.int64, torch.float64, torch.int64)
    ]
    assert batch.info.times_sampled.tolist() == [1] * 8
    assert batch.mask is None
    assert dataset.ended_by.reason == "complete"
    batch.data["x"].zero_()
    batch.info.priority.zero_()
    with Client(replay) as client:
        result = client.mutate_priorities("t", (batch.info.key, torch.ones(8)))
        assert (result.updated, len(result.missing)) == (0, 8), "items that were drawn once are gone"


@needs_torch
@pytest.mark.parametrize(("workers", "start"), [(0, None), (2, "fork"), (2, "spawn")])
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_data_loader_takes_every_item_once_whatever_its_workers(
    replay: str, workers: int, start: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", environment()["PYTHONPATH"])
    with Client(replay) as client:
        client.server_info()  # A client that is open in the parent is nothing to the workers.
        dataset = replayd_client.torch.ReplayDataset(replay, "t", 4, max_batches=10, timeout_ms=60_000)
        loader = torch.utils.data.DataLoader(
            dataset, batch_size=None, num_workers=workers, multiprocessing_context=start
        )
        batches = list(loader)
    assert len(batches) == 10
    assert sorted(x for batch in batches for x in batch.data["x"][:, 0].tolist()) == list(range(40))
    assert all(batch.info.key.shape == (4,) for batch in batches)


@needs_torch
def test_ragged_items_come_padded_or_as_lists(replay: str) -> None:
    (batch,) = replayd_client.torch.ReplayDataset(replay, "ragged", 3, max_batches=1, ragged="pad")
    assert batch.data["y"].tolist() == [[1, 0, 0], [1, 2, 3], [1, 2, 0]]
    assert batch.mask["y"].sum(1).tolist() == [1, 3, 2]
    (batch,) = replayd_client.torch.ReplayDataset(replay, "t", 40, max_batches=1, ragged="list")
    assert [tensor.shape for tensor in batch.data["x"]] == [(2,)] * 40
    assert batch.data["x"][7].tolist() == [7, -7]


@needs_torch
def test_bytes_and_str_stay_arrays_of_objects(start_daemon: Any) -> None:
    daemon = start_daemon("--table", "t,sampler=fifo,max_times_sampled=1")
    with Client(daemon.address) as client:
        for number in range(4):
            client.insert({"x": float(number), "name": f"item {number}", "raw": bytes(number)}, {"t": 1.0})
    for ragged in ("error", "pad"):
        (batch,) = replayd_client.torch.ReplayDataset(daemon.address, "t", 2, max_batches=1, ragged=ragged)
        assert isinstance(batch.data["x"], torch.Tensor)
        assert isinstance(batch.data["name"], np.ndarray)
        first = int(batch.data["x"][0, 0])
        assert batch.data["name"].tolist() == [[f"item {number}"] for number in (first, first + 1)]
        assert batch.data["raw"].tolist() == [[bytes(number)] for number in (first, first + 1)]


@needs_torch
def test_many_items_as_lists_are_no_too_wide_structure(start_daemon: Any) -> None:
    daemon = start_daemon()
    with Client(daemon.address) as client:
        table = next(iter(client.server_info()))
        client.insert_batch(np.zeros((10, 1)), {table: 1.0})
    dataset = replayd_client.torch.ReplayDataset(daemon.address, table, 700, max_batches=1, ragged="list")
    (batch,) = dataset
    assert len(batch.data) == 700


@needs_torch
def test_pinned_memory_is_asked_for_in_vain_without_cuda(replay: str) -> None:
    (batch,) = replayd_client.torch.ReplayDataset(replay, "t", 4, max_batches=1, pin_memory=True)
    assert batch.data["x"].is_pinned() == torch.cuda.is_available()


@needs_torch
def test_the_end_and_errors_are_those_of_the_client(replay: str) -> None:
    dataset = replayd_client.torch.ReplayDataset(replay, "t", 30, timeout_ms=0)
    assert [len(batch.info.key) for batch in dataset] == [30, 10]
    assert dataset.ended_by.reason == "deadline"
    with pytest.raises(replayd_client.errors.UnknownTableError):
        list(replayd_client.torch.ReplayDataset(replay, "nowhere", 30))
    with pytest.raises(ValueError, match="batch_size"):
        replayd_client.torch.ReplayDataset(replay, "t", 0)
    copy = pickle.loads(pickle.dumps(dataset))  # noqa: S301
    assert list(copy) == []


def test_the_client_imports_no_framework_and_the_adapter_says_what_is_missing() -> None:
    script = """
import sys
import replayd_client
assert "torch" not in sys.modules
sys.modules["torch"] = None
try:
    replayd_client.torch
except ImportError as error:
    print(error)
"""
    ended = subprocess.run(
        [sys.executable, "-c", script], env=environment(), capture_output=True, text=True, timeout=60, check=True
    )
    assert "needs PyTorch" in ended.stdout
