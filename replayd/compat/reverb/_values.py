"""Values as the incumbent takes them, as arrays; dtypes under TensorFlow's names. Knows no paths, no columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from replayd_client.columns import DTYPES

STRING: Final = np.dtype(object)
"""The dtype of a string column on this side: objects that are `bytes`."""
_STORABLE: Final = frozenset(DTYPES.values())
_TF_NAMES: Final = {"float16": "half", "float32": "float", "float64": "double", "object": "string"}


def as_array(value: Any) -> NDArray[Any]:
    """The value as an array of a dtype that can be stored, or of objects that are `bytes`.

    Python's numbers as numpy makes them arrays, `str` as UTF-8. Raises TypeError for everything else.
    """
    if isinstance(value, (str, bytes)):
        return _strings(np.array(value, object))
    try:
        array: NDArray[Any] = np.asarray(value)
    except ValueError as error:
        raise TypeError(f"{type(value).__name__} cannot be made a tensor: {error}") from error
    if array.dtype in _STORABLE:
        return array
    if array.dtype.kind in "SUO":
        return _strings(array)
    if array.dtype.name not in DTYPES:  # A name is slow; what has another byte order gets here.
        raise TypeError(f"a {type(value).__name__} of dtype {array.dtype} cannot be made a tensor")
    return array


def numpy_dtype(dtype: Any) -> np.dtype[Any]:
    """numpy's dtype for numpy's, TensorFlow's or a name; STRING for strings. Raises ValueError for what is none."""
    found = getattr(dtype, "as_numpy_dtype", dtype)
    if found is None:
        raise ValueError("None is not a dtype")
    if found in (str, bytes, object, "string", "str", "bytes", "object"):
        return STRING
    try:
        made: np.dtype[Any] = np.dtype(found)
    except TypeError:
        raise ValueError(f"{dtype!r} is not a dtype") from None
    if made.kind in "SUO":
        return STRING
    if made.name not in DTYPES:
        raise ValueError(f"tensors of dtype {dtype!r} cannot be stored")
    return made


def tf_name(dtype: np.dtype[Any]) -> str:
    """TensorFlow's word for a dtype, which is in the texts of errors: `double` for float64."""
    return _TF_NAMES.get(dtype.name, dtype.name)


def shape_text(shape: Sequence[Any] | None) -> str:
    """A shape as TensorFlow writes it: `[2,?]`."""
    if shape is None:
        return "<unknown>"
    return f"[{','.join('?' if size is None else str(size) for size in shape)}]"


def _strings(array: NDArray[Any]) -> NDArray[Any]:
    found = np.empty(array.size, object)
    for place, text in enumerate(array.ravel().tolist()):
        if not isinstance(text, (str, bytes)):
            raise TypeError(
                f"a {type(text).__name__} in an array of objects cannot be made a tensor; only str and bytes"
            )
        found[place] = text.encode() if isinstance(text, str) else text
    return found.reshape(array.shape)
