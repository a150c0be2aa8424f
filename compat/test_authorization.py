"""Who may do what, as Apache Kafka with its StandardAuthorizer decides it.

Each principal has ACLs of its own, everybody may have some, and in a second matrix what has no ACL
is open to all; each principal sends one request of every API to both servers, and is told the same
of every element. Some of the principals are compared at each run, all of them in the long one.
`DIFFERENT` has what is answered otherwise, and why.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple
from uuid import UUID

import pytest
from tests.broker.wire_client import WireClient

from compat.authorization.observing import Path as Place
from compat.authorization.observing import observed
from compat.authorization.principals import (
    SUPER_USER,
    World,
    holders,
    of_everybody,
    of_resources,
)
from compat.authorization.requests import NEVER_ASKED, Ask, asks, share_member
from compat.authorization.servers import Guarded, kafka, penstock, prepare, put_in_force
from compat.conftest import missing
from compat.parts import PartMissing
from penstock.wire.kafka.apis import BY_NAME

EVERY: Final = 151
EVERY_WORLD: Final = 61
"""Numbers that no part of the matrix is a multiple of."""
SETTLE_TRIES: Final = 100
UNSETTLED: Final = ("coordinator_load", "coordinator_not_available", "not_coordinator")

PASSED, ALL = "what is not refused", "all"
DIFFERENT: Final = {
    ("Metadata", "topics/m-auto"): (
        ALL, "Apache Kafka creates it some time after the answer, maybe of one before",
    ),
    ("DescribeTopicPartitions", "topics/m-auto"): (PASSED, "the same"),
    ("DescribeLogDirs", "results//topics/m-auto"): (PASSED, "the same"),
    ("Metadata", "topics/m-del"): (
        PASSED, "Apache Kafka shows what is made, and what is deleted, some time after the answer",
    ),
    ("DescribeTopicPartitions", "topics/m-del"): (PASSED, "the same"),
    ("DescribeLogDirs", "results//topics/m-del"): (PASSED, "the same"),
    ("DeleteShareGroupOffsets", "responses/"): (PASSED, "what is deleted again is no error"),
    ("ShareFetch", "responses/"): (PASSED, "partitions without records are left out"),
    ("DescribeShareGroupOffsets", "groups/m-none/topics"): (
        ALL, "the error of a group that is not there is the group's, it has no topics",
    ),
    ("DescribeShareGroupOffsets", "groups/m-share/topics/m-x"): (
        PASSED, "a topic that is not there is said to be unknown",
    ),
    ("DescribeUserScramCredentials", "results/"): (
        ALL, "who may not ask is told so once; Apache Kafka adds an element without a name",
    ),
}  # fmt: skip
"""Where answers differ: an API, how the place begins, what of it, and why."""


def test_every_api_is_in_the_matrix() -> None:
    ids = {"m-t": UUID(int=1), "m-u": UUID(int=2)}
    assert {ask.name for ask in asks(ids)} | set(NEVER_ASKED) == set(BY_NAME)


def worlds(*, allow_unbound: bool) -> list[World]:
    """All worlds of a matrix, the smallest at last."""
    return of_resources() if allow_unbound else [World(tuple(holders())), *of_everybody()]


def some(chosen: Sequence[World]) -> list[World]:
    """A few principals of each part, and whole worlds of a few principals."""
    large = [replace(world, holders=world.holders[::EVERY]) for world in chosen[:1]]
    return large + list(chosen[EVERY_WORLD::EVERY_WORLD])


@pytest.mark.long
@pytest.mark.parametrize("allow_unbound", [False, True])
async def test_some_principals_get_the_same_responses(tmp_path: Path, allow_unbound: bool) -> None:
    await compare(tmp_path, some(worlds(allow_unbound=allow_unbound)), allow_unbound)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("allow_unbound", [False, True])
async def test_all_principals_get_the_same_responses(tmp_path: Path, allow_unbound: bool) -> None:
    await compare(tmp_path, worlds(allow_unbound=allow_unbound), allow_unbound)


async def compare(directory: Path, chosen: Sequence[World], allow_unbound: bool) -> None:
    users = sorted({holder.name for world in chosen for holder in world.holders})
    try:
        with kafka(directory / "kafka", users, allow_unbound=allow_unbound) as theirs:
            async with penstock(directory / "penstock", allow_unbound=allow_unbound) as ours:
                found = await asyncio.gather(told(ours, chosen), told(theirs, chosen))
    except PartMissing as error:
        missing(error)
    differences = []
    for mine, other in zip(*found, strict=True):
        here, there = same(mine), same(other)
        if here != there:
            differences.append(shown(mine, here, there))
    assert not differences, "\n".join([f"{len(differences)} answers differ", *differences[:200]])


class Told(NamedTuple):
    """What a principal is told of a request."""

    who: str
    ask: Ask
    answer: Mapping[Place, str]


def same(told: Told) -> Mapping[Place, str]:
    """What of an answer must be the same."""
    answer = told.answer.items()
    return {place: verdict for place, verdict in answer if _counts(told.ask, place, verdict)}


def _counts(ask: Ask, place: Place, verdict: str) -> bool:
    for (name, begin), (what, _) in DIFFERENT.items():
        if name == ask.name and "/".join(place).startswith(begin):
            return what == PASSED and verdict.endswith("authorization_failed")
    return True


def shown(told: Told, here: Mapping[Place, str], there: Mapping[Place, str]) -> str:
    """How two answers differ."""
    places = [place for place in sorted({*here, *there}) if here.get(place) != there.get(place)]
    said = [f"{'/'.join(place)}: {here.get(place)} for {there.get(place)}" for place in places[:3]]
    return f"{told.ask.name} v{told.ask.asked_version} [{told.who}]: {'; '.join(said)}"


async def told(server: Guarded, chosen: Sequence[World]) -> list[Told]:
    """What each principal of each world is told of each request."""
    root = await server.connect(SUPER_USER)
    ids = await prepare(root)
    # The server's own topics are made at the first question for a coordinator.
    for ask in sorted(asks(ids), key=lambda ask: ask.name != "FindCoordinator"):
        await settled(root, ask)
    for epoch in (0, -1):
        beat = Ask(name="ShareGroupHeartbeat", body=share_member(epoch))
        await settled(root, beat)
    answers = []
    for world in chosen:
        await put_in_force(root, world)
        for holder in world.holders:
            client = await server.connect(holder.name)
            answers += await asked(server, client, f"{holder}; {world}", root, ids)
            await client.close()
    await root.close()
    return answers


async def asked(
    server: Guarded, client: WireClient, who: str, root: WireClient, ids: Mapping[str, UUID]
) -> list[Told]:
    """What one principal is told."""
    names = {topic_id: name for name, topic_id in ids.items()}
    answers = []
    for ask in asks(ids):
        if ask.before is not None:
            await root.call(ask.before[0], _version(ask), ask.before[1])
        try:
            answer = await client.call(ask.name, ask.asked_version, ask.body)
        except (TimeoutError, EOFError) as error:
            error.add_note(f"{server.name}, {ask.name} v{ask.asked_version} [{who}]")
            raise
        answers.append(Told(who, ask, observed(answer, names)))
    return answers


def _version(ask: Ask) -> int:
    name, _ = ask.before or ("", {})
    return {"DeleteTopics": 5, "OffsetCommit": 9}.get(name, BY_NAME[name].maximum)


async def settled(root: WireClient, ask: Ask) -> None:
    """Ask as the super user until no coordinator says that it is not there yet."""
    for number in itertools.count():
        if ask.before is not None:
            await root.call(ask.before[0], _version(ask), ask.before[1])
        answer: Any = await root.call(ask.name, ask.asked_version, ask.body)
        said = repr(answer)
        if not any(word in said for word in UNSETTLED):
            return
        assert number < SETTLE_TRIES, said
        await asyncio.sleep(0.1)
