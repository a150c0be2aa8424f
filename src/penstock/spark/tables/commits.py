"""Identity of a batch's commit: application, batch number and query.

Delta keeps, per application name, the greatest number committed with it (a transaction identifier)
in the table's state. A batch's commit has

    <application>                the batch number; a replay finds it and does nothing
    <application>#query          63 bits of the Spark query's id, which names its checkpoint
    further transactions         numbers of the caller's, such as the offsets reached

With a deleted checkpoint Spark counts batches from zero again, and every batch would look like a
replay; the query's id distinguishes them. A batch written outside of a query has no id.

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
    """Last batch of the application by another Spark query: another checkpoint."""

    code: ClassVar[str] = "invalid_config"

    def __init__(self, table: str, application: str, last_batch: int, query: str) -> None:
        super().__init__(
            f"table {table}: the last batch of application {application!r}, {last_batch}, was "
            f"committed under another checkpoint than that of query {query}. Batch numbers are "
            "compared within one checkpoint only: bring its directory back, or give a query that "
            "without its old checkpoint an application name of its own"
        )
        self.table = table
        self.application = application


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """Identity of one batch, and its metadata.

    `app_transactions` are further transaction identifiers; `metadata` shows in the table's history.
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
    """Whether the table has this batch, or a later one, of this application.

    Raises:
        QueryChanged: it has batches of this application under another query's id.
    """
    last = None if table is None else table.transaction_version(commit.application)
    if table is None or last is None:
        return False
    query = commit.query
    if query is not None and committed_by_another(table, commit.application, query) is not None:
        raise QueryChanged(table.table_uri, commit.application, last, query)
    return last >= commit.batch_id


def committed_by_another(table: DeltaTable, application: str, query: str | None) -> int | None:
    """Return the last batch of an application if another query committed it, else None.

    Args:
        query: the query's id; None for one that has not started.
    """
    number = table.transaction_version(application + QUERY_SUFFIX)
    if number is None or (query is not None and number == query_number(query)):
        return None
    return table.transaction_version(application)


def query_number(query: str) -> int:
    """Return a query's id as a number that fits a transaction identifier."""
    return int.from_bytes(hashlib.sha256(query.encode()).digest()[:8], "big") >> 1
