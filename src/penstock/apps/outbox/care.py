"""Commands `penstock outbox sweep` and `audit`: remove consumed payloads, and report
inconsistencies.

The options of all outbox commands, and the parsers of durations and sizes, are here too.
"""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec

from penstock.apps.client.session import (
    State,
    client_options,
    counted,
    default_option,
    write_json,
    write_table,
)
from penstock.apps.process.daemon import handled
from penstock.base.errors import RetriableError, UnavailableError

if TYPE_CHECKING:
    from penstock.client import Client
    from penstock.outbox.gc.audit import AuditReport
    from penstock.outbox.gc.sweeper import Sweeper, SweepReport

_DURATION: Final = re.compile(r"([0-9]{1,12})(ms|s|m|h|d)")
_UNIT_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_SIZE: Final = re.compile(r"([0-9]{1,15})([kKmMgG]?)")
_UNIT_BYTES: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}

Command = Callable[..., Any]


def outbox_options(*, topic_required: bool = True) -> Callable[[Command], Command]:
    """Return a decorator that adds `--root` and `-t` to a command."""

    def wrap(command: Command) -> Command:
        command = click.option(
            "-t", "--topic", required=topic_required, help="Topic of the outbox's pointers."
        )(command)
        return click.option(
            "--root", required=True, envvar="PENSTOCK_OUTBOX_ROOT", metavar="DIRECTORY",
            help="Root directory of the outbox (PENSTOCK_OUTBOX_ROOT).",
        )(command)  # fmt: skip

    return wrap


def parse_duration(text: str, option: str) -> int:
    """Return a duration, as `500ms`, `90s`, `15m`, `24h` or `7d`, in milliseconds.

    Raises:
        click.UsageError: the text is invalid.
    """
    found = _DURATION.fullmatch(text)
    if found is None:
        raise click.UsageError(f"{option} {text}: must be a number and ms, s, m, h or d, as in 24h")
    return int(found.group(1)) * _UNIT_MS[found.group(2)]


def parse_size(text: str, option: str) -> int:
    """Return a size, as `4096`, `64k`, `1m` or `2g`, in bytes.

    Raises:
        click.UsageError: the text is invalid.
    """
    found = _SIZE.fullmatch(text)
    if found is None:
        raise click.UsageError(f"{option} {text}: must be a number of bytes, or one with k, m or g")
    return int(found.group(1)) * _UNIT_BYTES[found.group(2).lower()]


SHOWN_MAX: Final = 100
"""Most paths that are printed; the counts cover all."""


@click.command("sweep", short_help="Remove payloads that all groups have read.")
@outbox_options(topic_required=False)
@click.option(
    "--group", "groups", multiple=True,
    help="Group that must have read a payload before it is removed. May be repeated. Default: all"
    " groups with offsets of the topic.",
)  # fmt: skip
@default_option("--retention", "24h", "Age from which payloads are removed, as 30m, 24h or 7d.")
@default_option(
    "--orphan-age", "1h", "Age from which temporary files and empty directories are removed."
)
@default_option(
    "--grace", "24h", "Time beyond --retention after which a payload without a pointer is reported."
)
@click.option(
    "--remove-unreferenced",
    is_flag=True,
    help="Remove also payloads without a pointer, once they are beyond --grace.",
)
@click.option(
    "--execute",
    is_flag=True,
    help="Remove the files; without this option they are only counted and listed.",
)
@click.option(
    "--every",
    metavar="DURATION",
    help="Repeat at this interval, such as 1h, until SIGTERM. Default: sweep once.",
)
@client_options
def sweep(
    state: State,
    root: str,
    topic: str | None,
    groups: tuple[str, ...],
    retention: str,
    orphan_age: str,
    grace: str,
    remove_unreferenced: bool,
    execute: bool,
    every: str | None,
) -> None:
    """Remove consumed payloads, temporary files and empty directories of an outbox.

    Without --execute nothing is removed. A payload is removed when the retention has passed and
    every group has committed an offset beyond all of its pointers. Without -t payloads are kept.
    Exits with status 1 if something could not be removed.
    """
    from penstock.outbox.gc.pointer_index import TopicPointers
    from penstock.outbox.gc.sweeper import Sweeper, SweepRules

    if topic is None and (groups or remove_unreferenced):
        raise click.UsageError("--group and --remove-unreferenced need a topic: name it with -t")
    rules = SweepRules(
        retention_ms=parse_duration(retention, "--retention"),
        orphan_age_ms=parse_duration(orphan_age, "--orphan-age"),
        unreferenced_grace_ms=parse_duration(grace, "--grace"),
        remove_unreferenced=remove_unreferenced,
    )
    every_ms = None if every is None else parse_duration(every, "--every")

    def run(client: Client | None) -> None:
        pointers = None
        if client is not None and topic is not None:
            pointers = TopicPointers(client, topic, groups or None)
        sweeper = Sweeper(root, pointers=pointers, rules=rules, execute=execute)
        if every_ms is not None:
            _again_and_again(sweeper, every_ms)
            return
        report = sweeper.sweep()
        _show_sweep(state, report)
        if report.walked.failures:
            raise click.exceptions.Exit(1)

    if topic is None:
        run(None)
        return
    with state.client() as client:
        run(client)


def _again_and_again(sweeper: Sweeper, every_ms: int) -> None:
    """Sweep, write the result as a line of JSON, and wait; repeat until a signal.

    A sweep may be killed at any point, so a signal ends it at once.
    """
    with suppress(KeyboardInterrupt), handled(signal.default_int_handler, (signal.SIGTERM,)):
        while True:
            try:
                click.echo(json.dumps(_sweep_facts(sweeper.sweep())))
            except (RetriableError, UnavailableError) as error:
                click.echo(f"penstock: {error}; sweeping again in {every_ms} ms", err=True)
            signal.sigtimedwait((), every_ms / 1000)


def _sweep_facts(report: SweepReport) -> dict[str, Any]:
    facts = msgspec.to_builtins(report)
    walked = facts.pop("walked")
    notes = facts.pop("notes")
    return {
        **facts,
        "foreign": walked["foreign"],
        "failures": walked["failures"],
        "failed": walked["failed"][:SHOWN_MAX],
        "paths": [{"what": what, "path": path} for what, path in notes[:SHOWN_MAX]],
    }


def _show_sweep(state: State, report: SweepReport) -> None:
    facts = _sweep_facts(report)
    if state.json:
        write_json(facts)
        return
    if facts["paths"]:
        write_table(("what", "path"), [(item["what"], item["path"]) for item in facts["paths"]])
    rows = [
        ("payloads", report.payloads, None),
        ("removed", report.removed_payloads, report.removed_bytes),
        ("waiting for a group", report.waiting, None),
        ("young", report.young, None),
        ("unreferenced", report.unreferenced, report.unreferenced_bytes),
        ("temporary files removed", report.removed_temporaries, report.removed_temporary_bytes),
        ("directories removed", report.removed_directories, None),
        ("not the outbox's", report.walked.foreign, None),
        ("failures", report.walked.failures, None),
    ]
    groups = ", ".join(report.groups) or "none"
    title = f"groups: {groups}" + (
        "" if report.executed else " (dry run; add --execute to remove files)"
    )
    write_table(("", "count", "bytes"), rows, title=title)
    _show_failed(report.walked.failed)


def _show_failed(failed: list[str]) -> None:
    for text in failed[:SHOWN_MAX]:
        click.echo(f"penstock: {text}", err=True)


@click.command("audit", short_help="Check that payloads and pointers match.")
@outbox_options()
@click.option(
    "--group", "groups", multiple=True,
    help="Group whose unread payloads must exist. May be repeated. Default: all groups with"
    " offsets of the topic.",
)  # fmt: skip
@click.option("--checksums", is_flag=True, help="Read also every payload and compare its checksum.")
@default_option("--grace", "5m", "Age below which a payload without a pointer is not reported.")
@client_options
def audit(
    state: State, root: str, topic: str, groups: tuple[str, ...], checksums: bool, grace: str
) -> None:
    """List pointers without payload, payloads without pointer, and payloads that differ from the
    pointer.

    Changes nothing. Exits with status 1 on any problem.
    """
    from penstock.outbox.gc.audit import Auditor
    from penstock.outbox.gc.pointer_index import TopicPointers

    grace_ms = parse_duration(grace, "--grace")
    with state.client() as client:
        pointers = TopicPointers(client, topic, groups or None)
        report = Auditor(root, pointers, checksums=checksums, grace_ms=grace_ms).audit()
    _show_audit(state, report)
    if report.wrong:
        raise click.exceptions.Exit(1)


def _show_audit(state: State, report: AuditReport) -> None:
    findings = [(item.kind, item.path, item.detail) for item in report.findings]
    if state.json:
        write_json(
            {
                "wrong": report.wrong,
                "payloads": report.payloads,
                "payload_bytes": report.payload_bytes,
                "pointers": report.topic.pointers,
                "inline": report.topic.inline,
                "verified": report.verified,
                "groups": list(report.groups),
                "counts": dict(sorted(report.counts.items())),
                "findings": [
                    dict(zip(("kind", "path", "detail"), row, strict=True)) for row in findings
                ],
            }
        )
        return
    if findings:
        write_table(("what", "path", "detail"), findings[:SHOWN_MAX])
    rows = [
        ("payloads", report.payloads),
        ("pointers", report.topic.pointers),
        ("inline", report.topic.inline),
        ("checksums compared", report.verified),
        *sorted(report.counts.items()),
    ]
    verdict = "nothing is wrong" if not report.wrong else counted(report.wrong, "fault")
    write_table(("", "count"), rows, title=verdict)
