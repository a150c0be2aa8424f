"""Reading of a plan's inputs: declared like settings, written with units.

An inputs class is a frozen dataclass of `penstock.base.settings.setting` fields with names in
kebab case (`message-bytes`); its unit is that of a number without a suffix.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import TypeVar

from penstock.base.errors import InvalidSetting
from penstock.base.settings import SettingInfo, describe, load
from penstock.planner.quantities import NoQuantity, parse_quantity

Inputs = TypeVar("Inputs")


def read_inputs(inputs_type: type[Inputs], texts: Mapping[str, object]) -> Inputs:
    """Build inputs from names and texts or typed values; missing names keep their defaults.

    Raises:
        InvalidSetting: an unknown name, an invalid quantity of the unit, or one out of its bounds.
        ImpossiblePlan: inputs that contradict each other, where the class itself checks that.
    """
    known = {info.name: info for info in describe(inputs_type)}
    return load(
        inputs_type,
        {
            name: _quantity(known[name], value) if name in known else value
            for name, value in texts.items()
        },
    )


def _quantity(info: SettingInfo, value: object) -> object:
    if info.type_name not in ("int", "float"):
        return value
    number = value
    if isinstance(value, str):
        try:
            number = parse_quantity(value, info.unit)
        except NoQuantity as flaw:
            raise InvalidSetting(info.name, value, str(flaw)) from None
    if isinstance(number, float) and not isfinite(number):
        raise InvalidSetting(info.name, value, "must be finite")
    if info.type_name == "int" and isinstance(number, float):
        if not number.is_integer():
            raise InvalidSetting(info.name, value, f"must be a whole number of {info.unit}")
        return int(number)
    return number
