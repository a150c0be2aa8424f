"""Hands the parts of a broker to those that use them, and to each no more than it names.

Whoever uses parts declares them as the fields of a dataclass. `BrokerServer`, which makes all of
them, has them as attributes under the same names.
"""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    T = TypeVar("T", bound=DataclassInstance)


def parts_of(kind: type[T], broker: object) -> T:
    """The parts that a dataclass names, as a broker has them.

    Raises:
        AttributeError: the broker has no part of such a name, or has not made it yet.
    """
    return kind(**{field.name: getattr(broker, field.name) for field in fields(kind)})
