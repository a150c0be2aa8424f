"""Alert rules for Prometheus. Each rule states what to do, and names the guide with the details.

A rule's expression uses declared metrics only (`names_in`), besides `up`, which Prometheus adds.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Final, Literal

from msgspec import Struct

from penstock.apps.monitoring.dashboards import UnknownMetric
from penstock.base.metrics import Metric

Severity = Literal["critical", "warning", "info"]

CRITICAL: Final = "critical"
WARNING: Final = "warning"
INFO: Final = "info"
JOB: Final = "penstock.*"
"""Pattern of the scrape jobs whose targets `PenstockTargetDown` covers."""
_NAME: Final = re.compile(r"\b(?:penstock|kafka)_\w+")
_PART: Final = re.compile(r"_(?:bucket|sum|count)$")


class Alert(Struct, frozen=True, kw_only=True):
    """Alert rule.

    `lasting` is Prometheus's `for`. `summary` may contain templates of Prometheus. `advice` is
    the action for the operator, and `guide` the page with the details.
    """

    name: str
    expression: str
    lasting: str
    severity: Severity
    summary: str
    advice: str
    guide: str


class Group(Struct, frozen=True):
    name: str
    alerts: tuple[Alert, ...]


def _p99(metric: str, labels: str, by: str) -> str:
    return f"histogram_quantile(0.99, sum by (le, {by}) (rate({metric}_bucket{{{labels}}}[5m])))"


GROUPS: Final = (
    Group("penstock-brokers", (
        Alert(
            name="PenstockTargetDown",
            expression=f'up{{job=~"{JOB}"}} == 0',
            lasting="1m",
            severity=CRITICAL,
            summary="Prometheus cannot scrape {{ $labels.instance }}.",
            advice="Check that the process runs and that its admin address can be reached. Start it"
            " again, and run `penstock doctor` for the cause.",
            guide="docs/guides/operating.md",
        ),
        Alert(
            name="PenstockBrokerNotReady",
            expression="penstock_broker_ready == 0",
            lasting="2m",
            severity=CRITICAL,
            summary="The broker at {{ $labels.instance }} is not ready.",
            advice="Request `/readyz` of the broker's admin address: it names the failed checks and"
            " their causes. `penstock doctor` shows how to fix them.",
            guide="docs/guides/operating.md",
        ),
        Alert(
            name="PenstockProcessDown",
            expression="penstock_process_up == 0",
            lasting="1m",
            severity=CRITICAL,
            summary="Broker {{ $labels.broker }} behind {{ $labels.instance }} does not answer.",
            advice="Its parent restarts it after it has ended. If it keeps ending, read its log.",
            guide="docs/guides/processes.md",
        ),
        Alert(
            name="PenstockDatabaseUnreachable",
            expression='penstock_broker_check_failing{check="database"} == 1',
            lasting="1m",
            severity=CRITICAL,
            summary="The broker at {{ $labels.instance }} cannot reach the metadata database.",
            advice="Restore the database or the network to it. Brokers continue to serve local and"
            " replicated topics, but cannot elect leaders, create topics or commit offsets.",
            guide="docs/guides/postgresql.md",
        ),
        Alert(
            name="PenstockObjectStoreUnreachable",
            expression='penstock_broker_check_failing{check="object store"} == 1',
            lasting="1m",
            severity=CRITICAL,
            summary="The broker at {{ $labels.instance }} cannot reach the object store.",
            advice="Check the store, its credentials and the network. Diskless topics reject writes"
            " until it answers.",
            guide="docs/guides/diskless.md",
        ),
    )),
    Group("penstock-storage", (
        Alert(
            name="PenstockStorageFailed",
            expression="penstock_storage_failed == 1",
            lasting="0m",
            severity=CRITICAL,
            summary="The log of {{ $labels.instance }} rejects all appends after a failed write.",
            advice="Replace the disk, or free space on it. Then restart the broker: it recovers its"
            " log from the journal.",
            guide="docs/guides/operating.md",
        ),
        Alert(
            name="PenstockDiskNearlyFull",
            expression="penstock_storage_disk_free_bytes / penstock_storage_disk_size_bytes < 0.15",
            lasting="5m",
            severity=WARNING,
            summary="The disk of {{ $labels.instance }} has"
            " {{ $value | humanizePercentage }} free space.",
            advice="Shorten `retention.ms` or `retention.bytes` of large topics, enlarge the disk,"
            " or move partitions to another broker.",
            guide="docs/guides/operating.md",
        ),
        Alert(
            name="PenstockDiskFull",
            expression="penstock_storage_disk_free_bytes / penstock_storage_disk_size_bytes < 0.05",
            lasting="1m",
            severity=CRITICAL,
            summary="The disk of {{ $labels.instance }} has only"
            " {{ $value | humanizePercentage }} free space.",
            advice="Free space now: shorten retention of large topics, or enlarge the disk. A full"
            " disk makes the broker reject all appends.",
            guide="docs/guides/operating.md",
        ),
        Alert(
            name="PenstockDamagedRecords",
            expression="increase(penstock_storage_damaged_ranges_total[1h]) > 0"
            " or increase(penstock_storage_damaged_partitions_total[1h]) > 0",
            lasting="0m",
            severity=CRITICAL,
            summary="{{ $labels.instance }} found damaged records on its disk.",
            advice="Run `penstock log verify` and check the disk. Records of replicated topics are"
            " fetched from another replica. Others must be restored from a copy.",
            guide="docs/guides/log-files.md",
        ),
    )),
    Group("penstock-replication", (
        Alert(
            name="PenstockPartitionsWithoutLeader",
            expression="max by (job) (penstock_partitions_without_leader) > 0",
            lasting="1m",
            severity=CRITICAL,
            summary="{{ $value }} partitions have no leader, and cannot be written or read.",
            advice="Start the missing brokers. `penstock cluster status` lists the partitions"
            " and the brokers that have their replicas.",
            guide="docs/guides/cluster.md",
        ),
        Alert(
            name="PenstockPartitionsUnderReplicated",
            expression="penstock_partitions_under_replicated > 0",
            lasting="5m",
            severity=WARNING,
            summary="{{ $value }} partitions that {{ $labels.instance }} leads lack an in-sync"
            " replica.",
            advice="Start the missing broker, or check its disk and network if it runs. Until the"
            " replica catches up, one more failure may make the partition unavailable.",
            guide="docs/guides/cluster.md",
        ),
    )),
    Group("penstock-clients", (
        Alert(
            name="PenstockProduceSlow",
            expression=_p99("penstock_kafka_request_duration_seconds", 'api="Produce"', "instance")
            + " > 1",
            lasting="10m",
            severity=WARNING,
            summary="The slowest percent of Produce requests at {{ $labels.instance }} takes"
            " {{ $value | humanizeDuration }}.",
            advice="Look at the storage board for slow syncs, and at replicas that are behind. Run"
            " `penstock bench` on the host to measure its disk.",
            guide="docs/guides/operating.md",
        ),
        Alert(
            name="PenstockFetchSlow",
            expression=_p99("penstock_kafka_request_duration_seconds", 'api="Fetch"', "instance")
            + " > 5",
            lasting="10m",
            severity=WARNING,
            summary="The slowest percent of Fetch requests at {{ $labels.instance }} takes"
            " {{ $value | humanizeDuration }}.",
            advice="Fetch requests wait for records up to the consumer's `fetch.max.wait.ms`. If no"
            " consumer waits for more than 5 s, look at the disk and the object store.",
            guide="docs/guides/operating.md",
        ),
        Alert(
            name="PenstockClientsThrottled",
            expression="sum by (instance, quota) (rate(penstock_quota_throttle_seconds_total[5m]))"
            " > 0.1",
            lasting="10m",
            severity=INFO,
            summary="{{ $labels.instance }} throttles clients above their quota for"
            " {{ $labels.quota }}.",
            advice="Metric `penstock_quota_used_ratio` names the clients. Raise their quota with"
            " `penstock quota set`, or reduce their load.",
            guide="docs/guides/quotas.md",
        ),
        Alert(
            name="PenstockCertificateExpiring",
            expression="penstock_tls_certificate_ends_timestamp_seconds - time() < 14 * 86400",
            lasting="1h",
            severity=WARNING,
            summary="The certificate of listener {{ $labels.listener }} at {{ $labels.instance }}"
            " expires in {{ $value | humanizeDuration }}.",
            advice="Replace the files. The broker loads changed files itself; `penstock tls reload`"
            " reports whether it could.",
            guide="docs/guides/securing-a-broker.md",
        ),
        Alert(
            name="PenstockCertificateNotReloaded",
            expression="increase(penstock_security_files_not_reloaded_total[15m]) > 0",
            lasting="0m",
            severity=WARNING,
            summary="{{ $labels.instance }} could not load the changed file {{ $labels.file }}.",
            advice="The previous content stays in use. Run `penstock tls reload` for the cause, and"
            " correct the file.",
            guide="docs/guides/securing-a-broker.md",
        ),
    )),
    Group("penstock-groups", (
        Alert(
            name="PenstockGroupFallingBehind",
            expression="penstock_group_state == 2",
            lasting="10m",
            severity=WARNING,
            summary="Group {{ $labels.consumergroup }} falls behind: its lag does not decrease.",
            advice="Run `penstock group watch` to see its partitions and the forecast. Add"
            " consumers, or make them faster.",
            guide="docs/guides/operating.md",
        ),
        Alert(
            name="PenstockGroupStopped",
            expression="penstock_group_state > 2",
            lasting="5m",
            severity=CRITICAL,
            summary="Group {{ $labels.consumergroup }} has stopped, repeats offsets, or lost"
            " records (state {{ $value }}).",
            advice="States: 3 ERR, records were deleted before the group has read them; 4 STOP, it"
            " commits no more; 5 STALL, it commits the same offsets; 6 REWIND, it went back. Run"
            " `penstock group watch` for the partitions, and check the consumers.",
            guide="docs/guides/operating.md",
        ),
    )),
    Group("penstock-diskless", (
        Alert(
            name="PenstockDisklessBacklog",
            expression="min_over_time(penstock_diskless_objects_in_flight[5m]) > 0"
            " and increase(penstock_diskless_objects_committed_total[5m]) == 0",
            lasting="1m",
            severity=CRITICAL,
            summary="{{ $labels.instance }} commits no objects of diskless topics, and"
            " {{ $value }} wait.",
            advice="Check the object store and the metadata database: an object needs both to be"
            " committed. Producers wait, and get errors when the buffer is full.",
            guide="docs/guides/diskless.md",
        ),
        Alert(
            name="PenstockDisklessWritesFail",
            expression="increase(penstock_diskless_objects_failed_total[5m]) > 0"
            " or increase(penstock_diskless_submissions_refused_total[5m]) > 0",
            lasting="2m",
            severity=CRITICAL,
            summary="{{ $labels.instance }} rejects writes to diskless topics.",
            advice="Check the object store and the metadata database. Producers retry rejected"
            " writes.",
            guide="docs/guides/diskless.md",
        ),
    )),
    Group("penstock-dead-letters", (
        Alert(
            name="PenstockDeadLetters",
            expression="increase(penstock_share_dead_letters_total[15m]) > 0",
            lasting="0m",
            severity=WARNING,
            summary="Share groups at {{ $labels.instance }} wrote dead letters"
            " ({{ $labels.cause }}).",
            advice="Read them with `penstock consume` from the dead-letter topic, whose headers"
            " have the cause. Fix the consumer, and redrive them with `penstock queue redrive`.",
            guide="docs/guides/share-groups.md",
        ),
        Alert(
            name="PenstockPipelineDeadLetters",
            expression="increase(penstock_pipeline_dead_letters_total[15m]) > 0",
            lasting="0m",
            severity=WARNING,
            summary="Query {{ $labels.query }} of pipeline {{ $labels.pipeline }} wrote dead"
            " letters.",
            advice="Their headers have the cause. After correcting it, send them again with"
            " `penstock pipeline replay`.",
            guide="docs/guides/pipelines.md",
        ),
    )),
    Group("penstock-host-agents", (
        Alert(
            name="PenstockAgentSinkRefuses",
            expression="penstock_host_sink_accepts == 0",
            lasting="1m",
            severity=CRITICAL,
            summary="The sink of the host agent at {{ $labels.instance }} accepts no events.",
            advice="Check that the agent reaches the brokers. Producers on this host wait until it"
            " accepts events again.",
            guide="docs/guides/host-deployment.md",
        ),
    )),
)  # fmt: skip


def names_in(expression: str, declared: Collection[str]) -> set[str]:
    """Return the metrics that a PromQL expression uses.

    The series of a histogram stand for its declared name.
    """
    names = _NAME.findall(expression)
    return {name if name in declared else _PART.sub("", name) for name in names}


def alert_rules(declared: Sequence[Metric], groups: Iterable[Group] = GROUPS) -> str:
    """Return the rules as the YAML text of a Prometheus rule file.

    Raises:
        UnknownMetric: an expression uses a metric that is not declared.
    """
    known = {metric.name for metric in declared}
    lines = ["# Generated by `penstock monitoring alerts` from the code; do not edit.", "groups:"]
    for group in groups:
        lines += [f"  - name: {group.name}", "    rules:"]
        for alert in group.alerts:
            unknown = names_in(alert.expression, known) - known
            if unknown:
                raise UnknownMetric(f"{alert.name} uses {', '.join(sorted(unknown))}, undeclared")
            lines += _rule(alert)
    return "\n".join(lines) + "\n"


def _rule(alert: Alert) -> Iterator[str]:
    yield f"      - alert: {alert.name}"
    yield f"        expr: {_text(alert.expression)}"
    yield f"        for: {alert.lasting}"
    yield "        labels:"
    yield f"          severity: {alert.severity}"
    yield "        annotations:"
    yield f"          summary: {_text(alert.summary)}"
    yield f"          description: {_text(f'{alert.advice} Guide: {alert.guide}')}"


def _text(value: str) -> str:
    """Return a text as a quoted scalar of YAML, whose double-quoted form includes JSON's."""
    return json.dumps(value, ensure_ascii=False)


def alerts_page() -> str:
    """Return the text of `docs/reference/alerts.md`."""
    parts = [_PAGE_HEAD]
    for group in GROUPS:
        for alert in group.alerts:
            guide = alert.guide.removeprefix("docs/")
            summary = re.sub(r"\{\{ *\$(?:labels\.)?(\w+)[^}]*\}\}", r"`\1`", alert.summary)
            parts.append(
                f"## {alert.name}\n\n{summary}\n\n{alert.advice}"
                f" Guide: [{guide.rpartition('/')[2].removesuffix('.md')}](../{guide}).\n\n"
                f"Severity `{alert.severity}`, after {alert.lasting}:\n\n"
                f"```promql\n{alert.expression}\n```\n"
            )
    return "\n".join(parts)


_PAGE_HEAD: Final = """\
# Alerts

Generated by `scripts/reference.py` from the rules in the code; do not edit.

`deploy/monitoring/penstock-alerts.yaml` has these rules for Prometheus. A threshold that does not
fit your cluster can be changed there.
"""
