"""`penstock doctor`: what is wrong, why, and what mends it.

Every finding is `ok`, `warn`, `fail`, or `skip` where there is nothing to look at, with the cause
and the fix. Status 0: nothing failed, though there may be warnings; 1: something did; 2: the
command line is wrong.
"""

from __future__ import annotations

import os
from dataclasses import asdict
from pathlib import Path

import click

from penstock.apps.admin import admin_addresses
from penstock.apps.configuration import Configuration, Given, configure
from penstock.apps.doctor import Check, Finding, look
from penstock.apps.doctor.brokers import broker_checks, reach
from penstock.apps.doctor.compaction import compaction_check
from penstock.apps.doctor.consumers import consumers
from penstock.apps.doctor.copies import copies_check
from penstock.apps.doctor.damage import damage_check
from penstock.apps.doctor.dead_letters import dead_letters_check
from penstock.apps.doctor.losses import loss_check
from penstock.apps.doctor.machine import data_directory, programs
from penstock.apps.doctor.partitions import partitions
from penstock.apps.doctor.places import agent, installation, outbox
from penstock.apps.doctor.security import HOST_HTTP, host_checks, security_checks
from penstock.apps.doctor.tiers import tiers_check
from penstock.apps.session import State, client_options, write_json, write_table
from penstock.base.errors import PenstockError


@click.command("doctor", short_help="Find out what is wrong, and how to mend it.")
@click.option(
    "--config", "file", type=click.Path(path_type=Path), help="The broker's TOML file: its places."
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
    help="A host agent's TOML file: who is let in by HTTP.",
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
    """Check brokers, what they need, and this machine, all at once; each check has a time limit.

    Asked are: every broker's advertised address, readiness and clock; whether partitions have
    leaders and copies in sync, stored records are whole, tiered ones come into the archive,
    compacted ones are compacted, and consumer groups can read on; the database and the object store
    that --config or the environment names; a host agent; an outbox; certificates, files with
    secrets, and what is open to everybody, by that configuration and the agent's; the data
    directory; what pipelines need. Status 1 when a check failed, 0 otherwise, warnings included.
    """
    findings: list[Finding] = []
    configuration = _configuration(file, data_dir, findings)
    checks = []
    if not local:
        reached, found = reach(state)
        findings += found
        addresses = admin_addresses(state.setting("admin", admin, ""))
        checks += broker_checks(state, reached, addresses)
        if reached is not None:
            checks += [
                partitions(state),
                copies_check(state, reached, addresses),
                loss_check(state, reached, addresses),
                dead_letters_check(state, reached, addresses),
                tiers_check(state, reached, addresses),
                damage_check(state, reached, addresses),
                compaction_check(state, reached, addresses),
                consumers(state),
            ]
        checks += installation(configuration)
    checks += [agent(socket), outbox(root), *security_checks(configuration)]
    checks += _host_checks(agent_file)
    checks += [*data_directory(configuration.directory), *programs()]
    findings += look(checks)
    if state.json:
        write_json([asdict(finding) for finding in findings])
    else:
        rows = [(item.status, item.check, item.cause, item.fix) for item in findings]
        write_table(("", "check", "found", "fix"), rows)
    if any(item.status == "fail" for item in findings):
        raise click.exceptions.Exit(1)


def _configuration(
    file: Path | None, data_dir: str | None, findings: list[Finding]
) -> Configuration:
    """The broker's; its defaults where it cannot be read, which is a finding."""
    flags = {} if data_dir is None else {"log.dirs": Given(data_dir, "flag --data-dir")}
    try:
        return configure(file=file, environment=os.environ, flags=flags)
    except PenstockError as error:
        findings.append(
            Finding(
                check="configuration",
                status="fail",
                cause=str(error),
                fix="mend it: a broker does not start with it",
            )
        )
        return configure(file=None, environment={}, flags=flags)


def _host_checks(file: Path | None) -> list[Check]:
    """Those of the host agent that a file and the environment tell of."""
    from penstock.apps.host.wiring import configure_host

    try:
        return host_checks(configure_host(file=file, environment=os.environ, flags={}))
    except PenstockError as error:
        fix = "mend it: an agent does not start with it"
        wrong = Finding(check=HOST_HTTP, status="fail", cause=str(error), fix=fix)
        return [Check(HOST_HTTP, lambda: [wrong])]
