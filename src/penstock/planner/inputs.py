"""Inputs of plans: declared like settings, written with units; their tables and errors.

An inputs class is a frozen dataclass of `penstock.base.settings.setting` fields with names in
kebab case (`message-bytes`); its unit is that of a number without a suffix. Tables are TOML files
beside the code that uses them.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from importlib import resources
from math import isfinite
from typing import Any, ClassVar, TypeVar

from penstock.base.errors import InvalidError, InvalidSetting
from penstock.base.settings import SettingInfo, describe, load
from penstock.planner.quantities import NoQuantity, parse_quantity


class ImpossiblePlan(InvalidError):
    """Inputs that no configuration can serve: the broken rule, the inputs, and the fix."""

    code: ClassVar[str] = "invalid_request"

    def __init__(self, rule: str, found: str, fix: str) -> None:
        super().__init__(f"{rule}: {found}; {fix}")
        self.rule = rule
        self.found = found
        self.fix = fix


class InvalidPlanFile(InvalidError):
    """An invalid file of a plan; the message names the position."""

    code: ClassVar[str] = "invalid_config"


class NothingToPlan(InvalidError):
    code: ClassVar[str] = "invalid_request"


def table_text(package: str, name: str) -> str:
    return (resources.files(package) / name).read_text("utf-8")


def read_table(package: str, name: str) -> dict[str, Any]:
    return tomllib.loads(table_text(package, name))


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
