"""Checks of the database, the object store, a host agent and an outbox, for `penstock doctor`.

They only read, apart from a temporary file for timing syncs in an outbox.
"""

from __future__ import annotations

import asyncio
import os
import resource
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from penstock.apps.checks.findings import SKEW_CURE, SKEW_WARN_SECONDS, Check, Finding, Status
from penstock.apps.host_reading import existing, quantile, sync_times_ms
from penstock.base.errors import PenstockError
from penstock.base.extras import MissingExtra, check_installed
from penstock.base.settings import whole_number
from penstock.base.system import SYSTEM_CLOCK

if TYPE_CHECKING:
    from penstock.apps.process.configuration import Configuration


# Checks of this machine for `penstock doctor`: data directory, limits, requirements of
# pipelines.


FREE_BYTES_WARN: Final = 10 << 30
FREE_BYTES_FAIL: Final = 1 << 30
FILES_WARN: Final = 4096
SYNC_ROUNDS: Final = 20
SYNC_WARN_MS: Final = 10.0
JAVA_MINIMUM: Final = 17
JAVA_SECONDS: Final = 10.0


def data_directory(directory: Path) -> list[Check]:
    """Return the checks of a broker's data directory, which need not exist yet."""
    return [
        Check(f"data directory {directory}", lambda: [_writable(directory)]),
        Check("disk space", lambda: [space("disk space", directory)]),
        Check("disk sync", lambda: [sync("disk sync", directory)]),
    ]


def programs() -> list[Check]:
    """Return the checks of the limit of open files, of Java and of the packages for Spark."""
    return [
        Check("open files", lambda: [_files()]),
        Check("Java", lambda: [_java()]),
        Check("Spark", lambda: [_spark()]),
    ]


def _writable(directory: Path) -> Finding:
    at = existing(directory)
    name = f"data directory {directory}"
    try:
        with tempfile.NamedTemporaryFile(dir=at):
            pass
    except OSError as error:
        return Finding(
            name, "fail", f"{at}: {error.strerror}",
            "choose another directory with --data-dir, or change the owner of this one",
        )  # fmt: skip
    there = at == directory.expanduser().absolute()
    return Finding(name, "ok", "writable" if there else "can be created")


def space(name: str, directory: Path) -> Finding:
    """Check the free space of a directory, or of its nearest existing parent."""
    free = shutil.disk_usage(existing(directory)).free
    status: Status = "ok"
    if free < FREE_BYTES_WARN:
        status = "fail" if free < FREE_BYTES_FAIL else "warn"
    return Finding(
        name, status, f"{free / (1 << 30):.1f} GiB free",
        "" if status == "ok" else "free disk space, or lower retention.bytes and retention.ms",
    )  # fmt: skip


def sync(name: str, directory: Path) -> Finding:
    """Check how long syncs take in a directory, or in its nearest existing parent."""
    at = existing(directory)
    try:
        times = sync_times_ms(at, SYNC_ROUNDS)
    except OSError as error:
        return Finding(
            name, "fail", f"{at}: cannot write: {error.strerror}",
            "choose another directory, or change its owner",
        )  # fmt: skip
    median_ms = quantile(times, 0.5)
    slow = median_ms > SYNC_WARN_MS
    return Finding(
        name, "warn" if slow else "ok",
        f"median of {len(times)} syncs {median_ms:.2f} ms, longest {times[-1]:.2f} ms",
        "every acknowledged write waits for a sync: use a faster disk" if slow else "",
    )  # fmt: skip


def _files() -> Finding:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    few = 0 <= soft < FILES_WARN
    return Finding(
        "open files", "warn" if few else "ok", f"limit {soft}, which can be raised to {hard}",
        (f"raise it to {FILES_WARN} or more, with ulimit -n or with LimitNOFILE= in the systemd"
        " unit") if few else "",
    )  # fmt: skip


def _java() -> Finding:
    name, fix = (
        "Java",
        f"for Spark pipelines, install a Java runtime of version {JAVA_MINIMUM} or newer",
    )
    home = os.environ.get("JAVA_HOME")
    command = f"{home}/bin/java" if home else "java"
    try:
        done = subprocess.run(
            [command, "-version"], capture_output=True, text=True, timeout=JAVA_SECONDS
        )
    except (OSError, subprocess.SubprocessError) as error:
        return Finding(name, "warn", f"{command}: {error}", fix)
    said = (done.stderr or done.stdout).splitlines()
    version = _java_version(said[0] if said else "")
    if version < JAVA_MINIMUM:
        found = said[0] if said else "no version"
        return Finding(name, "warn", f"{command}: {found}", fix)
    return Finding(name, "ok", said[0])


def _java_version(line: str) -> int:
    quoted = line.split('"')
    number = quoted[1].split(".")[0] if len(quoted) > 1 else ""
    return whole_number(number) or 0


def _spark() -> Finding:
    try:
        check_installed("spark")
    except MissingExtra as error:
        return Finding(
            "Spark", "warn", f"{error.package} is not installed",
            "for Spark pipelines, run pip install 'penstock[spark]'",
        )  # fmt: skip
    from importlib.metadata import version

    return Finding("Spark", "ok", f"pyspark {version('pyspark')}")


PLACE_SECONDS: Final = 3.5
"""Longest wait for an answer of a database or an object store."""

CONTROL_FILE: Final = "control.sqlite"
SQLITE_MAGIC: Final = b"SQLite format 3\0"
_LOST_BY_POWER: Final = (
    "a crash of the database's machine may lose acknowledged commits: set it to on"
)


def installation(configuration: Configuration) -> list[Check]:
    """Return the checks of the configured database and object store."""
    return [
        Check("database", lambda: [_database(configuration)]),
        Check("object store", lambda: [_object_store(configuration)]),
    ]


# -- database -------------------------------------------------------------------------------


def _database(configuration: Configuration) -> Finding:
    url = configuration.locations.control_url
    if url:
        return _within(
            "database", "check that it runs, and that control.url is correct", _postgres(url)
        )
    path = configuration.directory / CONTROL_FILE
    try:
        with path.open("rb") as file:
            whole = file.read(len(SQLITE_MAGIC)) == SQLITE_MAGIC
    except FileNotFoundError:
        return Finding(
            "database", "skip", f"control.url is not set, and {path} does not exist",
            "give the broker's TOML file with --config, or its data directory with --data-dir",
        )  # fmt: skip
    if not whole:
        return Finding(
            "database", "fail", f"{path} is not a SQLite database",
            "restore it from a backup; the broker does not start with it",
        )  # fmt: skip
    return Finding(
        "database", "ok",
        f"{path}, {path.stat().st_size} bytes; the readiness of its broker shows whether it is"
        " usable",
    )  # fmt: skip


async def _postgres(url: str) -> Finding:
    from penstock.control.drivers.postgres_connections import connect, database_name

    begun_ms = SYSTEM_CLOCK.now_ms()
    connection = await connect(url)
    try:
        asked_ms = SYSTEM_CLOCK.now_ms()
        ((now, version, written, synced),) = await connection.fetch(
            "SELECT clock_timestamp(), current_setting('server_version'),"
            " current_setting('synchronous_commit'), current_setting('fsync')"
        )
        answered_ms = SYSTEM_CLOCK.now_ms()
        made = await connection.fetchval("SELECT to_regclass('image_version') IS NOT NULL")
    finally:
        connection.terminate()
    theirs_ms = now.timestamp() * 1000
    skew_seconds = max(asked_ms - theirs_ms, theirs_ms - answered_ms, 0.0) / 1000
    facts = [
        f"PostgreSQL {version}, {database_name(url)}, connected in {asked_ms - begun_ms} ms,"
        f" answered in {answered_ms - asked_ms} ms"
    ]
    fixes = []
    if not made:
        facts.append("no broker has created its tables yet")
    for name, value in (("synchronous_commit", written), ("fsync", synced)):
        if value == "off":
            facts.append(f"{name} is off")
            fixes.append(_LOST_BY_POWER)
    if skew_seconds > SKEW_WARN_SECONDS:
        facts.append(f"its clock differs from this machine's by about {skew_seconds:.0f} s")
        fixes.append(SKEW_CURE)
    return Finding(
        "database", "warn" if fixes else "ok", "; ".join(facts), "; ".join(dict.fromkeys(fixes))
    )


# -- object store ---------------------------------------------------------------------------


def _object_store(configuration: Configuration) -> Finding:
    locations = configuration.locations
    url, directory = locations.diskless_storage_url, configuration.directory / "objects"
    if not url:
        if locations.control_url or not directory.exists():
            cause = "diskless.storage.url is not set"
            if not locations.control_url:
                cause += f", and the default {directory} does not exist"
            return Finding("object store", "skip", cause)
        url = directory.absolute().as_uri()
    fix = (
        "check that the store is running, and that diskless.storage.url and its options are correct"
    )
    return _within("object store", fix, _looked_at(configuration, url))


async def _looked_at(configuration: Configuration, url: str) -> Finding:
    from penstock.apps.process.wiring import store_options
    from penstock.diskless.identity import KEY
    from penstock.objects import ObjectNotFound, open_store, place_of

    options = store_options(configuration.locations)
    store = open_store(
        url,
        options=options,
        request_timeout_ms=int(PLACE_SECONDS * 1000),
    )
    begun = SYSTEM_CLOCK.monotonic()
    known = True
    try:
        await store.head(KEY)
    except ObjectNotFound:
        known = False
    finally:
        await store.close()
    answer_ms = (SYSTEM_CLOCK.monotonic() - begun) * 1000
    said = f"{place_of(url, options)} answered in {answer_ms:.1f} ms"
    if known:
        return Finding("object store", "ok", said)
    return Finding(
        "object store", "warn", f"{said}, but does not have the object that identifies it ({KEY})",
        "nothing to do if no broker has used the store yet; otherwise it was emptied, or it is"
        " another store",
    )  # fmt: skip


def _within(name: str, fix: str, asked: Coroutine[Any, Any, Finding]) -> Finding:
    """Run a check with the timeout `PLACE_SECONDS`; return its error as a finding."""

    async def bounded() -> Finding:
        async with asyncio.timeout(PLACE_SECONDS):
            return await asked

    try:
        return asyncio.run(bounded())
    except TimeoutError:
        cause = f"no answer within {PLACE_SECONDS:g} s"
    except (PenstockError, OSError) as error:
        cause = str(error) or type(error).__name__
    except Exception as error:  # the database's own errors, which are many
        cause = f"{type(error).__name__}: {error}"
    return Finding(name, "fail", cause, fix)


# -- agent and outbox -----------------------------------------------------------------------


def agent(named: str | None) -> Check:
    """Return the check of a host agent's socket.

    Its path is `named`, else PENSTOCK_HOST_SOCKET_PATH, else the default path if that exists.
    """
    from penstock.apps.host.command import DEFAULT_SOCKET

    path = named or os.environ.get("PENSTOCK_HOST_SOCKET_PATH")
    if path is None and not Path(DEFAULT_SOCKET).exists():
        cause = f"no socket is given (--agent), and {DEFAULT_SOCKET} does not exist"
        return skipped("host agent", cause)
    return Check("host agent", lambda: [_agent(path or DEFAULT_SOCKET)])


def _agent(path: str) -> Finding:
    from penstock.apps.host.probe import NotHealthy, probe

    try:
        found = probe(path)
    except NotHealthy as error:
        return Finding(
            "host agent", "fail", str(error),
            f"start an agent with `penstock host serve --socket {path}`, or read the log of the"
            " running agent",
        )  # fmt: skip
    if found.state != "serving":
        return Finding(
            "host agent", "fail", f"socket {path}: the agent is {found.state}: {found.reason}",
            "see `penstock host status` and the agent's log",
        )  # fmt: skip
    cause = f"socket {path}: accepts producers, answered in {found.answer_ms:.1f} ms"
    return Finding("host agent", "ok", cause)


def outbox(named: str | None) -> Check:
    """Return the check of an outbox at `named` or PENSTOCK_OUTBOX_ROOT; skipped without either."""
    root = named or os.environ.get("PENSTOCK_OUTBOX_ROOT")
    if not root:
        return skipped("outbox", "no root is given (--outbox, PENSTOCK_OUTBOX_ROOT)")
    return Check("outbox", lambda: _outbox(Path(root)))


def _outbox(root: Path) -> list[Finding]:
    name = f"outbox {root}"
    try:
        mode = root.stat().st_mode
    except OSError as error:
        cause = f"{error.strerror}"
        fix = "mount or create it: every writer and reader must see the same directory"
        return [Finding(name, "fail", cause, fix)]
    if not stat.S_ISDIR(mode):
        cause = "it is not a directory"
        return [Finding(name, "fail", cause, "give the outbox's root directory with --outbox")]
    synced = sync(f"{name}, sync", root)
    if synced.status == "fail":
        return [synced]
    cause = "writable; `penstock outbox audit` compares its files with the topic"
    return [Finding(name, "ok", cause), space(f"{name}, space", root), synced]


def skipped(name: str, cause: str, fix: str = "") -> Check:
    """Return a check that only reports why it was skipped."""
    return Check(name, lambda: [Finding(name, "skip", cause, fix)])
