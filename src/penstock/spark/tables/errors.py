"""Errors of tables: mismatches with the data written to, read from or kept in them."""

from __future__ import annotations

from typing import ClassVar

from penstock.base.errors import InvalidError


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


class UnreadableTable(InvalidError):
    """Table with a feature of Delta that a scan of its Parquet files does not honour."""

    code: ClassVar[str] = "unsupported_version"

    def __init__(self, table: str, features: str) -> None:
        super().__init__(
            f"table {table} uses {features}, which a scan of its Parquet files would read "
            "wrongly; read it with Delta's own connector"
        )
        self.table = table


class UnwritableTable(InvalidError):
    """Table with a feature of Delta that writes here do not maintain."""

    code: ClassVar[str] = "unsupported_version"

    def __init__(self, table: str, features: str) -> None:
        super().__init__(
            f"table {table} uses {features}, which cannot be kept up by writes here; write "
            "another table, or write this one with Delta's own connector"
        )
        self.table = table


class TableOfAnotherTopic(InvalidError):
    """Table with records of another topic, or of an earlier one of that name."""

    code: ClassVar[str] = "inconsistent_topic_id"

    def __init__(self, table: str, topic: str, topic_id: str, held: str) -> None:
        super().__init__(
            f"table {table} was not kept from topic {topic} with id {topic_id}: its last commit "
            f"is of {held}. A topic that was deleted and created again starts with other records: "
            "move the table away, or set the topic's table.location to another place"
        )
        self.table = table
        self.topic = topic


class LogStartsAfterTable(InvalidError):
    """Records between the end of the table and the start of the log that are in neither."""

    code: ClassVar[str] = "offset_out_of_range"

    def __init__(self, table: str, topic: str, partition: int, end: int, log_start: int) -> None:
        super().__init__(
            f"{topic}-{partition}: table {table} ends at offset {end} and the log starts at "
            f"{log_start}: the records from {end} to {log_start - 1} were deleted (retention, or "
            "a delete-records call) before the table had them"
        )
        self.table = table
        self.topic = topic
        self.partition = partition
        self.end = end
        self.log_start = log_start
