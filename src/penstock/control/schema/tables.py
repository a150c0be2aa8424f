"""The tables of the control plane: keys, values, and the module that writes each.

Both databases have the same tables. A test compares this list with the result of the migrations,
and `docs/reference/tables.md` is generated from it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

HEAD: Final = """# Tables of the control plane

<!-- Written by scripts/reference.py from penstock/control/schema/tables.py. -->

SQLite and PostgreSQL have the same tables, in one file, or in the first schema of the connection's
search path. Ids of topics, brokers' processes and images are UUIDs, 16 bytes in SQLite; lists and
maps are JSON. The last column is the module of `penstock/control/` that writes the table. SQLite's
`user_version` is the newest migration of the schema.

| Table | Key | Value | What it is | Written by |
|-------|-----|-------|------------|------------|
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A table; `of_postgres` names its values that SQLite lacks."""

    name: str
    key: tuple[str, ...]
    value: tuple[str, ...]
    doc: str
    writer: str
    of_postgres: tuple[str, ...] = ()
    only: Literal["", "SQLite", "PostgreSQL"] = ""


TABLES: Final[Sequence[Table]] = (
    Table(
        name="image_version",
        key=("only_row",),
        value=("cluster_id", "version", "membership", "stamp", "entity_stamp"),
        doc="One row: version and stamp of the newest image of topics, brokers and configs.",
        writer="metadata/statements.py",
    ),
    Table(
        name="topics",
        key=("topic_id",),
        value=("name", "configs", "internal", "stamp"),
        doc="Topics and their own configs, with the stamp of the image that changed them last.",
        writer="metadata/statements.py",
    ),
    Table(
        name="partitions",
        key=("topic_id", "number"),
        value=("leader", "leader_epoch", "replicas", "isr", "target", "move"),
        doc="Leader, leader epoch, replicas and ordered replicas of partitions.",
        writer="metadata/statements.py",
    ),
    Table(
        name="replicated_partitions",
        key=("topic_id", "number"),
        value=("reserved", "claimant", "incarnation"),
        doc="Highest epoch ever reserved for each replicated partition, and its claimant.",
        writer="epochs/statements.py",
    ),
    Table(
        name="partition_epochs",
        key=("topic_id", "number", "epoch"),
        value=("start_offset", "end_offset", "replicas", "ack_quorum", "leader", "incarnation"),
        doc="Epochs of replicated partitions; the newest is open and has no end.",
        writer="epochs/statements.py",
    ),
    Table(
        name="partition_losses",
        key=("topic_id", "number", "epoch"),
        value=("sealed", "from_offset", "broker", "missing", "at_ms"),
        doc="Records lost by unclean elections: their epoch and first offset.",
        writer="epochs/statements.py",
    ),
    Table(
        name="brokers",
        key=("broker_id",),
        value=(
            "host",
            "port",
            "rack",
            "incarnation",
            "epoch",
            "registered",
            "endpoints",
            "renewed_ms",
            "roles",
        ),
        of_postgres=("renewed_ms",),
        doc="Brokers that are or were registered; their epochs only rise.",
        writer="metadata/statements.py",
    ),
    Table(
        name="renewals",
        key=("broker_id",),
        value=("renewed_ms",),
        doc="Time at which a broker renewed its registration, in memory while the file is open.",
        writer="metadata/statements.py",
        only="SQLite",
    ),
    Table(
        name="broker_configs",
        key=("broker",),
        value=("configs",),
        doc="Dynamic configs of a broker, by its id as text; of all brokers under the empty name.",
        writer="metadata/statements.py",
    ),
    Table(
        name="entity_configs",
        key=("kind", "name"),
        value=("configs",),
        doc="Configs of other entities: quotas, metric subscriptions, ACLs, SCRAM credentials.",
        writer="metadata/statements.py",
    ),
    Table(
        name="counters",
        key=("name",),
        value=("value",),
        doc="The next producer id, the highest object id; in SQLite the highest version of a sink.",
        writer="metadata/statements.py",
    ),
    Table(
        name="group_offsets",
        key=("group_id", "topic", "number"),
        value=(
            "topic_id",
            "committed_offset",
            "leader_epoch",
            "metadata",
            "commit_timestamp_ms",
            "expire_timestamp_ms",
        ),
        doc="A group's position in a partition.",
        writer="groups/statements.py",
    ),
    Table(
        name="pending_offsets",
        key=("group_id", "topic", "number", "transactional_id"),
        value=(
            "topic_id",
            "committed_offset",
            "leader_epoch",
            "metadata",
            "commit_timestamp_ms",
            "ordinal",
            "overtaken",
        ),
        doc="Offsets that groups commit in open transactions; invisible until the decision.",
        writer="groups/pending_statements.py",
    ),
    Table(
        name="coordination_records",
        key=("kind", "key", "member"),
        value=("version", "value"),
        doc="State of coordinators: one row per key, without a member, and one per member.",
        writer="coordination/statements.py",
    ),
    Table(
        name="sink_commits",
        key=("query_id",),
        value=("version", "owner", "batch_id", "state", "updated_ms", "lanes", "manifest"),
        doc="The newest commit of a query that writes to the log.",
        writer="sink_commits/statements.py",
    ),
    Table(
        name="diskless_objects",
        key=("object_id",),
        value=("key", "state", "kind", "size_bytes", "extents", "changed_ms"),
        doc="Objects of diskless topics, from lease to deletion, and the number of their extents.",
        writer="batch_index/objects.py",
    ),
    Table(
        name="diskless_answers",
        key=("object_id",),
        value=("committed_ms", "answer"),
        doc="First answers of commits, for repeated commits.",
        writer="batch_index/objects.py",
    ),
    Table(
        name="diskless_partitions",
        key=("partition_id",),
        value=(
            "topic_id",
            "number",
            "log_start_offset",
            "high_watermark",
            "size_bytes",
            "wal_extents",
            "wal_bytes",
            "open_offset",
            "aborted_offset",
            "clean_offset",
        ),
        doc="Diskless partitions with a commit: their start, end and clean offset.",
        writer="batch_index/partitions.py",
    ),
    Table(
        name="diskless_extents",
        key=("partition_id", "base_offset"),
        value=(
            "next_offset",
            "object_id",
            "byte_offset",
            "size_bytes",
            "max_timestamp",
            "append_time_ms",
            "layout",
        ),
        doc="The batch index: the object and bytes that hold a partition's offsets.",
        writer="batch_index/extents.py",
    ),
    Table(
        name="diskless_producers",
        key=("partition_id", "producer_id"),
        value=(
            "epoch",
            "seen_ms",
            "batches",
            "coordinator_epoch",
            "txn_first_offset",
            "guard_offset",
        ),
        doc="Idempotent producers of diskless partitions.",
        writer="batch_index/partitions.py",
    ),
    Table(
        name="diskless_aborted",
        key=("partition_id", "last_offset"),
        value=("producer_id", "first_offset", "last_stable_offset"),
        doc="Aborted transactions of diskless partitions, by the offsets of their markers.",
        writer="batch_index/aborted.py",
    ),
    Table(
        name="diskless_switches",
        key=("topic_id",),
        value=("switch_id", "broker_id", "incarnation"),
        doc="Running migrations of topics that become diskless, or replicated.",
        writer="batch_index/migrations.py",
    ),
    Table(
        name="diskless_switch_shares",
        key=("topic_id", "broker_id"),
        value=("incarnation", "state", "reason", "partitions"),
        doc="Progress of each broker in those migrations.",
        writer="batch_index/migrations.py",
    ),
    Table(
        name="diskless_store",
        key=("only_row",),
        value=("store_id", "place"),
        doc="One row: the identity of the object store.",
        writer="batch_index/objects.py",
    ),
    Table(
        name="tiered_partitions",
        key=("topic_id", "number"),
        value=("log_start_offset", "tiered_offset", "size_bytes", "segments"),
        doc="Log start of tiered partitions, and the end of their archived segments.",
        writer="tiers/statements.py",
    ),
    Table(
        name="tiered_segments",
        key=("topic_id", "number", "base_offset"),
        value=(
            "next_offset",
            "leader_epoch",
            "max_timestamp",
            "object_id",
            "stem",
            "size_bytes",
            "index_bytes",
            "time_index_bytes",
            "aborted_bytes",
            "checksum",
        ),
        doc="Archived segments: their first object id, and the common prefix of their keys.",
        writer="tiers/statements.py",
    ),
    Table(
        name="penstock_schema",
        key=("number",),
        value=("applied",),
        doc="Applied migrations of the schema.",
        writer="migrations/postgres/migrate.py",
        only="PostgreSQL",
    ),
)


def page() -> str:
    return HEAD + "".join(
        f"| `{table.name}`{f' ({table.only})' if table.only else ''} | {_names(table.key)}"
        f" | {_names(table.value, table.of_postgres)} | {table.doc} | `{table.writer}` |\n"
        for table in TABLES
    )


def _names(columns: Sequence[str], of_postgres: Sequence[str] = ()) -> str:
    return ", ".join(
        f"`{column}`{' (PostgreSQL)' if column in of_postgres else ''}" for column in columns
    )
