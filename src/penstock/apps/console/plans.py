"""Plans that were saved under a name: one JSON file for each, in the broker's data directory.

    <log.dirs>/console/plans/<digest of the name>.json    SavedPlan

Each broker has its own. A plan is its inputs; its results are computed again when it is shown.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar, Final

import msgspec
from msgspec import Struct

from penstock.apps.console.forms import InvalidField
from penstock.base.errors import InvalidError, UnavailableError
from penstock.base.files import write_durably

PLANS_MAX: Final = 1_000
PLAN_BYTES_MAX: Final = 64 << 10
NAME_CHARS_MAX: Final = 100
_DIGEST_CHARS: Final = 40


class UnknownPlan(InvalidError):
    """Name under which no plan was saved."""

    code: ClassVar[str] = "resource_not_found"


class PlansUnusable(UnavailableError):
    """Directory of the plans that cannot be read or written."""

    code: ClassVar[str] = "kafka_storage_error"


class SavedPlan(Struct, frozen=True, kw_only=True):
    """Inputs of a plan as texts by name; `kind` is the command, such as `capacity`."""

    name: str
    kind: str
    inputs: Mapping[str, str]
    saved_by: str
    saved_ms: int


class PlanStore:
    """Saved plans of one broker. Its methods block."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def all(self) -> list[SavedPlan]:
        """Return all plans by name, without files that are damaged.

        Raises:
            PlansUnusable: the directory cannot be read.
        """
        with self._usable():
            paths = sorted(self._directory.glob("*.json"))[:PLANS_MAX]
            found = [_decoded(path.read_bytes()) for path in paths]
        return sorted([plan for plan in found if plan is not None], key=lambda plan: plan.name)

    def read(self, name: str) -> SavedPlan:
        """Return a plan; raises UnknownPlan or PlansUnusable."""
        path = self._path(name)
        with self._usable():
            found = _decoded(path.read_bytes()) if path.exists() else None
        if found is None:
            raise UnknownPlan(f"no plan is saved as {name[:NAME_CHARS_MAX]!r} on this broker")
        return found

    def save(self, plan: SavedPlan) -> None:
        """Save a plan, also in place of an earlier one of its name.

        Raises:
            InvalidField: the name or the plan is too long, or there are too many plans.
            PlansUnusable: the directory cannot be written.
        """
        if not 0 < len(plan.name) <= NAME_CHARS_MAX:
            raise InvalidField(f"the name of a plan must have 1 to {NAME_CHARS_MAX} characters")
        data = msgspec.json.encode(plan)
        if len(data) > PLAN_BYTES_MAX:
            raise InvalidField(f"the plan has {len(data)} bytes; the limit is {PLAN_BYTES_MAX}")
        path = self._path(plan.name)
        with self._usable():
            if not path.exists() and len(list(self._directory.glob("*.json"))) >= PLANS_MAX:
                raise InvalidField(f"{PLANS_MAX} plans are saved already. Delete one first")
            write_durably(path, data)

    def delete(self, name: str) -> None:
        """Delete a plan; raises UnknownPlan or PlansUnusable."""
        self.read(name)
        with self._usable():
            self._path(name).unlink()

    @contextmanager
    def _usable(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise PlansUnusable(f"{self._directory}: {error.strerror}") from None

    def _path(self, name: str) -> Path:
        digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()
        return self._directory / f"{digest[:_DIGEST_CHARS]}.json"


def _decoded(data: bytes) -> SavedPlan | None:
    try:
        return msgspec.json.decode(data, type=SavedPlan)
    except msgspec.MsgspecError:
        return None
