"""Consumers that are stuck at a batch that none can read, and the way past it.

For every partition that a group has not read to its end, the next batches after its committed
offset are checked, as many as one fetch returns.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from penstock.apps.doctor.findings import Check, Finding
from penstock.apps.session import counted

if TYPE_CHECKING:
    from penstock.apps.session import State
    from penstock.client import Client

GROUPS_MAX: Final = 100
PARTITIONS_MAX: Final = 200
"""Groups, and partitions of them that are behind, that one look covers."""

NAME: Final = "consumers"


def consumers(state: State) -> Check:
    """Check that a group's next batches can be read."""
    return Check(NAME, lambda: _look(state))


def _look(state: State) -> list[Finding]:
    with state.client() as client:
        groups = sorted(group.group_id for group in client.list_groups())
        behind = list(_behind(client, groups[:GROUPS_MAX]))
        stuck = [
            finding
            for group, topic, partition, offset in behind[:PARTITIONS_MAX]
            for finding in _stuck(client, group, topic, partition, offset)
        ]
    if stuck:
        return stuck
    left_out = len(groups) > GROUPS_MAX or len(behind) > PARTITIONS_MAX
    limits = f", of which {GROUPS_MAX} and {PARTITIONS_MAX} were checked" if left_out else ""
    partitions = counted(len(behind), "partition")
    cause = f"{counted(len(groups), 'group')}, {partitions} with records to read{limits}"
    return [Finding(check=NAME, status="ok", cause=f"{cause}: the next batches can be read")]


def _behind(client: Client, groups: list[str]) -> Iterator[tuple[str, str, int, int]]:
    """Yield group, topic, partition and committed offset of each lagging group."""
    there = {topic.name for topic in client.list_topics(internal=True)}
    ends: dict[str, dict[int, int]] = {}
    for group in groups:
        for (topic, partition), position in sorted(client.committed(group).items()):
            if topic in there and topic not in ends:
                ends[topic] = client.list_offsets(topic, "latest")
            if 0 <= position.offset < ends.get(topic, {}).get(partition, -1):
                yield group, topic, partition, position.offset


def _stuck(
    client: Client, group: str, topic: str, partition: int, offset: int
) -> Iterator[Finding]:
    from penstock.apps.log.verify import verify_fetched
    from penstock.client.errors import OffsetOutOfRange
    from penstock.storage.inspection.findings import BatchVerifier

    verifier = BatchVerifier()
    try:
        verify_fetched(client, topic, partition, offset, verifier)
    except OffsetOutOfRange:
        return  # its committed offset is deleted: auto.offset.reset applies
    for wrong in verifier.findings[:1]:
        follows = max(wrong.last_offset, offset) + 1
        yield Finding(
            check=NAME,
            status="fail",
            cause=(
                f"group {group} is at offset {offset} of {topic}-{partition}, and the batch"
                f" at offsets {wrong.base_offset} to {wrong.last_offset} cannot be read:"
                f" {wrong.reason}"
            ),
            fix=(
                f"stop the group, penstock group seek {group} -t {topic} -p {partition}"
                f" --to {follows} --execute; list all such batches with penstock log verify {topic}"
            ),
        )
