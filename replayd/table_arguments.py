"""What a table can be made of. A wrong object would be noticed only with the first item: by the loop, which it would
end.
"""

from __future__ import annotations

import warnings
from typing import Any

from replayd.columns import CONTROL_CHARACTERS
from replayd.limits import NAME_BYTES
from replayd.rate_limiters import RateLimiter

_SELECTOR_METHODS = ("add", "remove", "update", "clear", "draw", "describe", "validate")


def check_arguments(name: Any, sampler: Any, remover: Any, max_size: int, rate_limiter: Any) -> None:
    """Raise TypeError for what is of a wrong kind, ValueError for what makes no sense; warn of what is of no use."""
    if not isinstance(name, str):
        raise TypeError(f"a table's name must be a string, got {name!r}")
    for role, selector in (("sampler", sampler), ("remover", remover)):
        if isinstance(selector, type) or not all(hasattr(selector, method) for method in _SELECTOR_METHODS):
            hint = f"; did you mean {selector.__name__}()?" if isinstance(selector, type) else ""
            raise TypeError(f"table {name!r}: {role} must be a selector object, got {selector!r}{hint}")
    if not isinstance(rate_limiter, RateLimiter):
        raise TypeError(f"table {name!r}: rate_limiter must be a rate limiter object, got {rate_limiter!r}")
    if not name or len(name.encode()) > NAME_BYTES.value or CONTROL_CHARACTERS.search(name):
        raise ValueError(f"a table's name has 1 to {NAME_BYTES.value} bytes, no control characters; got {name!r}")
    if max_size < 1:
        raise ValueError(f"table {name!r}: max_size must be at least 1, got {max_size}")
    if sampler is remover:
        raise ValueError(f"table {name!r}: sampler and remover must be two objects")
    if max_size < rate_limiter.min_size_to_sample:
        warnings.warn(
            f"table {name!r}: with max_size {max_size} below min_size_to_sample {rate_limiter.min_size_to_sample} "
            f"nothing can ever be sampled",
            stacklevel=3,
        )
