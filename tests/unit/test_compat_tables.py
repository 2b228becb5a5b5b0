"""Tables that no server has yet, and the servers that would not start."""

from __future__ import annotations

import copy
import dataclasses
import pickle
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from replayd.compat import reverb
from replayd.compat.reverb import reverb_types, server
from replayd.compat.reverb.server import Server, Table


def table(name: str = "table", **changed: Any) -> Table:
    settings = {
        "sampler": reverb.selectors.Prioritized(0.5),
        "remover": reverb.selectors.Fifo(),
        "max_size": 100,
        "rate_limiter": reverb.rate_limiters.MinSize(3),
    }
    return Table(name, **{**settings, **changed})


def test_a_table_tells_its_configuration() -> None:
    info = table(max_times_sampled=7).info
    assert info.name == "table"
    assert info.max_size == 100
    assert info.max_times_sampled == 7
    assert info.sampler_options.prioritized.priority_exponent == 0.5
    assert info.remover_options.fifo
    assert info.rate_limiter_info.min_size_to_sample == 3
    assert info.rate_limiter_info.samples_per_insert == 1.0
    assert info.rate_limiter_info.min_diff == -sys.float_info.max
    assert info.rate_limiter_info.max_diff == sys.float_info.max
    assert info.current_size == info.num_episodes == info.num_unique_samples == 0
    assert info.signature is None


@pytest.mark.parametrize(
    ("selector", "field", "is_deterministic"),
    [
        (reverb.selectors.Fifo(), "fifo", True),
        (reverb.selectors.Lifo(), "lifo", True),
        (reverb.selectors.Uniform(), "uniform", False),
        (reverb.selectors.MinHeap(), "heap", True),
        (reverb.selectors.MaxHeap(), "heap", True),
        (reverb.selectors.Prioritized(1.0), "prioritized", False),
    ],
)
def test_options_answer_as_protocol_buffers_do(selector: Any, field: str, is_deterministic: bool) -> None:
    options = table(sampler=selector).info.sampler_options
    fields = ["fifo", "uniform", "prioritized", "heap", "lifo"]
    assert [name for name in fields if options.HasField(name)] == [field]
    assert options.WhichOneof("distribution") == field
    assert options.is_deterministic is is_deterministic
    assert field in str(options)


def test_the_two_heaps_tell_their_direction() -> None:
    info = table(sampler=reverb.selectors.MinHeap(), remover=reverb.selectors.MaxHeap()).info
    assert info.sampler_options.heap.min_heap
    assert not info.remover_options.heap.min_heap


def test_a_message_has_no_other_fields() -> None:
    options = table().info.sampler_options
    with pytest.raises(ValueError, match='has no "exponent" field'):
        options.HasField("exponent")
    with pytest.raises(ValueError):
        options.WhichOneof("other")
    with pytest.raises(AttributeError):
        options.exponent  # noqa: B018


def test_the_info_is_a_record_that_can_be_changed_and_copied() -> None:
    info = table().info
    assert [field.name for field in dataclasses.fields(info)][:3] == ["name", "sampler_options", "remover_options"]
    for other in (copy.deepcopy(info), pickle.loads(pickle.dumps(info))):  # noqa: S301 - our own bytes
        assert other == info
        other.current_size = 5
        assert other != info
    assert "sampler_options=prioritized {\n  priority_exponent: " in str(info)


def test_an_empty_name_is_refused() -> None:
    with pytest.raises(ValueError, match="name must be nonempty"):
        table("")


@pytest.mark.parametrize("size", [0, -1])
def test_a_size_below_one_is_refused(size: int) -> None:
    with pytest.raises(ValueError, match=rf"max_size \({size}\) must be a positive integer"):
        table(max_size=size)


@pytest.mark.parametrize("changed", [{"max_size": 2**31}, {"max_times_sampled": 2**31}, {"max_size": 1.5}])
def test_numbers_that_are_no_32_bit_integers_are_a_type_error(changed: dict[str, Any]) -> None:
    with pytest.raises(TypeError):
        table(**changed)


def test_a_negative_limit_of_samples_is_none() -> None:
    assert table(max_times_sampled=-1).info.max_times_sampled == -1


def test_one_selector_may_be_given_twice() -> None:
    fifo = reverb.selectors.Fifo()
    assert table(sampler=fifo, remover=fifo).info.remover_options.fifo


def test_a_limiter_belongs_to_one_table() -> None:
    limiter = reverb.rate_limiters.MinSize(1)
    table(rate_limiter=limiter)
    with pytest.raises(ValueError):
        table("other", rate_limiter=limiter)


class Extensions(server.TableExtensionBase):
    """Says of which tables it was asked for extensions."""

    def __init__(self, *extensions: Any) -> None:
        self._extensions = extensions
        self.asked: list[str] = []

    def build_internal_extensions(self, table_name: str) -> Sequence[Any]:
        self.asked.append(table_name)
        return self._extensions


def test_what_makes_no_extensions_is_asked_for_them() -> None:
    made = Extensions()
    table("one", extensions=[made]).replace(name="two")
    Table.queue("three", 1, [made])
    assert made.asked == ["one", "two", "three"]


def test_extensions_are_refused_rather_than_ignored() -> None:
    with pytest.raises(ValueError, match="extensions"):
        table(extensions=[Extensions(), Extensions(object())])
    with pytest.raises(AttributeError):
        table(extensions=[object()])


def test_what_makes_extensions_must_say_which() -> None:
    class Nothing(server.TableExtensionBase):
        pass

    with pytest.raises(TypeError):
        Nothing()  # type: ignore[abstract]


@pytest.mark.parametrize(("make", "field"), [(Table.queue, "fifo"), (Table.stack, "lifo")])
def test_a_queue_and_a_stack_are_preset(make: Any, field: str) -> None:
    info = make("preset", 10).info
    assert info.sampler_options.HasField(field)
    assert info.remover_options.HasField(field)
    assert info.max_size == 10
    assert info.max_times_sampled == 1
    limits = info.rate_limiter_info
    assert (limits.samples_per_insert, limits.min_size_to_sample) == (1.0, 1)
    assert (limits.min_diff, limits.max_diff) == (0.0, 10.0)


@pytest.mark.parametrize("make", [Table.queue, Table.stack])
def test_a_preset_takes_a_signature(make: Any) -> None:
    spec = reverb.TensorSpec((None, 3), np.float32)
    assert make("preset", max_size=10, extensions=(), signature=spec).info.signature == spec


class ForeignSpec:
    """A spec of a library that is not here."""

    def __init__(self, shape: Any, dtype: Any, name: str | None = None) -> None:
        self.shape, self.dtype, self.name = shape, dtype, name


@pytest.mark.parametrize(
    "signature",
    [
        reverb.TensorSpec((), np.int64),
        {"a": {"b": reverb.TensorSpec((3, 3), np.float32)}, "c": reverb.TensorSpec((), np.int64)},
        [reverb.TensorSpec((None,), "string")],
        ForeignSpec((2,), "float32"),
        np.zeros((2, 3), np.uint8),
        reverb.TensorSpec(None, np.bool_),
    ],
)
def test_a_signature_is_a_nest_of_anything_with_shape_and_dtype(signature: Any) -> None:
    assert table(signature=signature).info.signature is signature


@pytest.mark.parametrize("signature", [{"a": 1}, ["float32"], 3, {"a": None}])
def test_a_signature_of_other_leaves_is_refused(signature: Any) -> None:
    with pytest.raises(ValueError, match="Unsupported signature spec"):
        table(signature=signature)


@pytest.mark.parametrize("signature", [{}, [], None])
def test_an_empty_signature_is_none(signature: Any) -> None:
    assert table(signature=signature).info.signature is None


def test_specs_are_equal_to_those_of_other_libraries() -> None:
    assert reverb.TensorSpec((2,), np.float32, "name") == ForeignSpec((2,), "float32")
    assert reverb.TensorSpec((2,), np.float32) != ForeignSpec((3,), "float32")
    assert reverb.TensorSpec((2,), np.float32) != ForeignSpec((2,), "float64")
    assert reverb.TensorSpec((2,), np.float32) != 3


def test_specs_know_what_fits_them() -> None:
    spec = reverb.TensorSpec((None, 2), np.float32)
    assert spec.rank == 2
    assert spec.is_compatible_with(np.zeros((5, 2), np.float32))
    assert not spec.is_compatible_with(np.zeros((5, 3), np.float32))
    assert not spec.is_compatible_with(np.zeros((5, 2), np.float64))
    assert reverb.TensorSpec(None, np.float32).is_compatible_with(np.zeros((1, 2, 3), np.float32))


def test_a_table_is_replaced_by_one_of_the_same_configuration() -> None:
    spec = reverb.TensorSpec((), np.int64)
    limiter = reverb.rate_limiters.SampleToInsertRatio(2.0, 3, 4.0)
    first = table(rate_limiter=limiter, max_times_sampled=4, signature=spec)
    assert first.replace().info == first.info


@pytest.mark.parametrize(
    ("changes", "path", "value"),
    [
        ({"name": "new"}, "name", "new"),
        ({"max_size": 7}, "max_size", 7),
        ({"max_times_sampled": 2}, "max_times_sampled", 2),
        ({"sampler": reverb.selectors.Uniform()}, "sampler_options.uniform", True),
        ({"remover": reverb.selectors.Lifo()}, "remover_options.lifo", True),
        ({"rate_limiter": reverb.rate_limiters.MinSize(9)}, "rate_limiter_info.min_size_to_sample", 9),
        ({"signature": reverb.TensorSpec((1,), np.int8)}, "signature", reverb.TensorSpec((1,), np.int8)),
    ],
)
def test_a_replacement_changes_what_is_said(changes: dict[str, Any], path: str, value: Any) -> None:
    found: Any = table().replace(**changes).info
    for name in path.split("."):
        found = getattr(found, name)
    assert found == value


def test_a_table_without_a_server_tells_what_its_limiter_would_do() -> None:
    queue = Table.queue("queue", 3)
    assert queue.can_insert(3)
    assert not queue.can_insert(4)
    assert not queue.can_sample(1)
    for number in (0, -1):
        with pytest.raises(ValueError):
            queue.can_sample(number)
    with pytest.raises(TypeError):
        queue.can_insert(1.5)  # type: ignore[arg-type]


def test_a_table_describes_itself() -> None:
    text = repr(table(max_size=7))
    assert text.startswith("Table(sampler=PrioritizedSelector(priority_exponent=")
    assert "max_size=7, max_times_sampled=0, name=table, rate_limiter=RateLimiter(samples_per_insert=" in text
    assert text.endswith("signature=nullptr)")


def test_a_server_needs_tables() -> None:
    with pytest.raises(ValueError):
        Server([])
    with pytest.raises(ValueError):
        Server(None)


def test_tables_of_one_name_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match="same name: twin, double$"):
        Server([table(name) for name in ("twin", "other", "double", "twin", "double")])


def test_the_kinds_of_selectors_have_names_of_types() -> None:
    assert isinstance(reverb.selectors.MaxHeap(), reverb_types.Heap)
    for name in ("Fifo", "Lifo", "Uniform", "Prioritized"):
        assert getattr(reverb_types, name) is getattr(reverb.selectors, name)
    assert isinstance(reverb.selectors.Fifo(), reverb_types.SelectorType)


@pytest.mark.parametrize("port", [-1, 65_536])
def test_a_port_that_is_none_is_refused(port: int) -> None:
    with pytest.raises(ValueError):
        Server([table()], port=port)


def test_the_name_of_the_registry_is_taken() -> None:
    with pytest.raises(ValueError):
        table("~reverb")
