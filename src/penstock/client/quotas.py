"""Administrative calls for client quotas, which each broker applies by itself.

The entity of a quota is a mapping from `user`, `client-id` or `ip` to a name, or to None for the
default of that kind: `{"user": "alice", "client-id": None}`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from msgspec import Struct

from penstock.client.errors import broker_error
from penstock.client.session import Session

Entity = Mapping[str, str | None]

_EXACT: Final = 0
_DEFAULT: Final = 1


class Quota(Struct, frozen=True, kw_only=True):
    entity: Mapping[str, str | None]
    values: Mapping[str, float]

    @property
    def shown(self) -> str:
        return entity_text(self.entity)


class QuotaCalls:
    _session: Session

    def list_quotas(self, entity: Entity | None = None, *, strict: bool = False) -> list[Quota]:
        """Return the quotas of all entities that match `entity`; None matches all entities.

        With `strict`, entities that have other kinds than `entity` do not match.
        """
        requested = [
            {
                "entity_type": kind,
                "match_type": _DEFAULT if name is None else _EXACT,
                "match": name,
            }
            for kind, name in (entity or {}).items()
        ]
        body = {"components": requested, "strict": strict}

        def once() -> list[Quota]:
            answer = self._session.call_any("DescribeClientQuotas", body)
            if int(answer.error_code):
                raise broker_error(int(answer.error_code), "quotas", answer.error_message)
            found = [_quota(entry) for entry in answer.entries or ()]
            return sorted(found, key=lambda quota: quota.shown)

        return self._session.retrying(once)

    def alter_quotas(
        self,
        entity: Entity,
        changes: Mapping[str, float] | None = None,
        *,
        remove: Iterable[str] = (),
        validate_only: bool = False,
    ) -> None:
        """Set the quotas in `changes` of an entity, and remove those in `remove`.

        Raises:
            BrokerRefused: the entity, a quota or a value is invalid; nothing is changed.
        """
        operations = [
            {"key": key, "value": float(value), "remove": False}
            for key, value in (changes or {}).items()
        ]
        operations += [{"key": key, "value": 0.0, "remove": True} for key in remove]
        whose = [{"entity_type": kind, "entity_name": name} for kind, name in entity.items()]
        body = {"entries": [{"entity": whose, "ops": operations}], "validate_only": validate_only}

        def once() -> None:
            answer = self._session.call_any("AlterClientQuotas", body)
            for entry in answer.entries:
                if int(entry.error_code):
                    what = f"the quotas of {entity_text(entity)}"
                    raise broker_error(int(entry.error_code), what, entry.error_message)

        self._session.retrying(once)


def entity_text(entity: Entity) -> str:
    """Return an entity as text, such as `user alice, client-id (default)`."""
    return ", ".join(
        f"{kind} {'(default)' if name is None else name}"
        for kind, name in sorted(entity.items(), reverse=True)
    )


def _quota(entry: Any) -> Quota:
    return Quota(
        entity={part.entity_type: part.entity_name for part in entry.entity},
        values={value.key: float(value.value) for value in entry.values},
    )
