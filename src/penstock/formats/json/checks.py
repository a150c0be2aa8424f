"""Fast checks of JSON Schema conditions on whole columns.

Values that may fail are read again by the slow reader (`plain.py`), which decides exactly.

Source: JSON Schema 2020-12, "Validation".
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.formats.json.shapes import Check

Flags = npt.NDArray[np.bool_]

_EXACT_MAX: Final = 1e15
_COMPARISONS: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "minimum": operator.ge,
    "maximum": operator.le,
    "exclusiveMinimum": operator.gt,
    "exclusiveMaximum": operator.lt,
    "minLength": operator.ge,
    "maxLength": operator.le,
    "minItems": operator.ge,
    "maxItems": operator.le,
}


def doubtful(checks: Sequence[Check], values: pa.Array, words: npt.NDArray[np.int64]) -> Flags:
    """Return a flag for each value: whether it may fail a check. The flags of nulls are undefined.

    Args:
        words: the values as the kernel wrote them, in 64 bits each.
    """
    if values.type == pa.string():
        return _doubtful(checks, values, _text_holds)
    numbers = words.view(np.float64) if values.type == pa.float64() else words
    return _doubtful(checks, numbers, _number_holds)


def doubtful_sizes(checks: Sequence[Check], sizes: npt.NDArray[np.int64]) -> Flags:
    """Return a flag for each array size: whether an array of this size may fail a check."""
    return _doubtful(checks, sizes, _number_holds)


def _doubtful(checks: Sequence[Check], values: Any, holds: Callable[[Any, Check], Flags]) -> Flags:
    made = np.zeros(len(values), np.bool_)
    for check in checks:
        made |= ~holds(values, check)
    return made


def _text_holds(values: pa.Array, check: Check) -> Flags:
    if check.keyword == "enum":
        found = pc.is_in(values, value_set=pa.array(check.bound, pa.string()))
        return np.asarray(found.to_numpy(zero_copy_only=False), np.bool_)
    sizes = pc.utf8_length(values).fill_null(0).to_numpy(zero_copy_only=False)
    return np.asarray(_COMPARISONS[check.keyword](sizes, check.bound), np.bool_)


def _number_holds(values: Any, check: Check) -> Flags:
    if check.keyword == "enum":
        return np.isin(values, np.array(check.bound))
    if check.keyword == "multipleOf":
        return _is_multiple(values, check.bound)
    if isinstance(check.bound, float):
        values = values.astype(np.float64)
    return np.asarray(_COMPARISONS[check.keyword](values, check.bound), np.bool_)


def _is_multiple(values: Any, step: int | float) -> Flags:
    """Return a flag for each value: whether it is certainly a multiple of `step`.

    A value is, if it is the nearest double of a multiple. All flags are False if `step` has more
    than 15 digits.
    """
    if values.dtype == np.int64 and isinstance(step, int):
        return np.asarray(values % step == 0, np.bool_)
    exact = Decimal(str(step))
    places = max(0, -int(exact.as_tuple().exponent))
    if places > 15 or abs(exact.scaleb(places)) > _EXACT_MAX:
        return np.zeros(len(values), np.bool_)
    unscaled = float(exact.scaleb(places))
    wanted = values.astype(np.float64)
    multiple = np.rint(wanted / step) * unscaled
    return np.asarray((abs(multiple) < _EXACT_MAX) & (multiple / 10.0**places == wanted), np.bool_)
