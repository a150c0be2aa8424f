"""Injection of broker parts:

`BrokerServer` has them as attributes, consumers declare them as fields.
"""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    T = TypeVar("T", bound=DataclassInstance)


def parts_of(kind: type[T], broker: object) -> T:
    """Return a dataclass with the broker's parts that it declares; raises AttributeError."""
    return kind(**{field.name: getattr(broker, field.name) for field in fields(kind)})
