"""Tables' signatures: a nest of specs, as a text that travels, and as what a trajectory is compared with.

The incumbent compares by position, not by path, and only in the client; the server takes anything. Bounds of a spec are
kept and not checked.
"""

from __future__ import annotations

import json
from collections import namedtuple
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from replayd.compat.reverb._nests import Path, flatten_with_path, is_nested
from replayd.compat.reverb._values import STRING, numpy_dtype, shape_text, tf_name
from replayd.compat.reverb.reverb_types import shape_of, shapes_fit, spec_of


class ShownColumn(NamedTuple):
    """What a trajectory has in one column."""

    path: Path
    dtype: np.dtype[Any]
    shape: tuple[int, ...]


def check_signature(nest: Any) -> Any:
    """The nest, or None for an empty one. Raises ValueError for a leaf that is no spec."""
    leaves = flatten_with_path(nest)
    if nest is None or not leaves:
        return None
    for path, leaf in leaves:
        if not hasattr(leaf, "shape") or not hasattr(leaf, "dtype"):
            raise ValueError(f"Unsupported signature spec: {leaf} at {path}; a spec has shape and dtype")
        numpy_dtype(leaf.dtype)
        shape_of(leaf)
    return nest


def check_trajectory(table: str, signature: Any, columns: Sequence[ShownColumn]) -> None:
    """Raises ValueError unless the columns fit the signature, one after the other."""
    _check(table, signature, columns, of_steps=False)


def check_steps(table: str, signature: Any, columns: Sequence[ShownColumn]) -> None:
    """As `check_trajectory`, for columns [T, *shape] of a writer of whole steps: a spec may also be that of a step."""
    _check(table, signature, columns, of_steps=True)


def packed(signatures: Mapping[str, Any]) -> bytes:
    """Signatures by table as JSON."""
    return json.dumps({table: _pack(nest) for table, nest in signatures.items()}).encode()


def unpacked(text: bytes) -> dict[str, Any]:
    """What `packed` was given, with a TensorSpec for each spec. Raises ValueError for any other text."""
    try:
        return {table: _unpack(node, ()) for table, node in json.loads(text).items()}
    except (AttributeError, KeyError, TypeError, RecursionError) as error:
        raise ValueError("the server's signatures cannot be read") from error


def as_sent(signature: Any) -> Any:
    """The signature as others have it, who read it from the server."""
    return _unpack(_pack(signature), ())


def _check(table: str, signature: Any, columns: Sequence[ShownColumn], *, of_steps: bool) -> None:
    specs = flatten_with_path(signature)
    if len(specs) != len(columns):
        raise _mismatch(
            table,
            f"The trajectory has {len(columns)} columns but the table signature has {len(specs)} columns.",
            specs,
            columns,
        )
    for number, ((_, spec), column) in enumerate(zip(specs, columns, strict=True)):
        wanted = shape_of(spec)
        fits = shapes_fit(wanted, column.shape) or (of_steps and shapes_fit(wanted, column.shape[1:]))
        if numpy_dtype(spec.dtype) != column.dtype or not fits:
            what = (
                f"The table expects column {number} to be a {_tensor(spec.dtype, wanted)} tensor but got a "
                f"{_tensor(column.dtype, column.shape)} tensor."
            )
            raise _mismatch(table, what, specs, columns)


def _mismatch(table: str, what: str, specs: Sequence[tuple[Path, Any]], columns: Sequence[ShownColumn]) -> ValueError:
    wanted = ", ".join(f"{path}: {_tensor(spec.dtype, shape_of(spec))}" for path, spec in specs)
    got = ", ".join(f"{column.path}: {_tensor(column.dtype, column.shape)}" for column in columns)
    return ValueError(
        f"Unable to create item in table '{table}' since the provided trajectory is inconsistent with the table "
        f"signature. {what} The table signature is: {wanted}. The provided trajectory has: {got}."
    )


def _tensor(dtype: Any, shape: Sequence[Any] | None) -> str:
    return f"{tf_name(numpy_dtype(dtype))} {shape_text(shape)}"


def _pack(nest: Any) -> Any:
    if isinstance(nest, Mapping):
        return {"kind": "dict", "of": [[key, _pack(child)] for key, child in nest.items()]}
    if is_nested(nest):
        kind: dict[str, Any] = {"kind": "list" if isinstance(nest, list) else "tuple"}
        if hasattr(nest, "_fields"):
            kind = {"kind": "namedtuple", "name": type(nest).__name__, "fields": list(nest._fields)}
        return {**kind, "of": [_pack(child) for child in nest]}
    dtype = numpy_dtype(nest.dtype)
    return {
        "kind": "spec",
        "shape": shape_of(nest),
        "dtype": "string" if dtype == STRING else dtype.name,
        "name": getattr(nest, "name", None),
    }


def _unpack(node: Any, path: tuple[str, ...]) -> Any:
    kind = node["kind"]
    if kind == "spec":
        # The path is part of the name, as the incumbent has it.
        name = "/".join((*path, *([node["name"]] if node["name"] else []))) or None
        return spec_of(None if node["shape"] is None else tuple(node["shape"]), node["dtype"], name)
    if kind == "dict":
        return {key: _unpack(child, (*path, str(key))) for key, child in node["of"]}
    names = node["fields"] if kind == "namedtuple" else range(len(node["of"]))
    children = [_unpack(child, (*path, str(name))) for name, child in zip(names, node["of"], strict=True)]
    if kind == "namedtuple":
        return namedtuple(node["name"], node["fields"])(*children)
    return children if kind == "list" else tuple(children)
