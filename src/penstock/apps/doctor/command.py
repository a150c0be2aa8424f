"""`penstock doctor`: reports problems with cause and fix.

A finding is `ok`, `warn`, `fail`, or `skip` (nothing to check). Status 0: no failure, perhaps
warnings; 1: a failure; 2: the command line is wrong.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path

import click

from penstock.apps.configuration import Given, configure, read_environment
from penstock.apps.doctor import Check, Finding, look
from penstock.apps.doctor.brokers import broker_checks, known_admins, reach
from penstock.apps.doctor.compaction import compaction_check
from penstock.apps.doctor.consumers import consumers
from penstock.apps.doctor.copies import copies_check
from penstock.apps.doctor.damage import damage_check
from penstock.apps.doctor.dead_letters import dead_letters_check
from penstock.apps.doctor.losses import loss_check
from penstock.apps.doctor.machine import data_directory, programs
from penstock.apps.doctor.partitions import partitions
from penstock.apps.doctor.security import (
    BY_CONFIGURATION,
    HOST_HTTP,
    host_checks,
    security_checks,
)
from penstock.apps.doctor.storage import CONTROL_FILE, agent, installation, outbox, skipped
from penstock.apps.doctor.tiers import tiers_check
from penstock.apps.session import State, client_options, write_json, write_table
from penstock.base.errors import PenstockError
from penstock.client.replicas import outage


@click.command("doctor", short_help="Find problems, and show how to fix them.")
@click.option(
    "--config",
    "file",
    type=click.Path(path_type=Path),
    help="The broker's TOML file: database, store, TLS.",
)
@click.option("--data-dir", help="The broker's directory (log.dirs).")
@click.option("--local", is_flag=True, help="Only this machine: no broker, database or store.")
@click.option(
    "--admin", metavar="HOST:PORT,…",
    help="Admin interfaces to ask for readiness and clock (PENSTOCK_ADMIN); else as brokers say.",
)  # fmt: skip
@click.option("--agent", "socket", metavar="PATH", help="A host agent's socket.")
@click.option(
    "--agent-config", "agent_file", type=click.Path(path_type=Path),
    help="A host agent's TOML file: checks the access to its HTTP front.",
)  # fmt: skip
@click.option("--outbox", "root", metavar="DIRECTORY", help="An outbox's root.")
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
    """Check brokers, their dependencies and this machine concurrently; each check has a time limit.

    Checks cover: every broker's advertised address, readiness and clock; partitions (leaders,
    in-sync replicas, damaged records), tiering, compaction and consumer groups; the database and
    the object store of --config or the environment; a host agent; an outbox; certificates, secret
    files and unauthenticated access in the configurations; the data directory; requirements of
    pipelines. Exits with status 1 if a check failed, else 0, warnings included.
    """
    local_checks, findings = _here(file, data_dir, local=local)
    local_checks += [agent(socket), outbox(root), *_host_checks(agent_file), *programs()]
    with state.working("checking brokers and this machine"), ThreadPoolExecutor(1) as threads:
        beside = threads.submit(look, local_checks)
        if not local:
            findings += _of_brokers(replace(state, notice=_ignore), admin)
        findings += beside.result()
    if state.json:
        write_json([asdict(finding) for finding in findings])
    else:
        rows = [(item.status, item.check, item.cause, item.fix) for item in findings]
        write_table(("", "check", "found", "fix"), rows)
    if any(item.status == "fail" for item in findings):
        raise click.exceptions.Exit(1)


def _ignore(_: str) -> None:
    """Discard a line about waiting: findings name the causes."""


def _of_brokers(state: State, admin: str | None) -> list[Finding]:
    """Return findings about the brokers and admin interfaces."""
    cluster, states, findings = reach(state)
    addresses = known_admins(state, states, admin)
    named = addresses if state.setting("admin", admin, "") else ()
    checks = broker_checks(state, cluster, states, named)
    if cluster is not None:
        checks += [
            partitions(state),
            copies_check(state, addresses),
            loss_check(state, addresses),
            dead_letters_check(state, addresses),
            tiers_check(state, addresses),
            damage_check(state, addresses),
            compaction_check(state, addresses),
            consumers(state),
        ]
    return findings + look(checks, outage=outage(states))


def _here(
    file: Path | None, data_dir: str | None, *, local: bool
) -> tuple[list[Check], list[Finding]]:
    """Return the checks of a broker's configuration; skipped if none is given."""
    findings: list[Finding] = []
    flags = {} if data_dir is None else {"log.dirs": Given(data_dir, "flag --data-dir")}
    reason = "not checked: no configuration of a broker is named"
    given = file is not None or bool(read_environment(os.environ))
    try:
        configuration = configure(file=file, environment=os.environ, flags=flags)
    except PenstockError as error:
        fix = "mend it: a broker does not start with it"
        findings = [Finding(check="configuration", status="fail", cause=str(error), fix=fix)]
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
    fix = "name the broker's file with --config"
    for index, check in enumerate(checks):
        if not stored or check.name in BY_CONFIGURATION:
            checks[index] = skipped(check.name, reason, fix)
    return checks, findings


def _host_checks(file: Path | None) -> list[Check]:
    """Return the checks of the host agent by its file and the environment."""
    from penstock.apps.host.wiring import configure_host

    try:
        return host_checks(configure_host(file=file, environment=os.environ, flags={}))
    except PenstockError as error:
        fix = "mend it: an agent does not start with it"
        wrong = Finding(check=HOST_HTTP, status="fail", cause=str(error), fix=fix)
        return [Check(HOST_HTTP, lambda: [wrong])]
