"""What programs import, and what they get: names, samples, datasets' arguments, checkpointers."""

from __future__ import annotations

import importlib
import inspect
import os
import pickle
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from replayd.compat import reverb
from replayd.compat.reverb import pybind, structured_writer
from replayd.compat.reverb._signatures import packed, unpacked
from replayd.compat.reverb.client import Client
from replayd.compat.reverb.platform import checkpointers_lib
from replayd.compat.reverb.replay_sample import ReplaySample, SampleInfo
from replayd.compat.reverb.timestep_dataset import TimestepDataset
from replayd.compat.reverb.trajectory_dataset import TrajectoryDataset
from tests.unit.test_public_names import modules_of, unexplained

ROOT = Path(__file__).resolve().parents[2]


def run(program: str) -> str:
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'client'}"}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_an_unmodified_program_imports_reverb_once_it_is_installed() -> None:
    said = run(
        "from replayd.compat import reverb\n"
        "reverb.install(); reverb.install()\n"
        "import reverb as r\n"
        "import reverb.client, reverb.errors, reverb.item_selectors, reverb.rate_limiters, reverb.server\n"
        "import reverb.trajectory_writer, reverb.structured_writer, reverb.replay_sample, reverb.reverb_types\n"
        "import reverb.trajectory_dataset, reverb.timestep_dataset, reverb.pattern_dataset, reverb.pybind\n"
        "import reverb.platform.checkpointers_lib, reverb.selectors, reverb.structured, reverb.checkpointers\n"
        "import reverb.platform.default.checkpointers\n"
        "from reverb.platform.default import checkpointers\n"
        "assert checkpointers.default_checkpointer is r.checkpointers.default_checkpointer\n"
        "from reverb import errors, structured\n"
        "from reverb.platform import checkpointers_lib\n"
        "from reverb.trajectory_writer import TrajectoryColumn\n"
        "assert r.Table is reverb.server.Table and r.errors.ReverbError is reverb.ReverbError\n"
        "import sys; print('tensorflow' in sys.modules)\n"
    )
    assert said == "False\n"


def test_another_reverb_is_not_pushed_aside() -> None:
    run(
        "import sys, types; sys.modules['reverb'] = types.ModuleType('reverb')\n"
        "from replayd.compat import reverb\n"
        "try: reverb.install()\n"
        "except ImportError: pass\n"
        "else: raise SystemExit(1)\n"
    )


@pytest.mark.parametrize(
    "name",
    [
        "Client", "Writer", "Server", "Table", "TimestepDataset", "TrajectoryDataset", "PatternDataset",
        "TrajectoryWriter", "TrajectoryColumn", "ReplaySample", "SampleInfo", "ReverbError", "DeadlineExceededError",
        "TFClient", "selectors", "rate_limiters", "structured", "checkpointers",
    ],
)  # fmt: skip
def test_the_package_has_the_names_of_the_incumbent(name: str) -> None:
    assert hasattr(reverb, name)


@pytest.mark.parametrize("name", modules_of(reverb))
def test_everything_that_a_module_shows_is_explained(name: str) -> None:
    module = importlib.import_module(name)
    assert module.__doc__
    # Also what it has from a private module: users find it here.
    public = [each for each in getattr(module, "__all__", vars(module)) if each[0] != "_"]
    own = [thing for each in public if is_ours(thing := getattr(module, each))]
    assert [each for thing in own if inspect.isclass(thing) for each in unexplained(thing)] == []
    assert [thing.__name__ for thing in own if not inspect.getdoc(thing)] == []


def is_ours(thing: Any) -> bool:
    is_made = inspect.isclass(thing) or inspect.isfunction(thing)
    return is_made and thing.__module__.split(".")[0] in ("replayd", "replayd_client")


def test_the_errors_are_their_own() -> None:
    assert issubclass(reverb.DeadlineExceededError, reverb.ReverbError)
    assert not issubclass(reverb.ReverbError, (RuntimeError, ValueError))


def test_info_has_five_fields_with_dtypes_shapes_and_zeros() -> None:
    assert SampleInfo._fields == ("key", "probability", "table_size", "priority", "times_sampled")
    assert [dtype.name for dtype in SampleInfo.tf_dtypes()] == ["uint64", "float64", "int64", "float64", "int32"]
    assert SampleInfo.tf_shapes() == ((),) * 5
    zeros = SampleInfo.zeros()
    assert [type(value) for value in zeros] == [int, float, int, float, int]
    assert not any(zeros)
    assert len(SampleInfo._fields) == pybind.Sampler.NUM_INFO_TENSORS


def test_a_sample_is_info_and_data() -> None:
    sample = ReplaySample(info=SampleInfo.zeros(), data=[1])
    assert sample == (SampleInfo.zeros(), [1])


def test_a_client_does_not_connect_before_it_must_and_pickles_to_its_address() -> None:
    client = Client("localhost:1")
    assert client.server_address == "localhost:1"
    assert "localhost:1" in repr(client)
    assert pickle.loads(pickle.dumps(client)).server_address == "localhost:1"  # noqa: S301 - our own bytes


@pytest.mark.parametrize(
    "arguments",
    [
        {"max_sequence_length": 0},
        {"max_sequence_length": -1},
        {"max_sequence_length": 2, "chunk_length": 0},
        {"max_sequence_length": 2, "chunk_length": -1},
        {"max_sequence_length": 2, "chunk_length": 3},
        {"max_sequence_length": 2, "max_in_flight_items": 0},
        {"max_sequence_length": 2, "max_in_flight_items": -1},
    ],
)
def test_the_arguments_of_a_writer_are_checked(arguments: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        Client("localhost:1").writer(**arguments)


@pytest.mark.parametrize("keep", [0, -1])
def test_a_trajectory_writer_keeps_at_least_one_step(keep: int) -> None:
    with pytest.raises(ValueError):
        Client("localhost:1").trajectory_writer(keep)


def test_a_structured_writer_needs_a_config() -> None:
    with pytest.raises(ValueError):
        Client("localhost:1").structured_writer([])


def test_an_insert_needs_a_table() -> None:
    with pytest.raises(ValueError):
        Client("localhost:1").insert([1], {})


@pytest.mark.parametrize("number", [0, -1])
def test_at_least_one_sample_is_asked_for(number: int) -> None:
    with pytest.raises(ValueError):
        next(Client("localhost:1").sample("table", number))


@pytest.mark.parametrize("kind", [TrajectoryDataset, TimestepDataset])
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_in_flight_samples_per_worker": 0}, "positive integer"),
        ({"max_in_flight_samples_per_worker": -1}, "positive integer"),
        ({"num_workers_per_iterator": 0}, "num_workers_per_iterator"),
        ({"num_workers_per_iterator": -2}, "num_workers_per_iterator"),
        ({"max_samples_per_stream": 0}, "max_samples_per_stream"),
        ({"max_samples_per_stream": -2}, "max_samples_per_stream"),
        ({"max_samples": 0}, "max_samples"),
        ({"max_samples": -2}, "max_samples"),
        ({"rate_limiter_timeout_ms": -2}, "must be an integer >= -1"),
        ({"dtypes": {"a": np.float32}, "shapes": {"b": ()}}, "structure"),
        ({"dtypes": [np.float32, np.float32], "shapes": [()]}, "structure"),
        ({"dtypes": {"a": np.float32}, "shapes": {"a": (), "b": ()}}, "structure"),
        ({"dtypes": "no dtype"}, "dtype"),
        ({"dtypes": None}, "dtype"),
        ({"shapes": ((),)}, "structure"),
        ({"shapes": 3}, "structure"),
    ],
)
def test_the_arguments_of_a_dataset_are_checked(kind: Any, changes: dict[str, Any], message: str) -> None:
    arguments = {
        "server_address": "localhost:1",
        "table": "table",
        "dtypes": np.float32,
        "shapes": (),
        "max_in_flight_samples_per_worker": 1,
    }
    kind(**arguments)
    with pytest.raises(ValueError, match=message):
        kind(**{**arguments, **changes})


def test_a_dataset_tells_what_its_elements_are() -> None:
    dataset = TrajectoryDataset("localhost:1", "table", {"a": [np.int64, "string"]}, {"a": [(None,), (2, 3)]}, 1)
    spec = dataset.element_spec
    assert spec.data == {"a": (reverb.TensorSpec((None,), np.int64), reverb.TensorSpec((2, 3), "string"))}
    assert spec.info.key == reverb.TensorSpec((), np.uint64)
    assert spec.info.times_sampled == reverb.TensorSpec((), np.int32)


class ForeignSpec:
    """The spec of a TensorFlow that is not here."""

    def __init__(self, shape: Any, dtype: Any, name: str | None = None) -> None:
        self.shape, self.dtype, self.name = shape, dtype, name


def test_specs_are_tensorflows_where_the_program_has_imported_it(monkeypatch: pytest.MonkeyPatch) -> None:
    foreign = types.ModuleType("tensorflow")
    foreign.TensorSpec = ForeignSpec  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "tensorflow", foreign)
    dataset = TrajectoryDataset("localhost:1", "table", {"a": np.int64}, {"a": (None, 2)}, 1)
    spec = dataset.element_spec
    step = structured_writer.create_reference_step(None)
    inferred = structured_writer.infer_signature(
        [structured_writer.create_config(step[-2:], "table")], np.zeros(3, np.int8)
    )
    travelled = unpacked(packed({"table": reverb.TensorSpec((None,), np.int64)}))["table"]
    for made, shape in ((spec.data["a"], (None, 2)), (spec.info.key, ()), (inferred, (2, 3)), (travelled, (None,))):
        assert isinstance(made, ForeignSpec)
        assert made.shape == shape


def test_checkpointers_say_where_checkpoints_are(tmp_path: Path) -> None:
    checkpointer = checkpointers_lib.DefaultCheckpointer(path=str(tmp_path), group="", fallback_checkpoint_path=None)
    assert checkpointer.path == str(tmp_path)
    place = checkpointer.internal_checkpointer()
    assert isinstance(place, pybind.Checkpointer)
    assert (place.path, place.group, place.fallback_checkpoint_path) == (str(tmp_path), "", None)
    for made in (checkpointers_lib.TempDirCheckpointer(), checkpointers_lib.default_checkpointer()):
        assert isinstance(made.internal_checkpointer(), pybind.Checkpointer)
        assert isinstance(made, checkpointers_lib.CheckpointerBase)
        Path(made.path).rmdir()


def test_a_program_may_have_a_checkpointer_of_its_own(tmp_path: Path) -> None:
    class Own(checkpointers_lib.CheckpointerBase):
        def internal_checkpointer(self) -> pybind.Checkpointer:
            return pybind.create_default_checkpointer(str(tmp_path), "", None)

    with pytest.raises(TypeError):
        checkpointers_lib.CheckpointerBase()  # type: ignore[abstract]
    reverb.Server([reverb.Table.queue("queue", 1)], checkpointer=Own()).stop()


def test_options_of_chunks_are_compared_by_what_they_say() -> None:
    constant, tuned = pybind.ConstantChunkerOptions, pybind.AutoTunedChunkerOptions
    assert constant(1, 2) == constant(max_chunk_length=1, num_keep_alive_refs=2)
    assert len({constant(1, 2), constant(2, 2), tuned(2, 1.0), tuned(2, 2.0), tuned(2, 1.0)}) == 4
    assert all(issubclass(each, pybind.ChunkerOptions) for each in (constant, tuned))


@pytest.mark.parametrize("is_fallback", [True, False])
def test_a_checkpoint_that_cannot_be_read_stops_a_server(tmp_path: Path, is_fallback: bool) -> None:
    saved = tmp_path / "2020-01-01"
    saved.mkdir()
    (saved / "DONE").touch()
    arguments = (
        {"path": str(tmp_path / "none"), "fallback_checkpoint_path": str(saved)}
        if is_fallback
        else {"path": str(tmp_path)}
    )
    checkpointer = checkpointers_lib.DefaultCheckpointer(**arguments)
    with pytest.raises(ValueError, match="Reverb"):
        reverb.Server([reverb.Table.queue("queue", 1)], checkpointer=checkpointer)
