"""Validation of the arguments of public calls, before anything is sent.

Each error names the argument, the value and the limit. A number out of range is rejected here,
because the wire encoder would wrap it around and a broker might accept the result.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from numbers import Integral, Real
from typing import Any, Final, Literal

from penstock.base.settings import INT_MAX, LONG_MAX
from penstock.client.errors import InvalidArgument
from penstock.records.extents import READ_COMMITTED, READ_UNCOMMITTED

REPLICAS_MAX: Final = 32_767
POSITIONS: Final = ("earliest", "latest")
Isolation = Literal["read_uncommitted", "read_committed"]

DEFAULT_COLUMNS: Final = ("partition", "offset", "timestamp", "key", "value", "headers")
_ISOLATION: Final = {"read_uncommitted": READ_UNCOMMITTED, "read_committed": READ_COMMITTED}


def is_whole(value: object) -> bool:
    """Whether a value is an integer of Python or NumPy; False for True and False."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def whole(name: str, value: Any, minimum: int, maximum: int) -> int:
    """Return the value as an `int`.

    Raises:
        InvalidArgument: the value is not a whole number from `minimum` to `maximum`.
    """
    if not is_whole(value) or not minimum <= value <= maximum:
        raise InvalidArgument(
            f"{name} = {value!r}: must be a whole number from {minimum} to {maximum}"
        )
    return int(value)


def optional_whole(name: str, value: Any, minimum: int, maximum: int) -> int | None:
    """Return None for None, or else the value as `whole` returns it."""
    return None if value is None else whole(name, value, minimum, maximum)


def positive(name: str, value: Any) -> None:
    """Raise `InvalidArgument` if a value is neither None nor a finite number above 0."""
    if value is None:
        return
    known = isinstance(value, Real) and not isinstance(value, bool)
    if not known or not 0 < value < float("inf"):
        raise InvalidArgument(f"{name} = {value!r}: must be a number above 0")


def text(name: str, value: Any) -> str:
    """Return the value if it is a non-empty text that UTF-8 can encode.

    Raises:
        InvalidArgument: the value is anything else.
    """
    if not isinstance(value, str) or not value:
        raise InvalidArgument(f"{name} = {value!r}: must be a non-empty text")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidArgument(f"{name} = {value!r}: must be a text that UTF-8 can encode") from None
    return value


def partition_list(partitions: Iterable[int] | None) -> Sequence[int] | None:
    """Return partition numbers without duplicates, or None for None.

    Raises:
        InvalidArgument: the value is not a list of partition numbers.
    """
    if partitions is None:
        return None
    if isinstance(partitions, (str, bytes)) or not isinstance(partitions, Iterable):
        raise InvalidArgument(f"partitions = {partitions!r}: must be a list of partition numbers")
    return list(dict.fromkeys(whole("partitions", item, 0, INT_MAX) for item in partitions))


def offsets_by_partition(
    name: str, offsets: Mapping[int, int], *, minimum: int = 0
) -> dict[int, int]:
    """Return the offsets by partition, as `int`.

    Raises:
        InvalidArgument: the value does not map partitions to offsets of at least `minimum`.
    """
    if not isinstance(offsets, Mapping):
        raise InvalidArgument(f"{name} = {offsets!r}: must map partitions to offsets")
    return {
        whole(f"{name}: partition", partition, 0, INT_MAX): whole(
            f"{name}: offset of partition {partition}", offset, minimum, LONG_MAX
        )
        for partition, offset in offsets.items()
    }


def position(name: str, value: Any) -> Any:
    """Check the start or end of a read; return it.

    It is `earliest` or `latest`, a time in milliseconds, or an offset per partition.

    Raises:
        InvalidArgument: the value is anything else.
    """
    if isinstance(value, Mapping):
        return offsets_by_partition(name, value)
    if isinstance(value, str) and value in POSITIONS:
        return value
    if is_whole(value) and 0 <= value <= LONG_MAX:
        return int(value)
    raise InvalidArgument(
        f"{name} = {value!r}: must be {' or '.join(POSITIONS)}, milliseconds since the"
        " epoch, or an offset per partition"
    )


def read_positions(name: str, value: Any) -> tuple[Any, dict[int, int]]:
    """Check the start of a read as `position` does; return it and the leader epochs by partition.

    A mapping may have (epoch, offset) pairs in place of offsets, as `Subscription.positions` does.
    The epochs let the leader detect that records which were read are no longer in the log.

    Raises:
        InvalidArgument: the value is anything else.
    """
    if not isinstance(value, Mapping):
        return position(name, value), {}
    known = {p: one for p, one in value.items() if isinstance(one, tuple) and len(one) == 2}
    offsets = {p: known[p][1] if p in known else one for p, one in value.items()}
    epochs = {p: epoch for p, (epoch, _) in known.items()}
    return position(name, offsets), offsets_by_partition(f"{name}: epochs", epochs, minimum=-1)


def topic_partition(value: Any) -> tuple[str, int]:
    """Return a topic and a partition number.

    Raises:
        InvalidArgument: the value is not such a pair.
    """
    if not isinstance(value, tuple) or len(value) != 2:
        raise InvalidArgument(f"{value!r}: must be a topic and a partition, such as ('orders', 0)")
    return text("topic", value[0]), whole(f"partition of {value[0]!r}", value[1], 0, INT_MAX)


def isolation_level(name: str) -> int:
    """Return the number of an isolation level.

    Raises:
        InvalidArgument: the name is unknown.
    """
    level = _ISOLATION.get(name)
    if level is None:
        raise InvalidArgument(f"isolation = {name!r}: must be read_uncommitted or read_committed")
    return level
