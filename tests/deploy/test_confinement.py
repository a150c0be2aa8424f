"""Containers are as confined as they can be, and one that is not is found."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.deploy.confinement import containers, faults
from tests.deploy.files import (
    CLUSTER,
    COMPOSE,
    DAEMON_SET,
    DEPLOY,
    PRODUCER_POD,
    PRODUCER_TASK,
    SINGLE,
    TASK,
    Mistake,
    plant,
)

ROOTFS = "can write to its root"
GAIN = "can gain privileges"

MISTAKES = [
    Mistake(file=COMPOSE, old="  read_only: true\n", new="", complaint=f"agent {ROOTFS}"),
    Mistake(
        file=COMPOSE, old="cap_drop: [ALL]", new="cap_drop: [KILL]", complaint="drops ['KILL']"
    ),
    Mistake(file=COMPOSE, old="privileges:true", new="privileges:false", complaint=GAIN),
    Mistake(file=COMPOSE, old='user: "10001:', new='user: "0:', complaint="agent runs as root"),
    Mistake(file=COMPOSE, old="FOWNER]", new="FOWNER, SYS_ADMIN]", complaint="SYS_ADMIN"),
    Mistake(file=SINGLE, old="    read_only: true\n", new="", complaint=f"broker {ROOTFS}"),
    Mistake(file=CLUSTER, old='user: "10001:', new='user: "0:', complaint="broker-2 runs as root"),
    Mistake(file=DAEMON_SET, old="NonRoot: true", new="NonRoot: false", complaint="agent runs as"),
    Mistake(file=DAEMON_SET, old="RuntimeDefault", new="Unconfined", complaint=GAIN),
    Mistake(file=DAEMON_SET, old="FOWNER", new="NET_ADMIN", complaint="NET_ADMIN"),
    Mistake(file=PRODUCER_POD, old="Escalation: false", new="Escalation: true", complaint=GAIN),
    Mistake(file=PRODUCER_POD, old="Filesystem: true", new="Filesystem: false", complaint=ROOTFS),
    Mistake(file=PRODUCER_POD, old="drop: [ALL]", new="add: [ALL]", complaint="adds"),
    Mistake(file=TASK, old='"user": "10001:10001"', new='"user": "0"', complaint="agent runs"),
    Mistake(file=TASK, old='["no-new-privileges"]', new="[]", complaint=GAIN),
    Mistake(
        file=PRODUCER_TASK, old='Filesystem": true', new='Filesystem": false', complaint=ROOTFS
    ),
    Mistake(file=PRODUCER_TASK, old='"drop": ["ALL"]', new='"drop": []', complaint="keeps"),
]


def test_containers_are_confined() -> None:
    assert faults(DEPLOY) == []
    assert len(list(containers(DEPLOY))) == 18


@pytest.mark.parametrize("mistake", MISTAKES, ids=str)
def test_one_that_is_not_is_found(mistake: Mistake, tmp_path: Path) -> None:
    assert mistake.complaint in "\n".join(faults(plant(mistake, tmp_path)))
