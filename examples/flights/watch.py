"""The demo at work: one live table on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import json
import time
from typing import Any, Final

from rich.console import Console
from rich.live import Live
from rich.table import Table

from examples.flights.producer import Producer

PLAIN_SECONDS: Final = 5.0
QUERIES: Final = ("rows", "delays")
STARTING: Final[dict[str, Any]] = {}


class Watch:
    """Collects the pipeline's progress lines and shows them."""

    def __init__(self, console: Console, producer: Producer) -> None:
        self._console = console
        self._producer = producer
        self._queries: dict[str, dict[str, Any]] = {}
        self.read: list[tuple[float, int]] = []
        """How many records are in the tables by when, by the monotonic clock."""
        self._plain = ""
        self.failure = ""
        """The cause of the pipeline's end, in one line; empty while there is none."""
        self._plain_at = 0.0
        self._live = Live(self.table(), console=console, refresh_per_second=4, transient=False)

    def __enter__(self) -> Watch:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.show(last=True)
        self._live.stop()

    def line(self, text: str) -> None:
        """A line of the pipeline's standard output."""
        try:
            progress = json.loads(text)
        except ValueError:
            return
        if isinstance(progress, dict) and "failed" in progress:
            self.failure = str(progress["failed"])
        elif isinstance(progress, dict) and "query" in progress:
            self._queries[progress["query"]] = progress
            if progress["query"] == QUERIES[0]:
                self.read.append((time.monotonic(), progress["read"]))

    def say(self, text: str) -> None:
        """A sentence above the table."""
        self._console.print(text)

    def starting(self) -> None:
        """The pipeline starts, or starts again: what it said before is over."""
        self._queries = dict.fromkeys(QUERIES, STARTING)

    def show(self, *, last: bool = False) -> None:
        """Draw again what is known now."""
        if self._console.is_terminal:
            self._live.update(self.table())
        elif last or time.monotonic() - self._plain_at > PLAIN_SECONDS:
            self._plain_at = time.monotonic()
            parts = [f"produced {self._producer.sent:,} of {self._producer.total:,}"]
            parts += [
                f"{name} starts"
                if at is STARTING
                else f"{name}: batch {at['batch']}, read {at['read']:,}, lag {at['lag']:,}, "
                f"{at['rows_per_second']:,.0f} rows/s"
                for name, at in sorted(self._queries.items())
            ]
            text = "  " + "; ".join(parts)
            if text != self._plain:
                self._console.print(text, soft_wrap=True, highlight=False)
            self._plain = text

    def table(self) -> Table:
        """Producer and queries, one row each."""
        table = Table(title="Log to tables", title_justify="left")
        for column in ("what", "rows", "lag", "rows/s", "batch", "batch took"):
            table.add_column(column, justify="left" if column == "what" else "right")
        producer = self._producer
        rate = producer.sent / producer.seconds if producer.seconds else 0
        left = producer.total - producer.sent
        table.add_row("flights produced", f"{producer.sent:,}", f"{left:,}", f"{rate:,.0f}", "", "")
        for name, at in sorted(self._queries.items(), reverse=True):
            if at is STARTING:
                table.add_row(f"query {name}", "starts", "", "", "", "")
                continue
            table.add_row(
                f"query {name}",
                f"{at['read']:,}",
                f"{at['lag']:,}",
                f"{at['rows_per_second']:,.0f}",
                str(at["batch"]),
                f"{at['milliseconds'] / 1000:.1f} s",
            )
        return table
