"""Operations on sink commits."""

from __future__ import annotations

from penstock.control.drivers.statements import Again, Operation
from penstock.control.sink_commits import statements
from penstock.control.sink_commits.rules import check_sink_commit, check_sink_version
from penstock.control.values import SinkCommit


def read(query_id: str) -> Operation[SinkCommit | None]:
    found = yield statements.read(query_id)
    return None if found is None else statements.commit_of(found)


def read_all() -> Operation[list[SinkCommit]]:
    return [statements.commit_of(found) for found in (yield statements.read_all())]


def lock(query_id: str) -> Operation[SinkCommit | None]:
    """Lock a query's commit until the transaction ends; return it without its manifest."""
    found = yield statements.lock(query_id)
    return None if found is None else statements.commit_of(found)


def save(record: SinkCommit, *, expected_version: int) -> Operation[int]:
    found = yield from lock(record.query_id)
    return (yield from save_over(record, found, expected_version=expected_version))


def save_over(
    record: SinkCommit, found: SinkCommit | None, *, expected_version: int
) -> Operation[int]:
    count = (yield statements.count()) if found is None else 0
    check_sink_commit(record, found=found, expected=expected_version, count=count)
    write = statements.insert if found is None else statements.update
    version: int | None = yield write(*statements.values_of(record))
    if version is None:
        raise Again(f"query {record.query_id!r} was saved at the same time")
    return version


def delete(query_id: str, *, expected_version: int) -> Operation[None]:
    found = yield from lock(query_id)
    if found is not None:
        check_sink_version(query_id, found=found, expected=expected_version)
        yield statements.delete(query_id)
