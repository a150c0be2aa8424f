"""Identity of a batch's commit: application, batch number and query.

A Delta table stores the highest number committed under each name, as a transaction identifier. A
batch's commit sets these:

    <application>                the batch number; a repeated batch finds it and writes nothing
    <application>#query          63 bits of the Spark query's id, which identifies the checkpoint
    further transactions         numbers of the caller, such as the offsets reached

If a checkpoint is deleted, Spark counts batches from zero again, and every new batch would look
like a repeated one. The query's id detects this. A batch that is written outside of a streaming
query has no query id.

Source: the Delta transaction protocol, "Transaction Identifiers".
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

from deltalake import CommitProperties, DeltaTable, Transaction

from penstock.base.errors import InvalidError

QUERY_SUFFIX: Final = "#query"


class QueryChanged(InvalidError):
    """Conflict: the application's last batch was committed by a query with another checkpoint."""

    code: ClassVar[str] = "invalid_config"

    def __init__(self, table: str, application: str, last_batch: int, query: str) -> None:
        super().__init__(
            f"table {table}: the last batch of application {application!r}, {last_batch}, was "
            f"committed with another checkpoint than that of query {query}. Batch numbers count "
            "within one checkpoint. Restore the old checkpoint directory, or give the query "
            "another application name"
        )
        self.table = table
        self.application = application


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """Identity of one batch, and metadata of its commit.

    `app_transactions` are further transaction identifiers. `metadata` appears in the table's
    history.
    """

    application: str
    batch_id: int
    query: str | None = None
    app_transactions: Mapping[str, int] = field(default_factory=dict)
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def properties(self) -> CommitProperties:
        numbers = {self.application: self.batch_id, **self.app_transactions}
        shown = {"penstock.application": self.application, "penstock.batch": self.batch_id}
        if self.query is not None:
            numbers[self.application + QUERY_SUFFIX] = query_number(self.query)
            shown["penstock.query"] = self.query
        return CommitProperties(
            app_transactions=[Transaction(name, number) for name, number in numbers.items()],
            custom_metadata={**shown, **self.metadata},
        )


def in_table(table: DeltaTable | None, commit: Commit) -> bool:
    """Whether the table has this batch of this application, or a later one.

    Raises:
        QueryChanged: another query, with another id, committed batches of this application.
    """
    last = None if table is None else table.transaction_version(commit.application)
    if table is None or last is None:
        return False
    query = commit.query
    if query is not None and committed_by_another(table, commit.application, query) is not None:
        raise QueryChanged(table.table_uri, commit.application, last, query)
    return last >= commit.batch_id


def committed_by_another(table: DeltaTable, application: str, query: str | None) -> int | None:
    """Return the last batch number of an application if another query committed it, else None.

    Args:
        query: id of the query to compare with; None if it has not started yet.
    """
    number = table.transaction_version(application + QUERY_SUFFIX)
    if number is None or (query is not None and number == query_number(query)):
        return None
    return table.transaction_version(application)


def query_number(query: str) -> int:
    """Return a number of 63 bits, derived from a query's id, for a transaction identifier."""
    return int.from_bytes(hashlib.sha256(query.encode()).digest()[:8], "big") >> 1
