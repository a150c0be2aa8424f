"""Command `penstock doctor`: reports problems of an installation, with cause and fix.

A finding is `ok`, `warn`, `fail`, or `skip` (not checked). The exit status is 1 if a check failed,
2 if the command line is invalid, and otherwise 0, even with warnings.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path

import click

from penstock.apps.checks.brokers import broker_checks, known_admins, reach, silent
from penstock.apps.checks.interfaces import ADMIN_CHECKS
from penstock.apps.client.session import State, client_options, path_option, write_json, write_table
from penstock.apps.doctor import Check, Finding, look
from penstock.apps.doctor.partitions import consumers, partitions
from penstock.apps.doctor.security import (
    BY_CONFIGURATION,
    HOST_HTTP,
    host_checks,
    security_checks,
)
from penstock.apps.doctor.storage import (
    CONTROL_FILE,
    agent,
    data_directory,
    installation,
    outbox,
    programs,
    skipped,
)
from penstock.apps.process.configuration import Given, configure, read_environment
from penstock.base.errors import PenstockError
from penstock.client.replicas import outage


@click.command("doctor", short_help="Find problems, and show how to fix them.")
@path_option(
    "--config file",
    "TOML file with a broker's settings: checks its database, object store, listeners and secret"
    " files.",
)
@click.option("--data-dir", help="Data directory of the broker. Default: the setting log.dirs.")
@click.option(
    "--local",
    is_flag=True,
    help="Check only this machine, without connecting to brokers, the database or the object"
    " store.",
)
@click.option(
    "--admin", metavar="HOST:PORT,…",
    help="Admin interfaces whose brokers' readiness and clock are checked (PENSTOCK_ADMIN)."
    " Default: those that the brokers report.",
)  # fmt: skip
@click.option(
    "--agent",
    "socket",
    metavar="PATH",
    help="Socket file of a host agent. Default: /var/run/penstock/host.sock, if it exists.",
)
@path_option(
    "--agent-config agent_file",
    "TOML file with a host agent's settings: checks the access to its HTTP front.",
)
@click.option(
    "--outbox",
    "root",
    metavar="DIRECTORY",
    help="Root directory of an outbox to check (PENSTOCK_OUTBOX_ROOT). Default: none.",
)
@client_options
def doctor(
    state: State,
    file: Path | None,
    data_dir: str | None,
    local: bool,
    admin: str | None,
    socket: str | None,
    agent_file: Path | None,
    root: str | None,
) -> None:
    """Check brokers, their dependencies and this machine, and show how to fix each problem.

    Of brokers it checks advertised addresses, readiness, clocks, partitions, damaged records,
    tiering, compaction and consumer groups. Of the installation it checks the database and the
    object store of --config or the environment, a host agent, an outbox, certificates, secret
    files, and listeners without authentication. Of this machine it checks the data directory,
    limits, and what pipelines need.

    Checks run concurrently, each with a time limit. Exits with status 1 if a check failed, and
    otherwise with 0, even with warnings.
    """
    others = [agent(socket), outbox(root), *_host_checks(agent_file)]
    findings = examine(state, file, data_dir, admin, local=local, others=others)
    if state.json:
        write_json([asdict(finding) for finding in findings])
    else:
        write_table(("", "check", "found", "fix"), _rows(findings))
    if any(item.status == "fail" for item in findings):
        raise click.exceptions.Exit(1)


def _rows(findings: Sequence[Finding]) -> list[tuple[str, str, str, str]]:
    """Return the rows of the table; checks that were skipped for the same reason share a row."""
    rows: list[tuple[str, str, str, str]] = []
    skipped: dict[tuple[str, str], list[str]] = defaultdict(list)
    for item in findings:
        if item.status == "skip":
            skipped[item.cause, item.fix].append(item.check)
        else:
            rows.append((item.status, item.check, item.cause, item.fix))
    for (cause, fix), checks in skipped.items():
        alone = len(checks) == 1
        name = checks[0] if alone else f"{len(checks)} checks"
        rows.append(("skip", name, cause if alone else f"{cause}: {', '.join(checks)}", fix))
    return rows


def examine(
    state: State,
    file: Path | None,
    data_dir: str | None,
    admin: str | None,
    *,
    local: bool = False,
    others: Sequence[Check] = (),
) -> list[Finding]:
    """Return the findings about brokers and this machine; the arguments are those of the command.

    `others` are checks of this machine that run beside those of the broker's configuration.
    """
    checks, findings = _here(file, data_dir, local=local)
    checks += [*others, *programs()]
    with state.working("checking brokers and this machine"), ThreadPoolExecutor(1) as threads:
        beside = threads.submit(look, checks)
        if not local:
            findings += _of_brokers(replace(state, notice=_ignore), admin)
        return findings + beside.result()


def _ignore(_: str) -> None:
    """Discard a line about a wait, since findings name the causes."""


def _of_brokers(state: State, admin: str | None) -> list[Finding]:
    """Return the findings about brokers, over Kafka's protocol and their admin interfaces."""
    cluster, states, findings = reach(state)
    addresses = known_admins(state, states, admin)
    named = addresses if state.setting("admin", admin, "") else ()
    checks = broker_checks(state, cluster, states, named)
    if cluster is not None:
        checks += [
            partitions(state, silent(states)),
            *[check(state, addresses) for check in ADMIN_CHECKS],
            consumers(state),
        ]
    return findings + look(checks, outage=outage(states))


def _here(
    file: Path | None, data_dir: str | None, *, local: bool
) -> tuple[list[Check], list[Finding]]:
    """Return the checks of a broker on this machine, and findings about its configuration.

    Without a configuration, the checks that need one are skipped. If there is no data directory of
    a broker either, all of them are.
    """
    findings: list[Finding] = []
    flags = {} if data_dir is None else {"log.dirs": Given(data_dir, "flag --data-dir")}
    reason = "not checked: no broker's configuration is given"
    given = file is not None or bool(read_environment(os.environ))
    try:
        configuration = configure(file=file, environment=os.environ, flags=flags)
    except PenstockError as error:
        fix = "correct the configuration: a broker does not start with it"
        findings = [Finding("configuration", "fail", str(error), fix)]
        configuration = configure(file=None, environment={}, flags=flags)
        given, reason = False, "not checked: the configuration cannot be read"
    stored = data_dir is not None or (configuration.directory / CONTROL_FILE).exists()
    remote_checks = [] if local else installation(configuration)
    checks = [
        *remote_checks,
        *security_checks(configuration),
        *data_directory(configuration.directory),
    ]
    if given:
        return checks, findings
    fix = "give the broker's TOML file with --config"
    for index, check in enumerate(checks):
        if not stored or check.name in BY_CONFIGURATION:
            checks[index] = skipped(check.name, reason, fix)
    return checks, findings


def _host_checks(file: Path | None) -> list[Check]:
    """Return the checks of a host agent's configuration, from its file and the environment."""
    from penstock.apps.host.wiring import configure_host

    try:
        return host_checks(configure_host(file=file, environment=os.environ, flags={}))
    except PenstockError as error:
        fix = "correct the configuration: an agent does not start with it"
        wrong = Finding(HOST_HTTP, "fail", str(error), fix)
        return [Check(HOST_HTTP, lambda: [wrong])]
