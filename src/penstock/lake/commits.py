"""Commits to an Iceberg table that store each batch once, and the table's upkeep.

Every snapshot of this module has a property `penstock.application.NAME` for each application that
writes the table. Its value is the application's last *mark*: batch number, query, and next offsets.

1. An application reads its mark from the newest snapshot. A batch with this number or a lower one
   is in the table.
2. It writes data files, which are invisible.
3. One commit adds the files and the new mark. The commit succeeds only if the table's snapshot is
   the one whose mark was checked. Otherwise the mark is read and checked again.

A crash before step 3 leaves orphans (`files.py`). A crash after step 3 is harmless: the repeated
batch ends at step 1. Marks of other applications are copied, so any snapshot of this module has all
of them. Snapshots of other writers are skipped; the mark is lost only if another tool expires every
snapshot of this module.

Upkeep is part of the commits, so their duration does not grow with their number. Manifests are
merged, and every `EXPIRE_COMMITS` commits expire all but the newest `SNAPSHOTS_KEPT` snapshots.
Every `ORPHAN_COMMITS` commits, old orphans are deleted. Tables of other tools keep their snapshots
and files, because branches or copies that this table's metadata does not name may need them. Set
`penstock.upkeep = true` on such a table to expire them too.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import Any, Final

import msgspec
import pyarrow as pa
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import (
    CommitFailedException,
    CommitStateUnknownException,
    NoSuchNamespaceError,
    NoSuchTableError,
    NotInstalledError,
    RESTError,
    ServerError,
    ServiceUnavailableError,
    TableAlreadyExistsError,
    ValidationException,
)
from pyiceberg.manifest import DataFile
from pyiceberg.table import Table, TableProperties, Transaction
from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot
from pyiceberg.table.update.snapshot import ExpireSnapshots
from sqlalchemy.exc import DBAPIError, OperationalError

from penstock.lake.files import ORPHAN_AGE_HOURS, FileWriter, remove_orphans
from penstock.lake.schemas import (
    add_partitions,
    check_partitions,
    check_spec,
    evolve,
    lacking,
    storable,
)
from penstock.lake.target import DEFAULT_CATALOG, LakeMismatch, LakeUnavailable, Target

PREFIX: Final = "penstock.application."
COMMIT_ATTEMPTS_MAX: Final = 10
CATALOGS_MAX: Final = 16
"""Open catalogues of a process."""
SNAPSHOTS_KEPT: Final = 100
EXPIRE_COMMITS: Final = 20
ORPHAN_COMMITS: Final = 1_000
PROPERTIES: Final = {
    TableProperties.MANIFEST_MERGE_ENABLED: "true",
    TableProperties.MANIFEST_MIN_MERGE_COUNT: "16",
    TableProperties.MANIFEST_TARGET_SIZE_BYTES: str(1 << 20),
    TableProperties.METADATA_DELETE_AFTER_COMMIT_ENABLED: "true",
    TableProperties.METADATA_PREVIOUS_VERSIONS_MAX: "100",
}
"""Properties of new tables. Commits to other tables use those that the table does not set."""
UPKEEP: Final = "penstock.upkeep"
"""Property of tables whose snapshots expire and whose orphans are deleted; new tables have it."""
_ONE_ATTEMPT: Final = {TableProperties.COMMIT_NUM_RETRIES: "0"}
"""pyiceberg must not repeat a commit, because it would not check the mark again."""
_FILE_IO: Final = {"py-io-impl": "pyiceberg.io.pyarrow.PyArrowFileIO"}
_CODECS: Final = {"none": "uncompressed"}

_LOG: Final = logging.getLogger(__name__)

Change = tuple[Sequence[DataFile], Sequence[DataFile]]
"""Files to add, and files to remove."""


class Mark(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """State of an application that a snapshot stores.

    Attributes:
        batch: number of the last batch.
        query: id of the query that counts the batches.
        offsets: next offset of each partition, by topic and partition.
    """

    batch: int = -1
    query: str | None = None
    offsets: dict[str, dict[int, int]] = {}


class _Change(Transaction):
    """Transaction that computes its metadata once for each number of updates.

    pyiceberg's own copies all snapshots at each use, 16 times in a commit.
    """

    _computed: tuple[int, TableMetadata] | None = None

    @property
    def table_metadata(self) -> TableMetadata:
        if not self._updates:
            return self._table.metadata
        if self._computed is None or self._computed[0] != len(self._updates):
            self._computed = (len(self._updates), super().table_metadata)
        return self._computed[1]


class LakeTable:
    """Table that one application writes. The first rows create it.

    Calls must be made by one thread at a time. Methods raise `LakeUnavailable` if the catalogue or
    the store does not respond.
    """

    def __init__(
        self,
        target: Target,
        *,
        application: str,
        partition_by: Sequence[str] = (),
        add_columns: bool = False,
        codec: str | None = None,
        snapshots_kept: int = SNAPSHOTS_KEPT,
    ) -> None:
        """Args:
        target: the table and its catalogue.
        application: permanent name of the writer, under which marks are stored.
        partition_by: partitions of a new table, in the form of `schemas.partition`. For an
            existing table they must be equal or left out.
        add_columns: whether the table's schema follows the rows (`schemas.evolve`).
        codec: Parquet compression: none, gzip, snappy, lz4 or zstd; None is the table's choice.
        snapshots_kept: snapshots that expiry keeps.
        """
        self.target = target
        self.name = target.table
        self._application = application
        self._partition_by = tuple(partition_by)
        self._add_columns = add_columns
        self._own = dict(_ONE_ATTEMPT)
        if codec is not None:
            self._own[TableProperties.PARQUET_COMPRESSION] = _CODECS.get(codec, codec)
        self._snapshots_kept = snapshots_kept
        self._table: Table | None = None
        self._accepted: tuple[pa.Schema, int, int] | None = None

    # Reading

    def open(self, *, fresh: bool = False) -> Table | None:
        """Return the table as of its last commit or load; None if it does not exist."""
        if self._table is None or fresh:
            with _reachable(self.name):
                try:
                    self._take(catalog_of(self.target).load_table(self.name))
                except (NoSuchTableError, NoSuchNamespaceError):
                    self._table = None
        return self._table

    def mark(self, *, fresh: bool = False) -> Mark | None:
        """Return the application's last mark; None if it has not written the table."""
        table = self.open(fresh=fresh)
        if table is None:
            return None
        with _reachable(self.name):
            text = _marks(table).get(PREFIX + self._application)
        return None if text is None else msgspec.json.decode(text, type=Mark)

    # Schema

    def prepare(self, rows: pa.Schema) -> Table:
        """Return the table, created or with an evolved schema if the rows need it.

        Raises:
            LakeMismatch: the table does not accept the columns.
        """
        wanted = storable(self.name, rows)
        for _ in range(COMMIT_ATTEMPTS_MAX):
            table = self.open()
            with _reachable(self.name):
                try:
                    return self._create(wanted) if table is None else self._evolved(table, wanted)
                except (TableAlreadyExistsError, CommitFailedException):
                    self.open(fresh=True)
        raise LakeUnavailable(
            f"table {self.name}: other writers change its schema at every attempt"
        )

    def check(self, rows: pa.Schema) -> None:
        """Check that `prepare` accepts the columns, without a change of the table.

        Raises:
            LakeMismatch: it does not.
        """
        wanted, table = storable(self.name, rows), self.open()
        check_partitions(self.name, wanted, self._partition_by)
        if table is not None:
            check_spec(self.name, table, self._partition_by)
            self._change(table, wanted)

    def _create(self, wanted: pa.Schema) -> Table:
        if not wanted.names:
            raise LakeMismatch(f"table {self.name}: the rows have no column with values")
        check_partitions(self.name, wanted, self._partition_by)
        catalog, namespace = catalog_of(self.target), self.name.rpartition(".")[0]
        catalog.create_namespace_if_not_exists(namespace)
        with (
            catalog.create_table_transaction(
                self.name, schema=wanted, properties={**PROPERTIES, UPKEEP: "true"}
            ) as creation,
            creation.update_spec() as spec,
        ):
            add_partitions(spec, self._partition_by)
        _LOG.info("table %s: created", self.name)
        return self._take(catalog.load_table(self.name))

    def _evolved(self, table: Table, wanted: pa.Schema) -> Table:
        accepted = (wanted, table.metadata.current_schema_id, table.metadata.default_spec_id)
        if accepted == self._accepted:
            return table
        check_spec(self.name, table, self._partition_by)
        change = self._change(table, wanted)
        if change is not None:
            table = self._take(change.commit_transaction())
            _LOG.info("table %s: changed its schema", self.name)
        self._accepted = (wanted, table.metadata.current_schema_id, table.metadata.default_spec_id)
        return table

    def _change(self, table: Table, wanted: pa.Schema) -> Any:
        """Return the transaction that makes a table accept rows; None if it accepts them."""
        change = _Change(table)
        if not evolve(change, self.name, wanted):
            return None
        if not self._add_columns:
            columns = ", ".join(lacking(table.schema(), wanted))
            raise LakeMismatch(
                f"table {self.name} has no column for the values of {columns}, or a narrower type."
                " Set add_columns = true to change the table"
            )
        return change

    def writer(self) -> FileWriter:
        """Return a writer of data files for the table, which must exist."""
        table = self.open()
        if table is None:
            raise LakeMismatch(f"table {self.name} does not exist")
        return FileWriter(name=self.name, metadata=_light(table), io=table.io)

    # Commits

    def commit(
        self,
        mark: Mark,
        proceed: Callable[[Mark | None], bool],
        change: Callable[[Table], Change],
    ) -> Snapshot | None:
        """Commit a change of files together with a mark; return the new snapshot.

        Args:
            proceed: receives the current mark, and returns whether the commit is still to be made.
                It is called again if another writer committed first.
            change: returns the files to add and to remove, for the table's current snapshot.

        Returns:
            None if `proceed` returned false.
        """
        for _ in range(COMMIT_ATTEMPTS_MAX):
            if not proceed(self.mark()):
                return None
            table = self.open()
            if table is None:
                raise LakeMismatch(f"table {self.name} was dropped while it was written")
            with _reachable(self.name):
                try:
                    return self._attempt(table, mark, *change(table))
                except (CommitFailedException, ValidationException) as error:
                    _LOG.info("table %s: another writer committed first: %s", self.name, error)
            self.open(fresh=True)
        raise LakeUnavailable(f"table {self.name}: other writers committed first at each attempt")

    def _attempt(
        self, table: Table, mark: Mark, added: Sequence[DataFile], removed: Sequence[DataFile]
    ) -> Snapshot:
        if any(file.spec_id != table.metadata.default_spec_id for file in added):
            raise LakeUnavailable(
                f"table {self.name}: its partitions changed while a batch was written. The batch"
                " is written again"
            )
        snapshot = table.current_snapshot()
        before = 0 if snapshot is None else snapshot.sequence_number or 0
        marks = _marks(table) | {PREFIX + self._application: msgspec.json.encode(mark).decode()}
        transaction = _Change(table)
        update = transaction.update_snapshot(snapshot_properties=marks)
        with update.overwrite() if removed else update.merge_append() as producer:
            for file in added:
                producer.append_data_file(file)
            for file in removed:
                producer.delete_data_file(file)
        upkeep = table.properties.get(UPKEEP) == "true"
        if before // EXPIRE_COMMITS != (before + 1) // EXPIRE_COMMITS:
            if removed:
                # An overwrite merges no manifests; a second snapshot without files does.
                with transaction.update_snapshot(snapshot_properties=marks).merge_append():
                    pass
            if upkeep:
                self._expire(transaction)
        committed = self._take(transaction.commit_transaction()).current_snapshot()
        if committed is None:
            raise LakeMismatch(f"table {self.name} has no snapshot after a commit")
        if upkeep and before // ORPHAN_COMMITS != (before + 1) // ORPHAN_COMMITS:
            self.remove_orphans()
        return committed

    def _expire(self, transaction: Any) -> None:
        metadata = transaction.table_metadata
        named = {ref.snapshot_id for ref in metadata.refs.values()}
        newest_first = sorted(metadata.snapshots, key=lambda item: -(item.sequence_number or 0))
        old = [item.snapshot_id for item in newest_first[self._snapshots_kept :]]
        if expired := [number for number in old if number not in named]:
            with ExpireSnapshots(transaction) as expiry:
                expiry.by_ids(expired)

    def remove_orphans(self, *, older_than_hours: float = ORPHAN_AGE_HOURS) -> list[str]:
        """Delete files that no snapshot names; arguments and result are those of `files`."""
        table = self.open(fresh=True)
        if table is None:
            return []
        with _reachable(self.name):
            found = remove_orphans(table, older_than_hours=older_than_hours)
        if found:
            _LOG.info("table %s: deleted %d files that no snapshot names", self.name, len(found))
        return found

    def _take(self, table: Table) -> Table:
        """Keep a table, with the properties of this module where it does not set them."""
        given = table.metadata.properties
        table.metadata = table.metadata.model_copy(
            update={"properties": {**PROPERTIES, **given, **self._own}}
        )
        self._table = table
        return table


def appended(files: Sequence[DataFile]) -> Callable[[Table], Change]:
    return lambda table: (files, ())


@lru_cache(CATALOGS_MAX)
def catalog_of(target: Target) -> Catalog:
    """Return the open catalogue of a target.

    Raises:
        LakeMismatch: the properties describe no catalogue.
    """
    properties = dict(target.catalog)
    name = properties.pop("name", DEFAULT_CATALOG)
    try:
        return load_catalog(name, **{**_FILE_IO, **properties})
    except (ValueError, KeyError, TypeError, NotInstalledError) as error:
        raise LakeMismatch(
            f"catalog {name} cannot be opened: {error}. Set its type, uri and warehouse"
        ) from error


def _marks(table: Table) -> dict[str, str]:
    """Return the marks of all applications, from the newest snapshot that has some."""
    snapshot = table.current_snapshot()
    while snapshot is not None:
        summary = snapshot.summary
        properties: Mapping[str, str] = {} if summary is None else summary.additional_properties
        if found := {key: text for key, text in properties.items() if key.startswith(PREFIX)}:
            return found
        parent = snapshot.parent_snapshot_id
        snapshot = None if parent is None else table.snapshot_by_id(parent)
    return {}


def _light(table: Table) -> Any:
    """Return metadata without snapshots, for writers that are sent to other processes."""
    nothing: dict[str, Any] = {"snapshots": [], "snapshot_log": [], "metadata_log": [], "refs": {}}
    return table.metadata.model_copy(update=nothing)


@contextmanager
def _reachable(name: str) -> Iterator[None]:
    try:
        yield
    except (
        CommitStateUnknownException, ServerError, ServiceUnavailableError, OperationalError,
        OSError,
    ) as error:  # fmt: skip
        raise LakeUnavailable(f"table {name}: {type(error).__name__}: {error}") from error
    except (RESTError, DBAPIError) as error:
        raise LakeMismatch(f"table {name}: {type(error).__name__}: {error}") from error
