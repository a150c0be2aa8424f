"""Errors of the planner."""

from __future__ import annotations

from typing import ClassVar

from penstock.base.errors import InvalidError


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
