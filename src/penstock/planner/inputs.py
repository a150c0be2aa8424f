"""Inputs of plans: reading of values with units, the planner's tables, and errors.

An inputs class is a frozen dataclass whose fields are declared with
`penstock.base.settings.setting`. Its names are in kebab case (`message-bytes`). A number without a
suffix is in the unit of its field. Tables are TOML files beside the code that uses them.
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
    """Inputs that no configuration can serve: the rule, the inputs that break it, and the fix."""

    code: ClassVar[str] = "invalid_request"

    def __init__(self, rule: str, found: str, fix: str) -> None:
        super().__init__(f"{rule}: {found}; {fix}")
        self.rule = rule
        self.found = found
        self.fix = fix


class InvalidPlanFile(InvalidError):
    """A plan's file is invalid; the message names the file and the position in it."""

    code: ClassVar[str] = "invalid_config"


class NothingToPlan(InvalidError):
    code: ClassVar[str] = "invalid_request"


def table_text(package: str, name: str) -> str:
    return (resources.files(package) / name).read_text("utf-8")


def read_table(package: str, name: str) -> dict[str, Any]:
    return tomllib.loads(table_text(package, name))


Inputs = TypeVar("Inputs")


def read_inputs(inputs_type: type[Inputs], texts: Mapping[str, object]) -> Inputs:
    """Build an inputs object from values by name; missing names keep their defaults.

    A value is a typed value or a text with a unit, such as `1KiB`.

    Raises:
        InvalidSetting: a name is unknown, a value is not a quantity of the unit, or out of bounds.
        ImpossiblePlan: the inputs contradict each other; raised by the inputs class.
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
