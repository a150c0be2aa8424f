"""The files agree with each other, and any that leaves the agreement is found."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from tests.deploy.agreement import READERS, disagreements
from tests.deploy.files import (
    ALL,
    COMPOSE,
    CONTAINER,
    DAEMON_SET,
    DEPLOY,
    DIRECTORIES,
    PRODUCER_POD,
    PRODUCER_TASK,
    SERVICE,
    TASK,
    UNIT,
    USERS,
    Mistake,
    plant,
)
from tests.sampling import sample
from tests.test_documentation import parse

BUDGET = "host.drain.timeout.ms="
LONG = f"{BUDGET}26000"
SHORT = f"{BUDGET}20000"
TAKE = "            - -X\n            - host.socket.takeover=true"
GROUP = "the producer's group"

MISTAKES = [
    # The drain does not fit into the time until the kill.
    *(
        Mistake(file=file, old=SHORT, new=LONG, complaint=f"{file}: the stop time-out")
        for file in (COMPOSE, DAEMON_SET, TASK, UNIT)
    ),
    *(
        Mistake(file=file, old=SHORT, new="a=b", complaint=f"{file}: {BUDGET[:-1]} is ''")
        for file in (COMPOSE, DAEMON_SET, TASK, UNIT)
    ),
    Mistake(
        file=COMPOSE,
        old="grace_period: 30s",
        new="grace_period: 20s",
        complaint="20.0 s, needed 25.0",
    ),
    Mistake(file=DAEMON_SET, old="Seconds: 30", new="Seconds: 24", complaint="time-out is 24 s"),
    Mistake(
        file=DAEMON_SET,
        old="          startupProbe:",
        new="          lifecycle: {preStop: {sleep: {seconds: 10}}}\n          startupProbe:",
        complaint="time-out is 20 s",
    ),
    Mistake(file=TASK, old='"stopTimeout": 30', new='"stopTimeout": 2', complaint="time-out is 2"),
    Mistake(file=UNIT, old="StopSec=30", new="StopSec=10", complaint="time-out is 10.0 s"),
    # Another socket, another health check.
    *(
        Mistake(file=file, old="/host.sock", new="/ingest.sock", complaint="ingest.sock")
        for file in (COMPOSE, DAEMON_SET, PRODUCER_POD, TASK, PRODUCER_TASK, UNIT)
    ),
    Mistake(
        file=DAEMON_SET, old='"host", "health"', new='"host", "status"', complaint="host status"
    ),
    Mistake(file=COMPOSE, old='"health"', new='"status"', complaint="host status"),
    Mistake(file=TASK, old='"health"', new='"status"', complaint="host status"),
    Mistake(file=UNIT, old="host health", new="host status", complaint="host status"),
    # A restart of the agent does not bring back brokers.
    *(
        Mistake(file=file, old=old, new="", complaint="the health command is host health --socket")
        for file, old in ((DAEMON_SET, ' "--live",'), (TASK, ' "--live",'), (UNIT, " --live"))
    ),
    # Other directories and rights.
    Mistake(file=DAEMON_SET, old="path: /var/run", new="path: /mnt", complaint="/mnt/penstock"),
    Mistake(file=PRODUCER_POD, old="path: /var/run", new="path: /mnt", complaint="/mnt/penstock"),
    Mistake(file=TASK, old="/var/run/penstock", new="/mnt/penstock", complaint="/mnt/penstock"),
    Mistake(file=COMPOSE, old="source: /var/run", new="source: /mnt", complaint="/mnt/penstock"),
    Mistake(file=PRODUCER_POD, old="readOnly: true", new="readOnly: false", complaint="directory"),
    Mistake(
        file=PRODUCER_TASK, old='"readOnly": true', new='"readOnly": false', complaint="directory"
    ),
    *(
        Mistake(file=file, old="0770", new="0777", complaint="is made by install -d -m 0777")
        for file in (COMPOSE, DAEMON_SET, TASK)
    ),
    Mistake(file=UNIT, old="Mode=0770", new="Mode=0755", complaint="RuntimeDirectoryMode"),
    Mistake(file=UNIT, old="Preserve=yes", new="Preserve=no", complaint="RuntimeDirectoryPreserve"),
    Mistake(file=UNIT, old="UMask=0007", new="UMask=0077", complaint="UMask"),
    Mistake(file=DIRECTORIES, old="0770", new="0777", complaint="0770"),
    Mistake(file=DIRECTORIES, old="d /run", new="d /var/run", complaint="d /run/penstock"),
    # Other users and groups.
    Mistake(file=CONTAINER, old="USER 10001:10001", new="USER 0:0", complaint="runs as root"),
    Mistake(file=USERS, old="g penstock 10001", new="g penstock 990", complaint="(10001, 990)"),
    Mistake(file=DAEMON_SET, old="runAsUser: 10001", new="runAsUser: 1000", complaint="(1000,"),
    Mistake(file=COMPOSE, old='"10002:10001"', new='"10002:10002"', complaint=GROUP),
    Mistake(file=PRODUCER_POD, old="Group: 10001", new="Group: 10002", complaint=GROUP),
    Mistake(file=PRODUCER_TASK, old="10002:10001", new="10002:10002", complaint=GROUP),
    Mistake(file=PRODUCER_TASK, old="10002:10001", new="0:10001", complaint="user is 0"),
    # Other images, addresses, ways to replace an agent.
    Mistake(file=CONTAINER, old="3.11.13-slim-bookworm", new="3", complaint="python:3 is not"),
    Mistake(file=CONTAINER, old="3.11.13", new="3.11.12", complaint="builds on"),
    *(
        Mistake(file=file, old="penstock:0.1.0", new="penstock:latest", complaint="penstock:latest")
        for file in (CONTAINER, COMPOSE, PRODUCER_POD, PRODUCER_TASK, TASK)
    ),
    Mistake(
        file=DAEMON_SET,
        old="image: penstock:0.1.0",
        new="image: registry.example/penstock:0.1.0",
        complaint="registry.example",
    ),
    Mistake(file=COMPOSE, old="name: penstock", new="# http://a.example", complaint="a.example"),
    Mistake(file=DAEMON_SET, old="maxSurge: 0", new="maxSurge: 1", complaint="maxSurge"),
    Mistake(file=DAEMON_SET, old=SHORT, new=f"{SHORT}\n{TAKE}", complaint="takeover is True"),
    Mistake(file=SERVICE, old='"DAEMON"', new='"REPLICA"', complaint="REPLICA"),
    Mistake(file=SERVICE, old="100}", new="200}", complaint="has to end"),
    Mistake(file=TASK, old='"penstock-host"', new='"agent"', complaint="the task is agent"),
]


def test_the_files_agree() -> None:
    assert disagreements(DEPLOY) == []


@pytest.mark.parametrize("mistake", sample(MISTAKES, 3), ids=str)
def test_a_disagreement_is_found(mistake: Mistake, tmp_path: Path) -> None:
    found = disagreements(plant(mistake, tmp_path))
    assert mistake.complaint in "\n".join(found)


def test_an_agent_that_takes_over_may_be_started_beside_the_old_one(tmp_path: Path) -> None:
    taking = Mistake(file=DAEMON_SET, old=SHORT, new=f"{SHORT}\n{TAKE}", complaint="")
    path = plant(taking, tmp_path) / DAEMON_SET
    path.write_text(path.read_text().replace("maxSurge: 0", "maxSurge: 1"))
    assert disagreements(tmp_path / "deploy") == []


def test_all_files_are_known() -> None:
    folders = {name.partition("/")[0] for name in ALL}
    there = {path.relative_to(DEPLOY) for path in DEPLOY.rglob("*") if path.is_file()}
    assert {str(path) for path in there if path.parts[0] in folders} == set(ALL)


READERS_BY_FILE = {reader(DEPLOY).file: reader for reader in READERS}


@pytest.mark.parametrize("file", READERS_BY_FILE)
def test_the_command_line_knows_the_commands(file: str, tmp_path: Path) -> None:
    facts = READERS_BY_FILE[file](DEPLOY)
    for words in (facts.serve, *facts.health, *facts.live):
        parse(list(words))
    odd = Mistake(file=file, old="--sink", new="--sinc", complaint="No such option")
    wrong = READERS_BY_FILE[file](plant(odd, tmp_path))
    with pytest.raises(click.ClickException, match=odd.complaint):
        parse(list(wrong.serve))
