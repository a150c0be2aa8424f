"""Rights that the users of links need at both clusters, and the check that finds all missing ones.

| user | cluster | resource | operations |
|---|---|---|---|
| brokers of the target, `promote` | source | topics; groups | read; describe |
| `create`, `status` | source | topics | read, describe-configs |
| `create` | target | topics | describe, create; the latter also on the cluster |
| `promote`, `reverse` | that of the linked topic | topics | read, describe-configs, alter-configs |
| `promote`, `reverse`, if replicas change | same | the cluster | alter, describe-configs |
| `promote` | target | groups | read |
| `promote`, if transactions are open | target | the cluster | cluster-action |

Clusters without an authorizer permit everything. A cluster hides topics and groups that a user may
not describe.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import ClassVar, Final

from penstock.base.errors import InvalidError
from penstock.client import Client
from penstock.security.acls import CLUSTER

FOLLOWED: Final = frozenset({"read", "describe_configs"})
CREATED: Final = frozenset({"create", "describe"})
CHANGED: Final = frozenset({"read", "describe_configs", "alter_configs"})
MOVED: Final = frozenset({"alter", "describe_configs"})
Needs = Mapping[tuple[str, str], frozenset[str]]
"""Operations by type and name of a resource."""


class MissingRights(InvalidError):
    """Rights that a user lacks."""

    code: ClassVar[str] = "cluster_authorization_failed"


def on_topics(topics: Iterable[str], operations: frozenset[str], *, moves: bool = False) -> Needs:
    """Return needs for topics, and for the cluster if their replicas change."""
    cluster = {("cluster", CLUSTER): MOVED} if moves else {}
    return {("topic", name): operations for name in topics} | cluster


def check_rights(
    side: str, client: Client, security: Mapping[str, str] | None, needs: Needs
) -> None:
    """Check that the user of a client has all rights.

    Raises:
        MissingRights: rights are missing; the error has all of them, with remedies.
        PenstockError: the cluster does not respond.
    """
    user = f"User:{(security or {}).get('sasl.username', 'NAME')}"
    bootstrap = next(node.address for node in client.metadata(()).nodes.values())
    if found := list(missing(side, bootstrap, user, client, needs)):
        raise MissingRights("; ".join(f"{what}: run {fix}" for what, fix in found))


def missing(
    side: str, bootstrap: str, user: str, client: Client, needs: Needs
) -> Iterator[tuple[str, str]]:
    """Yield each missing right at a cluster, and the command that grants it.

    Raises:
        PenstockError: the cluster does not respond.
    """
    for kind in ("cluster", "topic", "group", "transactional_id"):
        names = [name for resource, name in needs if resource == kind]
        permitted = client.authorized_operations(kind, names)
        if kind == "topic" and any("create" in needs[kind, n] - permitted[n] for n in names):
            (cluster,) = client.authorized_operations("cluster", [CLUSTER]).values()
            permitted = {name: held | (cluster & {"create"}) for name, held in permitted.items()}
        for name in names:
            if lacking := needs[kind, name] - permitted[name]:
                words = [operation.replace("_", "-") for operation in sorted(lacking)]
                resource = f"{kind.replace('_', ' ')} {name}"
                flag = "--cluster" if kind == "cluster" else f"--{kind.replace('_', '-')} {name}"
                flags = " ".join(f"--operation {word}" for word in words)
                yield (
                    f"{user} may not {', '.join(words)} {resource} of the {side}",
                    f"penstock acl add -b {bootstrap} --principal {user} {flag} {flags}",
                )
