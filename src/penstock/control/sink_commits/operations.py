"""The operations of sink commits; their rules are in `rules.py`, their rows in `statements.py`."""

from __future__ import annotations

from penstock.control.drivers.statements import Again, Operation
from penstock.control.sink_commits import statements
from penstock.control.sink_commits.rules import check_sink_commit, check_sink_version
from penstock.control.values import SinkCommit


def read(query_id: str) -> Operation[SinkCommit | None]:
    """One query's commit with its manifest."""
    found = yield statements.read(query_id)
    return None if found is None else statements.commit_of(found)


def read_all() -> Operation[list[SinkCommit]]:
    """All queries' commits by id, without manifests."""
    return [statements.commit_of(found) for found in (yield statements.read_all())]


def lock(query_id: str) -> Operation[SinkCommit | None]:
    """One query's commit without its manifest, locked until the transaction ends."""
    found = yield statements.lock(query_id)
    return None if found is None else statements.commit_of(found)


def save(record: SinkCommit, *, expected_version: int) -> Operation[int]:
    """Store a query's commit by the rules; its new version. Raises StaleSink or TooLarge."""
    found = yield from lock(record.query_id)
    return (yield from save_over(record, found, expected_version=expected_version))


def save_over(
    record: SinkCommit, found: SinkCommit | None, *, expected_version: int
) -> Operation[int]:
    """As `save`, over the row that was locked."""
    count = (yield statements.count()) if found is None else 0
    check_sink_commit(record, found=found, expected=expected_version, count=count)
    write = statements.insert if found is None else statements.update
    version: int | None = yield write(*statements.values_of(record))
    if version is None:
        raise Again(f"query {record.query_id!r} was saved at the same time")
    return version


def delete(query_id: str, *, expected_version: int) -> Operation[None]:
    """Forget a query, if it is there; raises StaleSink."""
    found = yield from lock(query_id)
    if found is not None:
        check_sink_version(query_id, found=found, expected=expected_version)
        yield statements.delete(query_id)
