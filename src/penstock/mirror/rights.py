"""Rights that a mirror needs at its clusters, and the check that finds all that are missing.

| cluster | resource | operations |
|---|---|---|
| source | mirrored topics | read, describe-configs |
| source | groups | describe |
| source | the cluster, with `mirror.acls` | describe |
| target | mirrored topics | read, write, alter, create if missing |
| target | mirrored topics, with `mirror.configs` | describe-configs, alter-configs |
| target | topics of positions, offset pairs, checkpoints | read, write, describe-configs, create |
| target | transactional id | describe, write |
| target | groups | describe, read |
| target | the cluster, with `mirror.acls` | describe, alter |

The right to create topics may be one on the cluster. Clusters without an authorizer permit
everything. Of many groups, the first `GROUPS_MAX` are checked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from penstock.client import Client
from penstock.connect.positions import positions_topic
from penstock.link.rights import MissingRights, Needs, missing
from penstock.mirror.mirror_file import MirrorSpec, SourceOptions, TargetOptions
from penstock.mirror.topics import source_groups
from penstock.security.acls import CLUSTER

GROUPS_MAX: Final = 200
"""Most groups whose rights are checked, because each takes a request."""
_READ: Final = frozenset({"read", "describe_configs"})
_STORED: Final = frozenset({"read", "write", "describe_configs"})
_COPIED: Final = frozenset({"read", "write", "alter"})
_CONFIGURED: Final = _COPIED | {"describe_configs", "alter_configs"}


def check_rights(
    spec: MirrorSpec, source: Client, target: Client, topics: Mapping[str, int]
) -> None:
    """Check that all rights are there.

    Raises:
        MissingRights: rights are missing; the error has all of them.
        PenstockError: as `missing_rights`.
    """
    if found := missing_rights(spec, source, target, topics):
        raise MissingRights("; ".join(f"{what}: {fix}" for what, fix in found.items()))


def missing_rights(
    spec: MirrorSpec, source: Client, target: Client, topics: Mapping[str, int]
) -> dict[str, str]:
    """Return the rights that are missing, each with the command that grants it.

    Args:
        topics: mirrored topics that the source lists; topics of the file that it does not list are
            checked too, because a cluster hides topics that a user may not describe.

    Raises:
        PenstockError: a cluster does not respond, or rejects a request.
    """
    groups = sorted(spec.groups.plain.union(source_groups(spec, source)))[:GROUPS_MAX]
    names = sorted(topics.keys() | {name for name in spec.topics.plain if spec.mirrors(name)})
    needs = {("topic", name): _READ for name in names}
    needs |= {("group", name): frozenset({"describe"}) for name in groups}
    needs |= _cluster(spec, "describe")
    found = dict(_missing("source", spec.source, spec.source_security, source, needs))
    there = {topic.name for topic in target.list_topics()}
    copied = _CONFIGURED if spec.options.configs else _COPIED
    needs = {("topic", spec.renamed(name)): copied for name in names}
    own = (positions_topic(spec.position_owner), spec.syncs_topic, spec.checkpoints_topic)
    needs |= {("topic", name): _STORED for name in own}
    needs = {
        (kind, name): operations if name in there else operations | {"create"}
        for (kind, name), operations in needs.items()
    }
    needs |= {("transactional_id", spec.transactional_id): frozenset({"describe", "write"})}
    needs |= {("group", name): frozenset({"describe", "read"}) for name in groups}
    needs |= _cluster(spec, "describe", "alter")
    return found | dict(_missing("target", spec.target, spec.target_security, target, needs))


def _cluster(spec: MirrorSpec, *operations: str) -> Needs:
    return {("cluster", CLUSTER): frozenset(operations)} if spec.options.acls else {}


def _missing(
    side: str, options: SourceOptions | TargetOptions, security: Mapping[str, str], client: Client,
    needs: Needs,
) -> Iterator[tuple[str, str]]:  # fmt: skip
    """Yield what is missing at a cluster, with its remedy."""
    user = f"User:{security.get('sasl.username', 'NAME')}"
    for what, fix in missing(side, options.bootstrap, user, client, needs):
        yield what, f"run {fix}" + (", or set mirror.acls = false" if "--cluster" in fix else "")
