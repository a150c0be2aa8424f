"""`penstock doctor`: what is wrong, why, and what mends it.

Each check looks at one thing and returns `ok`, `warn` or `fail` with the cause and the cure.
The status is 1 when a check failed, 0 otherwise.
"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import tempfile
from dataclasses import asdict, dataclass
from email.utils import parsedate_to_datetime
from http.client import HTTPConnection, HTTPException
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import click

from penstock.apps.configuration import DEFAULT_DIRECTORY
from penstock.apps.host_reading import existing, quantile, sync_times_ms
from penstock.apps.session import State, client_options, write_json, write_table
from penstock.base.errors import PenstockError
from penstock.base.system import SYSTEM_CLOCK

if TYPE_CHECKING:
    from penstock.client import Client

FREE_BYTES_WARN: Final = 10 << 30
FREE_BYTES_FAIL: Final = 1 << 30
FILES_WARN: Final = 4096
SYNC_ROUNDS: Final = 20
SYNC_WARN_MS: Final = 10.0
JAVA_MINIMUM: Final = 17
ROUND_TRIP_WARN_MS: Final = 100.0

SKEW_WARN_SECONDS: Final = 2.0
ADMIN_TIMEOUT_SECONDS: Final = 5.0

Status = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What one check found."""

    check: str
    status: Status
    cause: str
    cure: str = ""


@click.command("doctor", short_help="Find out what is wrong, and how to mend it.")
@click.option("--data-dir", type=click.Path(path_type=Path), default=DEFAULT_DIRECTORY)
@click.option("--local", is_flag=True, help="Only this machine, no broker.")
@click.option("--admin", metavar="HOST:PORT", help="Compare clocks by the admin interface.")
@client_options
def doctor(state: State, data_dir: Path, local: bool, admin: str | None) -> None:
    """Check the broker, the data directory and this machine."""
    findings = [] if local else _broker(state)
    address = state.setting("admin", admin, "")
    if address and not local:
        findings.append(_clock(address))
    findings += [check(data_dir) for check in (_writable, _space, _sync)]
    findings += [check() for check in (_files, _java, _spark)]
    if state.json:
        write_json([asdict(finding) for finding in findings])
    else:
        rows = [(item.status, item.check, item.cause, item.cure) for item in findings]
        write_table(("", "check", "found", "cure"), rows)
    if any(item.status == "fail" for item in findings):
        raise click.exceptions.Exit(1)


def _broker(state: State) -> list[Finding]:
    try:
        with state.client(api_timeout_ms=2_000, connect_timeout_ms=2_000) as client:
            return _reached(client)
    except PenstockError as error:
        return [
            Finding(
                check="broker",
                status="fail",
                cause=str(error),
                cure="start one with `penstock serve`, or name it with -b HOST:PORT",
            )
        ]


def _reached(client: Client) -> list[Finding]:
    begun = SYSTEM_CLOCK.monotonic()
    cluster = client.metadata([])
    elapsed_ms = (SYSTEM_CLOCK.monotonic() - begun) * 1000
    names = ", ".join(f"{node.node_id} at {node.address}" for node in cluster.nodes.values())
    slow = elapsed_ms > ROUND_TRIP_WARN_MS
    findings = [
        Finding(
            check="broker",
            status="warn" if slow else "ok",
            cause=f"brokers {names}; first answer after {elapsed_ms:.1f} ms",
            cure="the network or the broker is slow: look at its load" if slow else "",
        )
    ]
    return [*findings, *(_node(client, node.node_id) for node in cluster.nodes.values())]


def _node(client: Client, node_id: int) -> Finding:
    try:
        missing = client.unsupported_calls(node_id)
    except PenstockError as error:
        return Finding(
            check=f"broker {node_id}",
            status="fail",
            cause=f"its advertised address cannot be reached: {error}",
            cure="set advertised.listeners to an address that clients can reach",
        )
    if missing:
        return Finding(
            check=f"broker {node_id}",
            status="warn",
            cause="calls that it does not serve: " + ", ".join(missing),
            cure="upgrade the broker or the client",
        )
    return Finding(check=f"broker {node_id}", status="ok", cause="serves every call")


def _clock(address: str) -> Finding:
    """Compare this clock with the date of an HTTP answer."""
    name = f"clock of {address}"
    connection = HTTPConnection(address, timeout=ADMIN_TIMEOUT_SECONDS)
    try:
        asked_ms = SYSTEM_CLOCK.now_ms()
        connection.request("GET", "/health")
        date = connection.getresponse().getheader("Date")
        answered_ms = SYSTEM_CLOCK.now_ms()
        if date is None:
            return Finding(check=name, status="warn", cause="it answers without a date")
        theirs_ms = parsedate_to_datetime(date).timestamp() * 1000
    except (OSError, HTTPException, ValueError) as error:
        return Finding(
            check=name,
            status="fail",
            cause=f"the admin interface cannot be asked: {error}",
            cure="check --admin against the broker's ready line",
        )
    finally:
        connection.close()
    skew_seconds = clock_skew_ms(asked_ms, theirs_ms, answered_ms) / 1000
    skewed = skew_seconds > SKEW_WARN_SECONDS
    return Finding(
        check=name,
        status="warn" if skewed else "ok",
        cause=f"differs by about {skew_seconds:.0f} s",
        cure="synchronise the clocks (chrony, systemd-timesyncd)" if skewed else "",
    )


def clock_skew_ms(asked_ms: float, date_ms: float, answered_ms: float) -> float:
    """How far a clock certainly is from ours, that wrote a date into its answer to us.

    The date has whole seconds, and was written at some time between request and answer: only what
    lies outside of that is a difference of clocks, however long the answer took.
    """
    return max(asked_ms - (date_ms + 1000), date_ms - answered_ms, 0.0)


def _writable(directory: Path) -> Finding:
    at = existing(directory)
    name = f"data directory {directory}"
    try:
        with tempfile.NamedTemporaryFile(dir=at):
            pass
    except OSError as error:
        return Finding(
            check=name,
            status="fail",
            cause=f"{at}: {error.strerror}",
            cure="choose another with --data-dir, or change its owner",
        )
    there = at == directory.expanduser().absolute()
    return Finding(check=name, status="ok", cause="writable" if there else "can be created")


def _space(directory: Path) -> Finding:
    free = shutil.disk_usage(existing(directory)).free
    status: Status = "ok"
    if free < FREE_BYTES_WARN:
        status = "fail" if free < FREE_BYTES_FAIL else "warn"
    return Finding(
        check="disk space",
        status=status,
        cause=f"{free / (1 << 30):.1f} GiB free",
        cure="" if status == "ok" else "free some, or lower retention.bytes and retention.ms",
    )


def _sync(directory: Path) -> Finding:
    try:
        times = sync_times_ms(existing(directory), SYNC_ROUNDS)
    except OSError as error:
        return Finding(
            check="disk sync", status="fail", cause=str(error.strerror), cure="see above"
        )
    median_ms = quantile(times, 0.5)
    slow = median_ms > SYNC_WARN_MS
    return Finding(
        check="disk sync",
        status="warn" if slow else "ok",
        cause=f"median of {len(times)} syncs {median_ms:.2f} ms, worst {times[-1]:.2f} ms",
        cure="every acknowledged write waits for it: use a faster disk" if slow else "",
    )


def _files() -> Finding:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    few = 0 <= soft < FILES_WARN
    return Finding(
        check="open files",
        status="warn" if few else "ok",
        cause=f"limit {soft}, could be raised to {hard}",
        cure=f"ulimit -n {FILES_WARN} or more, or LimitNOFILE= in the service" if few else "",
    )


def _java() -> Finding:
    name, cure = "Java", f"for Spark pipelines: install a Java runtime, {JAVA_MINIMUM} or newer"
    home = os.environ.get("JAVA_HOME")
    command = f"{home}/bin/java" if home else "java"
    try:
        done = subprocess.run([command, "-version"], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.SubprocessError) as error:
        return Finding(check=name, status="warn", cause=f"{command}: {error}", cure=cure)
    said = (done.stderr or done.stdout).splitlines()
    version = _java_version(said[0] if said else "")
    if version < JAVA_MINIMUM:
        found = said[0] if said else "no version"
        return Finding(check=name, status="warn", cause=f"{command}: {found}", cure=cure)
    return Finding(check=name, status="ok", cause=said[0])


def _java_version(line: str) -> int:
    quoted = line.split('"')
    number = quoted[1].split(".")[0] if len(quoted) > 1 else ""
    return int(number) if number.isdigit() else 0


def _spark() -> Finding:
    if find_spec("pyspark") is None:
        return Finding(
            check="Spark",
            status="warn",
            cause="pyspark is not installed",
            cure="for pipelines: pip install 'penstock[spark]'",
        )
    from importlib.metadata import version

    return Finding(check="Spark", status="ok", cause=f"pyspark {version('pyspark')}")
