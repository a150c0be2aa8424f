"""Contradictions between the files of the deployment.

Each reader turns one file into `Facts`; `disagreements` compares them with each other and with the
project. A schema cannot see any of this: a stop time-out below the drain, a second socket path, a
producer without the shared group.
"""

from __future__ import annotations

import re
import shlex
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.deploy import files
from tests.deploy.files import document, documents, from_json, instructions, unit_values

SOCKET: Final = "/var/run/penstock/host.sock"
DIRECTORY: Final = "/var/run/penstock"
HEALTH: Final = ("host", "health", "--socket", SOCKET)
LIVE: Final = ("host", "health", "--live", "--socket", SOCKET)
"""Where no has the agent restarted, which brings back nothing that its sink stands on."""
DRAIN: Final = "host.drain.timeout.ms"
TAKEOVER: Final = "host.socket.takeover"
MARGIN_SECONDS: Final = 5.0
"""What a stop takes besides the drain: closing connections, settling the sink, leaving Python."""
ALLOWED_ADDRESSES: Final = {
    "PLAINTEXT://broker:9092",
    "PLAINTEXT://0.0.0.0:9092",
    "http://127.0.0.1:9644/livez",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    host: str
    inside: str
    read_only: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Producer:
    file: str
    user: tuple[int, int]
    command: Sequence[str]
    mounts: Sequence[Mount]
    image: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """A file's facts about the agent. Commands are without the word `penstock`."""

    file: str
    serve: Sequence[str]
    user: tuple[int, int]
    health: Sequence[Sequence[str]] = ()
    live: Sequence[Sequence[str]] = ()
    stop_seconds: float | None = None
    mounts: Sequence[Mount] = ()
    preparation: Sequence[str] | None = None
    images: Sequence[str] = ()
    producer: Producer | None = None


def disagreements(deployment: Path) -> list[str]:
    """A sentence for each; none if the files agree."""
    user = container_user(deployment)
    found: list[str] = []
    for facts in (reader(deployment) for reader in READERS):
        found += _commands(facts)
        found += _stopping(facts)
        found += _rights(facts, user)
        found += _images(facts)
        if facts.producer is not None:
            found += _producer(facts.producer, facts.user)
    found += [*_container(deployment), *_replacing(deployment), *_host_files(deployment)]
    return [*found, *_names(deployment)]


def option(command: Sequence[str], name: str) -> str:
    return command[list(command).index(name) + 1] if name in command else ""


def setting(command: Sequence[str], name: str) -> str:
    pairs = (word.split("=", 1) for word in command if "=" in word)
    return next((pair[1] for pair in pairs if pair[0] == name), "")


def _commands(facts: Facts) -> Iterator[str]:
    if option(facts.serve, "--socket") != SOCKET:
        yield f"{facts.file}: the agent's socket is {option(facts.serve, '--socket')!r}"
    if not (facts.health or facts.live):
        yield f"{facts.file}: no health command"
    for expected, said in ((HEALTH, facts.health), (LIVE, facts.live)):
        for command in said:
            if tuple(command) != expected:
                yield f"{facts.file}: the health command is {shlex.join(command)}"


def _stopping(facts: Facts) -> Iterator[str]:
    drain = setting(facts.serve, DRAIN)
    if not drain.isdecimal():
        yield f"{facts.file}: {DRAIN} is {drain!r}"
    elif facts.stop_seconds is not None:
        needed = int(drain) / 1000 + MARGIN_SECONDS
        if facts.stop_seconds < needed:
            yield f"{facts.file}: the stop time-out is {facts.stop_seconds} s, needed {needed} s"


def _rights(facts: Facts, agreed: tuple[int, int]) -> Iterator[str]:
    if 0 in facts.user:
        yield f"{facts.file}: the agent runs as root"
    if facts.user != agreed:
        yield f"{facts.file}: the agent runs as {facts.user}, elsewhere as {agreed}"
    for mount in facts.mounts:
        if (mount.host, mount.inside, mount.read_only) != (DIRECTORY, DIRECTORY, False):
            yield f"{facts.file}: the agent's directory is {mount}"
    user, group = agreed
    wanted = f"install -d -m 0770 -o {user} -g {group} {DIRECTORY}"
    if facts.preparation is not None and shlex.join(facts.preparation) != wanted:
        yield f"{facts.file}: the directory is made by {shlex.join(facts.preparation)}"


def _producer(producer: Producer, agent: tuple[int, int]) -> Iterator[str]:
    if producer.user[0] in (0, agent[0]):
        yield f"{producer.file}: the producer's user is {producer.user[0]}"
    if producer.user[1] != agent[1]:
        yield f"{producer.file}: the producer's group is {producer.user[1]}, not {agent[1]}"
    if option(producer.command, "--socket") != SOCKET:
        yield f"{producer.file}: the producer's socket is {option(producer.command, '--socket')!r}"
    for mount in producer.mounts:
        if (mount.host, mount.inside, mount.read_only) != (DIRECTORY, DIRECTORY, True):
            yield f"{producer.file}: the producer's directory is {mount}"


def _images(facts: Facts) -> Iterator[str]:
    for image in [*facts.images, *([facts.producer.image] if facts.producer else [])]:
        if image != _image():
            yield f"{facts.file}: the image is {image}, not {_image()}"


def _image() -> str:
    project = tomllib.loads((files.ROOT / "pyproject.toml").read_text())["project"]
    return f"{project['name']}:{project['version']}"


def _replacing(deployment: Path) -> Iterator[str]:
    """Without a takeover, an agent does not start while another one serves the path."""
    daemons = document(deployment / files.DAEMON_SET, "DaemonSet")["spec"]
    surge = daemons["updateStrategy"].get("rollingUpdate", {}).get("maxSurge", 0)
    takes_over = setting(kubernetes(deployment).serve, TAKEOVER) == "true"
    if (surge != 0) != takes_over:
        yield f"{files.DAEMON_SET}: maxSurge is {surge}, {TAKEOVER} is {takes_over}"
    service = from_json(deployment / files.SERVICE)
    if service["schedulingStrategy"] != "DAEMON":
        yield f"{files.SERVICE}: schedulingStrategy is {service['schedulingStrategy']}"
    if service["deploymentConfiguration"] != {"minimumHealthyPercent": 0, "maximumPercent": 100}:
        yield f"{files.SERVICE}: the old task has to end before the new one starts"
    family = from_json(deployment / files.TASK)["family"]
    if service["taskDefinition"] != family:
        yield f"{files.SERVICE}: it runs {service['taskDefinition']}, the task is {family}"


def _host_files(deployment: Path) -> Iterator[str]:
    unit = unit_values(deployment / files.UNIT)
    for key, value in {
        "Service.RuntimeDirectory": "penstock",
        "Service.RuntimeDirectoryMode": "0770",
        "Service.RuntimeDirectoryPreserve": "yes",
        "Service.UMask": "0007",
    }.items():
        if unit.get(key) != [value]:
            yield f"{files.UNIT}: {key} is {unit.get(key)}"
    line = "d /run/penstock 0770 penstock penstock -"
    if line not in (deployment / files.DIRECTORIES).read_text().splitlines():
        yield f"{files.DIRECTORIES}: it has no line {line!r}"


def _names(deployment: Path) -> Iterator[str]:
    """Addresses and images wherever they are written, also in comments."""
    for name in files.ALL:
        text = (deployment / name).read_text()
        addresses = set(re.findall(r"\w+://[\w.:/-]+", text)) if name in files.HOST_FILES else set()
        for address in sorted(addresses - ALLOWED_ADDRESSES):
            yield f"{name}: it names the address {address}"
        for image in sorted(set(re.findall(r"\bpenstock:[\w.]+", text)) - {_image()}):
            yield f"{name}: it names the image {image}"


def container_user(deployment: Path) -> tuple[int, int]:
    """Return the user of the image, which is also that of all files."""
    *_, words = (
        line.words for line in instructions(deployment / files.CONTAINER) if line.name == "USER"
    )
    return _user(words)


def _container(deployment: Path) -> Iterator[str]:
    if 0 in container_user(deployment):
        yield f"{files.CONTAINER}: it runs as root"
    lines = instructions(deployment / files.CONTAINER)
    bases = [line.words.split()[0] for line in lines if line.name == "FROM"]
    for base in bases:
        if not re.fullmatch(r"python:3\.\d+\.\d+-slim-\w+", base):
            yield f"{files.CONTAINER}: the image {base} is not pinned"
    if len(set(bases)) != 1:
        yield f"{files.CONTAINER}: it builds on {bases[0]} and runs on {bases[-1]}"


def compose(deployment: Path) -> Facts:
    services = documents(deployment / files.COMPOSE)[0]["services"]
    agent, producer = services["agent"], services["producer"]
    return Facts(
        file=files.COMPOSE,
        serve=agent["command"],
        health=[agent["healthcheck"]["test"][2:]],
        user=_user(agent["user"]),
        stop_seconds=float(agent["stop_grace_period"].removesuffix("s")),
        mounts=[_compose_mount(mount) for mount in agent["volumes"]],
        preparation=services["socket-directory"]["entrypoint"],
        images=[service["image"] for service in services.values()],
        producer=Producer(
            file=files.COMPOSE,
            user=_user(producer["user"]),
            command=producer["command"],
            mounts=[_compose_mount(mount) for mount in producer["volumes"]],
            image=producer["image"],
        ),
    )


def kubernetes(deployment: Path) -> Facts:
    pod = document(deployment / files.DAEMON_SET, "DaemonSet")["spec"]["template"]["spec"]
    (agent,), (preparation,) = pod["containers"], pod["initContainers"]
    probes = {
        probe: agent[probe]["exec"]["command"][1:]
        for probe in ("startupProbe", "readinessProbe", "livenessProbe")
    }
    hook = agent.get("lifecycle", {}).get("preStop", {}).get("sleep", {}).get("seconds", 0)
    return Facts(
        file=files.DAEMON_SET,
        serve=agent["args"],
        health=[probes["readinessProbe"]],
        live=[probes["startupProbe"], probes["livenessProbe"]],
        user=_pod_user(pod, agent),
        stop_seconds=pod["terminationGracePeriodSeconds"] - hook,
        mounts=_pod_mounts(pod, agent),
        preparation=preparation["command"],
        images=[agent["image"], preparation["image"]],
        producer=_producer_pod(deployment),
    )


def _producer_pod(deployment: Path) -> Producer:
    pod = document(deployment / files.PRODUCER_POD, "Deployment")["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    return Producer(
        file=files.PRODUCER_POD,
        user=_pod_user(pod, container),
        command=container["args"],
        mounts=_pod_mounts(pod, container),
        image=container["image"],
    )


def ecs(deployment: Path) -> Facts:
    task = from_json(deployment / files.TASK)
    of = {entry["name"]: entry for entry in task["containerDefinitions"]}
    agent, preparation = of["agent"], of["socket-directory"]
    producing = from_json(deployment / files.PRODUCER_TASK)
    (producer,) = producing["containerDefinitions"]
    return Facts(
        file=files.TASK,
        serve=agent["command"],
        live=[agent["healthCheck"]["command"][2:]],
        user=_user(agent["user"]),
        stop_seconds=agent["stopTimeout"],
        mounts=_task_mounts(task, agent),
        preparation=[*preparation["entryPoint"], *preparation["command"]],
        images=[agent["image"], preparation["image"]],
        producer=Producer(
            file=files.PRODUCER_TASK,
            user=_user(producer["user"]),
            command=producer["command"],
            mounts=_task_mounts(producing, producer),
            image=producer["image"],
        ),
    )


def systemd(deployment: Path) -> Facts:
    unit = unit_values(deployment / files.UNIT)
    (user,) = unit["Service.User"]
    (group,) = unit["Service.Group"]
    ids: dict[str, str] = {}
    for line in (deployment / files.USERS).read_text().splitlines():
        words = shlex.split(line, comments=True)
        if words:
            ids[f"{words[0]} {words[1]}"] = words[2]
    return Facts(
        file=files.UNIT,
        serve=shlex.split(unit["Service.ExecStart"][0])[1:],
        live=[shlex.split(line)[1:] for line in unit["Service.ExecStartPost"]],
        user=_user(f"{ids[f'u {user}'].split(':')[0]}:{ids[f'g {group}']}"),
        stop_seconds=float(unit["Service.TimeoutStopSec"][0]),
    )


READERS: Final = (compose, kubernetes, ecs, systemd)


def _user(text: str) -> tuple[int, int]:
    user, group = text.split(":")
    return int(user), int(group)


def _pod_user(pod: dict[str, Any], container: dict[str, Any]) -> tuple[int, int]:
    context = {**pod["securityContext"], **container["securityContext"]}
    return context["runAsUser"], context["runAsGroup"]


def _compose_mount(mount: dict[str, Any]) -> Mount:
    return Mount(
        host=mount["source"], inside=mount["target"], read_only=mount.get("read_only", False)
    )


def _pod_mounts(pod: dict[str, Any], container: dict[str, Any]) -> list[Mount]:
    on_host = {volume["name"]: volume["hostPath"]["path"] for volume in pod["volumes"]}
    return [
        Mount(
            host=on_host[mount["name"]],
            inside=mount["mountPath"],
            read_only=mount.get("readOnly", False),
        )
        for mount in container["volumeMounts"]
    ]


def _task_mounts(task: dict[str, Any], container: dict[str, Any]) -> list[Mount]:
    on_host = {volume["name"]: volume["host"]["sourcePath"] for volume in task["volumes"]}
    return [
        Mount(
            host=on_host[mount["sourceVolume"]],
            inside=mount["containerPath"],
            read_only=mount["readOnly"],
        )
        for mount in container["mountPoints"]
    ]
