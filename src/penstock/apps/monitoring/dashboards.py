"""Grafana dashboards: a board names its metrics, or prefixes of metrics, and nothing else.

Each metric gets one panel. Its declaration determines the panel:

| declaration        | panel                                                       |
|--------------------|-------------------------------------------------------------|
| counter            | rate of each instance and label                             |
| gauge              | value of each instance and label                            |
| histogram          | median and 99th percentile of each label                    |
| doc                | title (its first sentence) and description                  |
| unit in the name   | unit of the axis                                            |
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

from msgspec import Struct

from penstock.base.metrics import Metric

COLUMNS: Final = 24
WIDTH: Final = 8
HEIGHT: Final = 7
TITLE_CHARACTERS_MAX: Final = 90
SCHEMA_VERSION: Final = 39
"""Version of Grafana's dashboard model, of Grafana 10 and later."""
_SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
_SELECTED: Final = 'job=~"$job",instance=~"$instance"'


class Row(Struct, frozen=True):
    """Row of panels. A name that ends with `_` stands for all metrics with this prefix."""

    title: str
    names: tuple[str, ...]


class Board(Struct, frozen=True):
    """Dashboard; `name` is its file's name and the end of its uid."""

    name: str
    title: str
    rows: tuple[Row, ...]


BOARDS: Final = (
    Board("overview", "Overview", (
        Row("Health", (
            "penstock_broker_ready", "penstock_broker_check_failing", "penstock_storage_failed",
            "penstock_partitions_without_leader", "penstock_partitions_under_replicated",
            "penstock_storage_disk_free_bytes",
        )),
        Row("Traffic", (
            "penstock_kafka_received_bytes_total", "penstock_kafka_sent_bytes_total",
            "penstock_kafka_request_duration_seconds", "penstock_kafka_request_errors_total",
            "penstock_kafka_connections", "penstock_quota_throttled_total",
        )),
        Row("Consumers", ("kafka_consumergroup_lag", "kafka_consumergroup_members")),
        Row("Cluster", ("kafka_brokers", "kafka_topic_partitions", "penstock_process_")),
    )),
    Board("storage", "Storage", (
        Row("Disk and journal", (
            "penstock_storage_disk_free_bytes", "penstock_storage_disk_size_bytes",
            "penstock_storage_journal_", "penstock_storage_pending_bytes",
            "penstock_storage_unwritten_bytes", "penstock_storage_groups_total",
        )),
        Row("Log", ("penstock_storage_",)),
        Row("Archive of tiered topics", ("penstock_remote_",)),
        Row("Commits of exactly-once sinks", ("penstock_sink_",)),
    )),
    Board("requests", "Requests and clients", (
        Row("Requests", ("penstock_kafka_", "penstock_fetch_")),
        Row("Quotas", ("penstock_quota_",)),
        Row("Security", (
            "penstock_authentications_total", "penstock_unauthenticated_", "penstock_tls_",
            "penstock_security_", "penstock_audit_",
        )),
        Row("Metrics of clients", ("penstock_client_metrics_",)),
        Row("Export by OTLP", ("penstock_otlp_",)),
    )),
    Board("replication", "Replication", (
        Row("Partitions", ("penstock_partitions_", "penstock_broker_", "kafka_brokers")),
        Row("Topics", ("kafka_topic_", "penstock_topic_switches_", "penstock_topic_switch_")),
    )),
    Board("diskless", "Diskless topics", (
        Row("Writing", (
            "penstock_diskless_object_", "penstock_diskless_objects_",
            "penstock_diskless_put_", "penstock_diskless_commit_",
            "penstock_diskless_submissions_", "penstock_diskless_pending_",
        )),
        Row("Reading", ("penstock_objects_", "penstock_diskless_read_")),
        Row("Everything else", ("penstock_diskless_",)),
    )),
    Board("groups", "Groups and transactions", (
        Row("Consumer groups", ("kafka_consumergroup_", "penstock_group_")),
        Row("Share groups", ("penstock_share_",)),
        Row("Transactions", ("penstock_transactional_", "penstock_transactions_")),
    )),
    Board("host-agent", "Host agent and outbox", (
        Row("Agent", ("penstock_host_",)),
        Row("Outbox", ("penstock_outbox_",)),
    )),
    Board("registry", "Schema registry", (
        Row("Schemas", ("penstock_schema_registry_",)),
    )),
    Board("pipelines", "Spark pipelines", (
        Row("Pipelines", ("penstock_pipeline_",)),
    )),
    Board("connectors", "Connectors and mirrors", (
        Row("Connectors", ("penstock_connect_",)),
        Row("Mirrors", ("penstock_mirror_",)),
    )),
)  # fmt: skip

_UNITS: Final = (
    ("timestamp_seconds", "dateTimeAsIso"),
    ("_seconds", "s"),
    ("_bytes", "bytes"),
    ("_ratio", "percentunit"),
)


class UnknownMetric(LookupError):
    """A dashboard or rule names a metric that is not declared."""


def metrics_of(names: Iterable[str], declared: Sequence[Metric]) -> Iterator[Metric]:
    """Yield the metrics of a row.

    Raises:
        UnknownMetric: a name or prefix matches no declared metric.
    """
    for name in names:
        found = [
            metric
            for metric in declared
            if (metric.name.startswith(name) if name.endswith("_") else metric.name == name)
        ]
        if not found:
            raise UnknownMetric(f"no declared metric matches {name!r}")
        yield from found


def dashboards(declared: Sequence[Metric]) -> dict[str, str]:
    """Return the JSON text of each board by its file name.

    Raises:
        UnknownMetric: a board names a metric that is not declared.
    """
    return {
        f"penstock-{board.name}.json": json.dumps(_board(board, declared), indent=1) + "\n"
        for board in BOARDS
    }


def _board(board: Board, declared: Sequence[Metric]) -> dict[str, Any]:
    panels: list[dict[str, Any]] = []
    shown: set[str] = set()
    top = 0
    for row in board.rows:
        metrics = [item for item in metrics_of(row.names, declared) if item.name not in shown]
        metrics = list({metric.name: metric for metric in metrics}.values())
        shown.update(metric.name for metric in metrics)
        panels.append(_heading(row.title, len(panels) + 1, top))
        top += 1
        for place, metric in enumerate(metrics):
            across, down = place % (COLUMNS // WIDTH), place // (COLUMNS // WIDTH)
            at = {"x": across * WIDTH, "y": top + down * HEIGHT, "w": WIDTH, "h": HEIGHT}
            panels.append(_panel(metric, len(panels) + 1, at))
        top += -(-len(metrics) // (COLUMNS // WIDTH)) * HEIGHT
    return {
        "uid": f"penstock-{board.name}",
        "title": f"Penstock: {board.title}",
        "tags": ["penstock"],
        "schemaVersion": SCHEMA_VERSION,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "templating": {"list": _variables()},
        "links": [{
            "type": "dashboards", "tags": ["penstock"], "title": "Penstock", "asDropdown": True,
            "includeVars": True, "keepTime": True,
        }],
        "panels": panels,
    }  # fmt: skip


def _variables() -> list[dict[str, Any]]:
    chosen = {"includeAll": True, "multi": True, "allValue": ".*", "refresh": 2, "sort": 1}
    return [
        {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"},
        {
            "name": "job", "label": "Job", "type": "query", "datasource": _SOURCE, **chosen,
            "query": 'label_values({__name__=~"penstock_.+"}, job)',
            "current": {"text": "All", "value": "$__all"},
        },
        {
            "name": "instance", "label": "Instance", "type": "query", "datasource": _SOURCE,
            "query": 'label_values({__name__=~"penstock_.+",job=~"$job"}, instance)', **chosen,
            "current": {"text": "All", "value": "$__all"},
        },
    ]  # fmt: skip


def _heading(title: str, number: int, top: int) -> dict[str, Any]:
    at = {"x": 0, "y": top, "w": COLUMNS, "h": 1}
    return {
        "id": number,
        "type": "row",
        "title": title,
        "gridPos": at,
        "collapsed": False,
        "panels": [],
    }


def _panel(metric: Metric, number: int, at: dict[str, int]) -> dict[str, Any]:
    targets = [
        {
            "refId": chr(ord("A") + place),
            "datasource": _SOURCE,
            "expr": expression,
            "legendFormat": legend,
        }
        for place, (expression, legend) in enumerate(queries(metric))
    ]
    return {
        "id": number,
        "type": "timeseries",
        "title": title_of(metric),
        "description": f"{metric.doc} Metric: {metric.name}.",
        "datasource": _SOURCE,
        "gridPos": at,
        "fieldConfig": {
            "defaults": {"unit": unit_of(metric), "min": 0, "custom": {"fillOpacity": 8}},
            "overrides": [],
        },
        "options": {
            "legend": {"displayMode": "list", "placement": "bottom"},
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
        "targets": targets,
    }


def queries(metric: Metric) -> Iterator[tuple[str, str]]:
    """Yield the PromQL expressions of a metric's panel, each with the legend of its series."""
    by = ", ".join(("instance", *metric.labels))
    legend = " ".join(f"{{{{{label}}}}}" for label in ("instance", *metric.labels))
    series = f"{metric.name}{{{_SELECTED}}}"
    if metric.kind == "histogram":
        rate = f"rate({metric.name}_bucket{{{_SELECTED}}}[$__rate_interval])"
        by = ", ".join(("le", *metric.labels))
        labels = " ".join(f"{{{{{label}}}}}" for label in metric.labels)
        for quantile, words in ((0.5, "median"), (0.99, "99 %")):
            expression = f"histogram_quantile({quantile}, sum by ({by}) ({rate}))"
            yield expression, f"{labels} {words}".strip()
        return
    if metric.kind == "counter":
        series = f"rate({series}[$__rate_interval])"
    elif metric.name.endswith("timestamp_seconds"):
        series = f"1000 * {series}"
    yield f"sum by ({by}) ({series})", legend


def title_of(metric: Metric) -> str:
    """Return the first sentence of a metric's documentation, shortened."""
    sentence = metric.doc.partition(". ")[0].removesuffix(".")
    if len(sentence) > TITLE_CHARACTERS_MAX:
        sentence = sentence[: TITLE_CHARACTERS_MAX - 1].rpartition(" ")[0] + " …"
    return sentence


def unit_of(metric: Metric) -> str:
    """Return Grafana's unit of a metric, by the unit at the end of its name."""
    name = metric.name.removesuffix("_total")
    unit = next((unit for ending, unit in _UNITS if name.endswith(ending)), "short")
    if metric.kind == "counter":
        return {"bytes": "Bps", "s": "percentunit"}.get(unit, "ops")
    return unit
