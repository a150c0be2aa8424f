"""What the planner refuses."""

from __future__ import annotations

from typing import ClassVar

from penstock.base.errors import InvalidError


class ImpossiblePlan(InvalidError):
    """Inputs that no configuration can serve: which rule they break, and what mends it."""

    code: ClassVar[str] = "invalid_request"

    def __init__(self, rule: str, found: str, fix: str) -> None:
        super().__init__(f"{rule}: {found}; {fix}")
        self.rule = rule
        self.found = found
        self.fix = fix


class InvalidPlanFile(InvalidError):
    """A file that a plan reads or writes is not what it must be; the message names the place."""

    code: ClassVar[str] = "invalid_config"


class NothingToPlan(InvalidError):
    """What was read has nothing that a plan could be made of."""

    code: ClassVar[str] = "invalid_request"
