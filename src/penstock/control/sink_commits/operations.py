"""Methods of the control plane for sink commits, and operations that other methods share."""

from __future__ import annotations

from penstock.control.drivers.statements import Again, Operation, OverDatabase, operation, query
from penstock.control.sink_commits import statements
from penstock.control.sink_commits.rules import check_sink_commit, check_sink_version
from penstock.control.values import SinkCommit


class SinkCommits(OverDatabase):
    """Methods of `ControlPlane` for sink commits."""

    @query
    def sink_commit(self, query_id: str) -> Operation[SinkCommit | None]:
        """Return the newest commit of a query, or None."""
        return read(query_id)

    @operation()
    def save_sink_commit(self, record: SinkCommit, *, expected_version: int) -> Operation[int]:
        """Save a query's commit if the stored one is at `expected_version`; return the new version.

        An expected version of 0 means that the query has no commit. The rules of
        `check_sink_commit` say which commit may follow which. Versions come from one counter for
        all queries and are never reused.

        Raises:
            StaleSink: the stored commit is at another version, or the new one cannot follow it.
            TooLarge: too many queries or targets, or a manifest of more than
                `SINK_MANIFEST_BYTES_MAX`.
        """
        found = yield from lock(record.query_id)
        return (yield from save_over(record, found, expected_version=expected_version))

    @query
    def sink_commits(self) -> Operation[list[SinkCommit]]:
        """Return the newest commits of all queries, by query id, without manifests."""
        return read_all()

    @operation()
    def delete_sink_commit(self, query_id: str, *, expected_version: int) -> Operation[None]:
        """Delete a query's commit, if it has one.

        Raises:
            StaleSink: the commit is at another version.
        """
        found = yield from lock(query_id)
        if found is not None:
            check_sink_version(query_id, found=found, expected=expected_version)
            yield statements.delete(query_id)


def read(query_id: str) -> Operation[SinkCommit | None]:
    found = yield statements.read(query_id)
    return None if found is None else statements.commit_of(found)


def read_all() -> Operation[list[SinkCommit]]:
    return [statements.commit_of(found) for found in (yield statements.read_all())]


def lock(query_id: str) -> Operation[SinkCommit | None]:
    """Lock a query's commit until the transaction ends; return it without its manifest."""
    found = yield statements.lock(query_id)
    return None if found is None else statements.commit_of(found)


def save_over(
    record: SinkCommit, found: SinkCommit | None, *, expected_version: int
) -> Operation[int]:
    count = (yield statements.count()) if found is None else 0
    check_sink_commit(record, found=found, expected=expected_version, count=count)
    write = statements.insert if found is None else statements.update
    version: int | None = yield write(*statements.values_of(record))
    if version is None:
        raise Again(f"another writer saved the first commit of query {record.query_id!r}")
    return version
