"""Traces of a pipeline: spans of micro-batches and of the commits of their sinks.

The span `batch` begins a trace of its own and is linked to the contexts of the traced records that
the batch has read. Brokers return these contexts by ranges of offsets; the batch's records are not
searched. The span `commit` of each sink is a child of `batch`. It is repeated in the trace of every
linked record, so that this trace ends with the record's commit into the table.

The settings are `otlp.*`, from environment variables such as `PENSTOCK_OTLP_ENDPOINT`.
"""

from __future__ import annotations

import atexit
import logging
import os
from collections.abc import Iterator, Mapping
from functools import cache, partial
from itertools import islice
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from penstock.base.otlp import STOP_SECONDS, Exporter
from penstock.base.otlp_settings import OtlpSettings
from penstock.base.settings import by_name, load
from penstock.base.system import SYSTEM_CLOCK, SYSTEM_RANDOMNESS
from penstock.base.traces import TraceContext, Tracer, parse_traceparent
from penstock.client.errors import AdminUnavailable
from penstock.client.security import admin_security, environment_options
from penstock.spark.admin_http import BrokerAdmins
from penstock.spark.errors import NotPenstock
from penstock.spark.pipeline import late
from penstock.spark.pipeline.state import PipelinePaths

if TYPE_CHECKING:
    from pathlib import Path

    from penstock.spark.pipeline.spec import PipelineSpec

LINKS_MAX: Final = 32
"""Traced records whose traces one batch continues."""
REQUEST_SECONDS: Final = 2.0
"""Time limit of the request for the contexts of one topic to one broker."""

_LOG: Final = logging.getLogger(__name__)

CommitTimes = Mapping[str, tuple[float, float]]
"""Begin and end of each target's commit, in monotonic seconds."""


class BatchTraces:
    """Spans of batches. A thread asks for their links and exports them, so batches never wait."""

    def __init__(self, settings: OtlpSettings) -> None:
        self._exporter = Exporter(settings, {"service.name": "penstock-pipeline"})
        self._tracer = Tracer(
            self._exporter.record,
            clock=SYSTEM_CLOCK,
            randomness=SYSTEM_RANDOMNESS,
            ratio=settings.sample_ratio,
        )
        self._exporter.start()
        atexit.register(self._exporter.stop, STOP_SECONDS)

    def committed(
        self,
        spec: PipelineSpec,
        query: str,
        *,
        batch_id: int,
        started: float,
        commits: CommitTimes,
    ) -> None:
        """Record the spans of a batch that has ended now.

        A batch without traced records is recorded for the share `otlp.sample.ratio` of batches.
        """
        ended = SYSTEM_CLOCK.monotonic()
        self._exporter.defer(partial(self._record, spec, query, batch_id, started, ended, commits))

    def _record(
        self,
        spec: PipelineSpec,
        query: str,
        batch_id: int,
        started: float,
        ended: float,
        commits: CommitTimes,
    ) -> None:
        found = linked(spec, PipelinePaths(spec).checkpoint(query), batch_id)
        links = tuple(islice(found, LINKS_MAX))
        if not links and not self._tracer.begins():
            return
        tracer = self._tracer
        attributes: dict[str, str | int] = {
            "penstock.pipeline": spec.name, "penstock.query": query, "penstock.batch": batch_id,
        }  # fmt: skip
        context = tracer.context(None)
        tracer.record(
            "batch", context, None, start=started, end=ended, kind="consumer",
            attributes=attributes, links=links,
        )  # fmt: skip
        for sink, (begin, end) in commits.items():
            for parent in (context, *links):
                tracer.record(
                    "commit", tracer.context(parent), parent, start=begin, end=end,
                    attributes={**attributes, "penstock.sink": sink},
                    links=() if parent is context else (context,),
                )  # fmt: skip


@cache
def batch_traces() -> BatchTraces | None:
    """Return the traces of this process; None if no `otlp.endpoint` is set.

    Raises:
        InvalidSetting: a setting in the environment is invalid.
    """
    given = {
        name: os.environ[variable]
        for name in by_name(OtlpSettings)
        if (variable := "PENSTOCK_" + name.upper().replace(".", "_")) in os.environ
    }
    settings = load(OtlpSettings, given)
    return BatchTraces(settings) if settings.endpoint else None


def linked(spec: PipelineSpec, checkpoint: Path, batch_id: int) -> Iterator[TraceContext]:
    """Yield the contexts of the traced records of a batch.

    Brokers that do not respond are left out.
    """
    if not spec.run.admin_url:
        return
    try:
        bounds = late.bounds(checkpoint, batch_id)
    except late.CheckpointUnreadable:
        return
    admins = BrokerAdmins(spec.run.admin_url, security=admin_security(environment_options()))
    try:
        for topic, ranges in bounds.ranges.items() if bounds is not None else ():
            asked = ",".join(f"{index}:{low}-{high}" for index, (low, high) in ranges.items())
            path = f"/v1/topics/{quote(topic, safe='')}/traces?ranges={asked}"
            yield from _contexts(admins, path)
    finally:
        admins.close()


def _contexts(admins: BrokerAdmins, path: str) -> Iterator[TraceContext]:
    for address in admins.in_order:
        try:
            answer = address.ask("GET", path, timeout_seconds=REQUEST_SECONDS)
        except (AdminUnavailable, NotPenstock) as error:
            _LOG.debug("no trace contexts from %s: %s", address.url, error)
            continue
        if answer.status == 200:
            yield from filter(None, map(parse_traceparent, answer.body["traces"]))
