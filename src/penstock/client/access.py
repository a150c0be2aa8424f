"""Administrative calls for ACLs, and for users with SCRAM passwords.

The client salts and hashes passwords, so a broker never receives a password.

Source: KIP-140, KIP-290 (ACLs), KIP-554 (users).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from msgspec import Struct

from penstock.client.errors import BrokerRefused, broker_error, code_name, is_retriable
from penstock.client.session import TRANSACTION, Session, metadata_body
from penstock.security.acls import (
    OPERATIONS,
    PATTERN_TYPES,
    PERMISSIONS,
    RESOURCE_TYPES,
    SUPPORTED,
    AclBinding,
    AclFilter,
)
from penstock.security.credentials import (
    BY_NUMBER,
    ITERATIONS,
    NUMBERS,
    SCRAM_SHA_512,
    new_salt,
    salted_password,
)

_NOT_REPORTED: Final = -(2**31)
"""Operations in a response that does not report them; then all are assumed to be permitted."""
_UNKNOWN_TOPIC: Final = 3
_UNAUTHORIZED: Final = "authorization_failed"


class AccessCalls:
    _session: Session

    def list_acls(self, acl_filter: AclFilter | None = None) -> list[AclBinding]:
        body = filter_body(acl_filter or AclFilter())

        def once() -> list[AclBinding]:
            answer = self._session.call_any("DescribeAcls", body)
            _check(answer, "ACLs")
            return sorted(
                binding_of(resource, entry)
                for resource in answer.resources
                for entry in resource.acls
            )

        return self._session.retrying(once)

    def create_acls(self, bindings: Sequence[AclBinding]) -> None:
        """Add ACL bindings; existing bindings stay.

        Raises:
            BrokerRefused: the broker rejected a binding; the broker has still added the valid ones.
        """
        body = {"creations": [creation_body(binding) for binding in bindings]}

        def once() -> None:
            answer = self._session.call_any("CreateAcls", body)
            for binding, result in zip(bindings, answer.results, strict=True):
                _check(result, f"ACL {binding}")

        self._session.retrying(once)

    def delete_acls(self, acl_filter: AclFilter) -> list[AclBinding]:
        def once() -> list[AclBinding]:
            answer = self._session.call_any("DeleteAcls", {"filters": [filter_body(acl_filter)]})
            (result,) = answer.filter_results
            _check(result, "ACLs")
            return sorted(
                binding_of(matching_acl, matching_acl) for matching_acl in result.matching_acls
            )

        return self._session.retrying(once)

    def authorized_operations(
        self, resource_type: str, names: Iterable[str]
    ) -> dict[str, frozenset[str]]:
        """Return the operations on resources that this client's user may perform, by their names.

        Resources need not exist. If a broker does not report operations, they are assumed to be
        permitted. Of transactional ids, brokers report only whether the user may describe them;
        then `write` is assumed too.

        Args:
            resource_type: topic, group, transactional_id, or cluster, for which any name is valid.
        """
        wanted = list(names)
        found = self._session.retrying(lambda: list(self._operations(resource_type, wanted)))
        supported = SUPPORTED[resource_type]
        return {
            name: frozenset(word for word in supported if bits >> OPERATIONS.index(word) & 1)
            for name, bits in zip(wanted, found, strict=True)
        }

    def _operations(self, resource_type: str, names: Sequence[str]) -> Iterator[int]:
        """Yield the bits of the permitted operations on each resource."""
        session = self._session
        if resource_type == "topic":
            body = metadata_body(names) | {"include_topic_authorized_operations": True}
            topics = {str(topic.name): topic for topic in session.call_any("Metadata", body).topics}
            for name in names:
                yield _bits(topics[name].error_code, topics[name].topic_authorized_operations)
            return
        for name in names:
            try:
                if resource_type == "group":
                    body = {"groups": [name], "include_authorized_operations": True}
                    (group,) = session.call_coordinator(name, "DescribeGroups", body).groups
                    yield _bits(group.error_code, group.authorized_operations)
                elif resource_type == "transactional_id":
                    body = {"transactional_ids": [name]}
                    answer = session.call_coordinator(
                        name, "DescribeTransactions", body, TRANSACTION
                    )
                    yield _bits(answer.transaction_states[0].error_code, _NOT_REPORTED)
                else:
                    body = {"include_cluster_authorized_operations": True}
                    answer = session.call_any("DescribeCluster", body)
                    yield _bits(answer.error_code, answer.cluster_authorized_operations)
            except BrokerRefused as error:
                if not error.code.endswith(_UNAUTHORIZED):
                    raise
                yield 0

    def list_users(self) -> dict[str, dict[str, int]]:
        """Return the SCRAM users of the cluster: by name, the iterations per mechanism."""

        def once() -> dict[str, dict[str, int]]:
            answer = self._session.call_any("DescribeUserScramCredentials", {"users": None})
            _check(answer, "users")
            return {
                result.user: {BY_NUMBER[info.mechanism]: info.iterations
                           for info in result.credential_infos}
                for result in sorted(answer.results, key=lambda result: str(result.user))
            }  # fmt: skip

        return self._session.retrying(once)

    def set_password(
        self, user: str, password: str, *, mechanism: str = SCRAM_SHA_512,
        iterations: int = ITERATIONS,
    ) -> None:  # fmt: skip
        """Set a user's password for one SCRAM mechanism; create the user if it does not exist.

        Raises:
            InvalidCredential: the password is empty or too long.
            BrokerRefused: the name or the number of iterations is invalid.
        """
        salt = new_salt(self._session.randomness)
        upsertion = {
            "name": user,
            "mechanism": NUMBERS[mechanism],
            "iterations": iterations,
            "salt": salt,
            "salted_password": salted_password(mechanism, password, salt, iterations),
        }
        self._alter_users({"deletions": [], "upsertions": [upsertion]})

    def delete_user(self, user: str, mechanisms: Sequence[str]) -> None:
        """Delete a user's credentials for the given SCRAM mechanisms.

        Raises:
            BrokerRefused: the user has no credential for one of the mechanisms.
        """
        for mechanism in mechanisms:  # a request may name each user once
            deletion = {"name": user, "mechanism": NUMBERS[mechanism]}
            self._alter_users({"deletions": [deletion], "upsertions": []})

    def _alter_users(self, body: Mapping[str, Any]) -> None:
        def once() -> None:
            for result in self._session.call_any("AlterUserScramCredentials", body).results:
                _check(result, f"user {result.user}")

        self._session.retrying(once)


def _check(answer: Any, what: str) -> None:
    if int(answer.error_code):
        raise broker_error(int(answer.error_code), what, answer.error_message)


def _bits(code: int, bits: int) -> int:
    if is_retriable(int(code)) and code != _UNKNOWN_TOPIC:
        raise broker_error(int(code), "permitted operations")
    if code_name(int(code)).endswith(_UNAUTHORIZED):
        return 0
    return -1 if bits == _NOT_REPORTED else int(bits)


def filter_body(acl_filter: AclFilter) -> dict[str, Any]:
    """Return a filter as a part of DescribeAcls and DeleteAcls requests."""
    return {
        "resource_type_filter": RESOURCE_TYPES.index(acl_filter.resource_type),
        "resource_name_filter": acl_filter.name,
        "pattern_type_filter": PATTERN_TYPES.index(acl_filter.pattern_type),
        "principal_filter": acl_filter.principal,
        "host_filter": acl_filter.host,
        "operation": OPERATIONS.index(acl_filter.operation),
        "permission_type": PERMISSIONS.index(acl_filter.permission),
    }


def creation_body(binding: AclBinding) -> dict[str, Any]:
    """Return a binding as a part of a CreateAcls request."""
    return {
        "resource_type": RESOURCE_TYPES.index(binding.resource_type),
        "resource_name": binding.name,
        "resource_pattern_type": PATTERN_TYPES.index(binding.pattern_type),
        "principal": binding.principal,
        "host": binding.host,
        "operation": OPERATIONS.index(binding.operation),
        "permission_type": PERMISSIONS.index(binding.permission),
    }


def binding_of(resource: Any, entry: Any) -> AclBinding:
    """Return the binding of a response's resource and entry, which may be one object."""
    return AclBinding(
        resource_type=RESOURCE_TYPES[resource.resource_type],
        name=resource.resource_name,
        pattern_type=PATTERN_TYPES[resource.pattern_type],
        principal=entry.principal,
        host=entry.host,
        operation=OPERATIONS[entry.operation],
        permission=PERMISSIONS[entry.permission_type],
    )


# Administrative calls for client quotas, which each broker applies by itself.
#
# The entity of a quota is a mapping from `user`, `client-id` or `ip` to a name, or to None for the
# default of that kind: `{"user": "alice", "client-id": None}`.


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

        With `strict`, an entity that also has a kind which `entity` does not name is left out: for
        a user, the quotas of pairs of user and client id.
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
