"""Transfer of consumer groups: offsets, translated to the target, and MirrorMaker's checkpoints.

A translated offset is never ahead of what the group has processed, and at most one batch behind. It
is committed in the target if the group has no members there, and only if it is higher than the
group's offset there. So a group that moved to the target is never set back.

If another mirror transfers the same topics in the opposite direction, the target also has records
that the group reads in the source only after that mirror has transferred them. The translated
offset is then limited to the target's records that were in the source before the group's offset.
This mirror learns of the other one from its positions. While there is no other mirror, the offset
is limited to the first local record of the target (`LocalRecords`).

A checkpoint has the format of MirrorMaker's `Checkpoint`, so `RemoteClusterUtils.translateOffsets`
returns the same offsets:

    key    group string, topic string, partition i32
    value  version i16 (0), upstream offset i64, downstream offset i64, metadata string
"""

from __future__ import annotations

import logging
import struct
from typing import Any, Final

import pyarrow as pa

from penstock.base.errors import PenstockError
from penstock.client import Client
from penstock.client.groups import Committed
from penstock.client.protocol import TopicAndPartition
from penstock.connect import positions
from penstock.mirror.local_records import LocalRecords
from penstock.mirror.mirror_file import OWNER, MirrorSpec
from penstock.mirror.syncs import Syncs, partition_bytes, text_bytes
from penstock.mirror.topics import DIRECTION, Clusters, source_groups

CONFIGS: Final = positions.CONFIGS
_OFFSETS: Final = struct.Struct(">hqq")
_VERSION: Final = 0
_BEFORE, _AFTER = positions.positions_topic(f"{OWNER}\0").split("\0")
"""Beginning and end of the names of mirrors' position topics."""
_FREE: Final = frozenset({"Empty", "Dead"})
"""States of groups without members."""

Translated = dict[TopicAndPartition, tuple[Committed, int]]
"""Committed offset of a group and its translation, by partition of the target."""
Checkpoints = dict[tuple[str, TopicAndPartition], tuple[Committed, int]]
"""Committed offset and its translation, by group and partition of the target."""

logger = logging.getLogger(__name__)


class Groups:
    """Transfer of the groups of one mirror, and the checkpoints that were written last."""

    def __init__(
        self, spec: MirrorSpec, source: Client, target: Client, clusters: Clusters, syncs: Syncs,
        local: LocalRecords | None,
    ) -> None:  # fmt: skip
        self._spec = spec
        self._source = source
        self._target = target
        self._clusters = clusters
        self._syncs = syncs
        self._local = local
        self._written: Checkpoints = {}
        self._others: dict[str, tuple[dict[str, Any], int]] = {}
        """Positions of mirrors that write to the source, and the offset after them."""
        self._back = Syncs()
        self.active: list[str] = []
        """Groups whose offsets are not committed, because they have members in the target."""

    def transfer(self) -> None:
        """Write checkpoints and commit offsets of all groups that the mirror's file names.

        Raises:
            PenstockError: a cluster does not respond, or rejects a request.
        """
        self.active = []
        names = source_groups(self._spec, self._source) if self._spec.source.groups else []
        if not names:
            return
        returning = self._returning_topics()
        changed: Checkpoints = {}
        ends: dict[str, dict[int, int]] = {}
        for group in names:
            offsets = self._translated(group, returning)
            changed |= {
                (group, place): entry
                for place, entry in offsets.items()
                if self._written.get((group, place)) != entry
            }
            self._commit(group, offsets, ends)
        if changed:
            self._target.write_arrow(self._spec.checkpoints_topic, checkpoint_rows(changed))
            self._written |= changed

    def _translated(self, group: str, returning: frozenset[str]) -> Translated:
        found: Translated = {}
        for (topic, partition), committed in self._source.committed(group).items():
            place = (topic, partition)
            offset = self._syncs.downstream(place, committed.offset)
            if offset is None or not self._spec.mirrors(topic):
                continue
            if topic in returning or self._back.knows(place):
                offset = min(offset, self._back.upstream(place, committed.offset))
            elif self._local is not None:
                offset = min(offset, self._local.free(place))
            found[self._spec.renamed(topic), partition] = (committed, offset)
        return found

    def _returning_topics(self) -> frozenset[str]:
        """Return the topics that another mirror transfers from the target to the source."""
        if self._spec.prefixed:
            return frozenset()
        found: set[str] = set()
        for topic in self._source.list_topics():
            owner = OWNER + topic.name.removeprefix(_BEFORE).removesuffix(_AFTER)
            if positions.positions_topic(owner) != topic.name:
                continue
            stored, after = self._others.get(owner, ({}, 0))
            self._others[owner] = stored, positions.read(self._source, owner, stored, after)
            other = stored.get(DIRECTION, {})
            if other.get("policy") == "identity" and self._clusters == Clusters(
                other["target"], other["source"]
            ):
                found.update(other["topics"])
                self._back.load(self._source, other["syncs"])
        return frozenset(found)

    def _commit(self, group: str, offsets: Translated, ends: dict[str, dict[int, int]]) -> None:
        there = self._target.committed(group)
        higher = {
            place: offset for place, (_, offset) in offsets.items()
            if place not in there or offset > there[place].offset
        }  # fmt: skip
        for topic in {topic for topic, _ in higher} - ends.keys():
            ends[topic] = self._target.list_offsets(topic)
        higher = {
            (topic, partition): offset for (topic, partition), offset in higher.items()
            if offset <= ends[topic][partition]  # higher if the topic was created again
        }  # fmt: skip
        if not higher:
            return
        if self._target.describe_group(group).state not in _FREE:
            self.active.append(group)
            return
        try:
            self._target.commit_offsets(group, higher)
        except PenstockError as error:  # a member has joined since
            logger.warning("group %s: %s", group, error)


def checkpoint_rows(checkpoints: Checkpoints) -> Any:
    """Return checkpoints as rows of their topic."""
    keys = [text_bytes(group) + partition_bytes(*place) for group, place in checkpoints]
    values = [
        _OFFSETS.pack(_VERSION, committed.offset, offset) + text_bytes(committed.metadata)
        for committed, offset in checkpoints.values()
    ]
    return pa.table({"key": pa.array(keys, pa.binary()), "value": pa.array(values, pa.binary())})
