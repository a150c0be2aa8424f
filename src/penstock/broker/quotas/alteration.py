"""AlterClientQuotas: what an entry of a request makes of an entity's quotas.

An entry is applied as a whole or not at all; all that is wrong with it is said at once.

Source: Kafka's `ClientQuotaControlManager`; KIP-546.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from penstock.broker.admin_errors import BadRequest
from penstock.broker.quotas.entities import Entity, shown
from penstock.broker.quotas.keys import problem_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Set one quota of an entity, or remove it: `value` is None."""

    key: str
    value: float | None


def altered(
    entity: Entity, current: Mapping[str, str], changes: Sequence[Change]
) -> dict[str, str]:
    """The quotas of an entity after changes, as they are stored; of one key the last one counts.

    Raises:
        BadRequest: it names every change that cannot be.
    """
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
