"""Handler of AlterClientQuotas: applies all changes to the quotas of an entity, or none.

Source: Kafka's `ClientQuotaControlManager`; KIP-546.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Struct

from penstock.broker.admin_errors import BadRequest
from penstock.broker.quotas.entities import Entity, shown
from penstock.broker.quotas.keys import problem_of


class Change(Struct, frozen=True, kw_only=True):
    """Change of one quota of an entity; a `value` of None removes it."""

    key: str
    value: float | None


def altered(
    entity: Entity, current: Mapping[str, str], changes: Sequence[Change]
) -> dict[str, str]:
    """Return the quotas of an entity after changes; raises BadRequest, naming all invalid ones."""
    problems = [problem_of(entity, change.key, change.value) for change in changes]
    wrong = [problem for problem in problems if problem is not None]
    if wrong:
        raise BadRequest(f"{shown(entity)}: {'; '.join(wrong)}")
    left = dict(current)
    for change in changes:
        if change.value is None:
            left.pop(change.key, None)
        else:
            left[change.key] = repr(float(change.value))
    return left
