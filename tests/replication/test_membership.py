"""The core of membership, event by event; whole clusters under faults are in `tests/sim`."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise, product
from math import inf
from random import Random
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.base.errors import InvalidSetting
from penstock.replication.gossip_format import (
    DATAGRAM_BYTES_MAX,
    RUMOURS_MAX,
    Datagram,
    Kind,
    Refusal,
    Rumour,
    State,
    cluster_key,
    decode,
    encode,
)
from penstock.replication.members import MEMBERS_MAX, GossipTerms, Members
from penstock.replication.membership import Membership, Send

CLUSTER = cluster_key("c")
TERMS = GossipTerms()
FIRST = 2**32
"""The first incarnation of registration 1."""
ALIVE, SUSPECT, DEAD = State


class Dice:
    """Randomness of a seed."""

    def __init__(self, seed: int = 0) -> None:
        self._random = Random(seed)

    def uuid(self) -> UUID:
        return UUID(int=self._random.getrandbits(128))

    def bits(self, count: int) -> int:
        return self._random.getrandbits(count)

    def uniform(self) -> float:
        return self._random.random()


def membership(others: Iterable[int] = (2, 3, 4), *, epoch: int = 1) -> Membership:
    made = Membership(
        cluster_id="c",
        broker_id=1,
        registration_epoch=epoch,
        terms=TERMS,
        randomness=Dice(),
        now_ms=0.0,
    )
    made.registered({1: epoch} | dict.fromkeys(others, 1), 0.0)
    return made


def said(
    sender: int,
    *rumours: Rumour,
    kind: Kind = Kind.PING,
    sequence: int = 1,
    target: int = 1,
    origin: int | None = None,
    incarnation: int = FIRST,
) -> bytes:
    origin = sender if origin is None else origin
    return encode(CLUSTER, Datagram(kind, sequence, sender, incarnation, target, origin, rumours))


def read(sends: list[Send]) -> list[tuple[int, Datagram]]:
    return [(send.broker_id, decode(CLUSTER, send.data)) for send in sends]


def state(core: Membership, broker_id: int) -> tuple[State, int]:
    view = core.views()[broker_id]
    return view.state, view.incarnation - FIRST


def first_ping(core: Membership) -> tuple[int, Datagram]:
    ((to, ping),) = read(core.tick(core.due_ms))
    assert (ping.kind, ping.target, ping.origin) == (Kind.PING, to, 1)
    return to, ping


def test_all_that_are_registered_are_alive_until_they_are_found_not_to_be() -> None:
    core = membership()
    assert {one: view.state for one, view in core.views().items()} == dict.fromkeys(
        (1, 2, 3, 4), ALIVE
    )
    assert core.due_ms == TERMS.probe_interval_ms


def test_a_round_comes_to_everybody_and_the_next_one_in_another_order() -> None:
    core = membership(range(2, 12))
    rounds = []
    for _ in range(4):
        order = []
        for _ in range(10):
            to, ping = first_ping(core)
            core.receive(
                said(to, kind=Kind.ACK, sequence=ping.sequence, target=to, origin=1),
                core.due_ms - 400,
            )
            order.append(to)
        rounds.append(tuple(order))
    assert all(sorted(one) == list(range(2, 12)) for one in rounds)
    assert len(set(rounds)) == 4
    assert all(view.state is ALIVE for view in core.views().values())


def test_who_does_not_answer_is_asked_by_others_then_suspected_then_dead() -> None:
    core = membership()
    began_ms = core.due_ms
    target, ping = first_ping(core)
    assert core.due_ms == began_ms + TERMS.probe_timeout_ms
    asked = read(core.tick(core.due_ms))
    assert {to for to, _ in asked} == {2, 3, 4} - {target}
    for _, request in asked:
        assert (request.kind, request.target, request.origin) == (Kind.PING_REQUEST, target, 1)
        assert request.sequence == ping.sequence
    assert core.due_ms == began_ms + TERMS.probe_interval_ms
    assert state(core, target) == (ALIVE, 0)
    core.tick(core.due_ms)
    suspected_ms = began_ms + TERMS.probe_interval_ms
    assert core.views()[target] == (SUSPECT, suspected_ms, FIRST)
    while core.due_ms < suspected_ms + 2_000:
        assert state(core, target) == (SUSPECT, 0)
        core.tick(core.due_ms)
    core.tick(core.due_ms)
    assert core.views()[target] == (DEAD, suspected_ms + 2_000, FIRST)


@pytest.mark.parametrize("wrong", [{"sequence": 0}, {"target": 9}, {"origin": 4}])
def test_only_the_acknowledgement_of_the_probe_counts(wrong: dict[str, int]) -> None:
    core = membership((2,))
    target, ping = first_ping(core)
    right = {"sequence": ping.sequence, "target": target, "origin": 1}
    core.receive(said(2, kind=Kind.ACK, **{**right, **wrong}), core.due_ms - 1)
    core.tick(TERMS.probe_interval_ms * 2)
    assert state(core, 2) == (SUSPECT, 0)
    other = membership((2,))
    target, ping = first_ping(other)
    other.receive(said(2, kind=Kind.ACK, sequence=ping.sequence, target=2, origin=1), 600)
    other.tick(TERMS.probe_interval_ms * 2)
    assert state(other, 2) == (ALIVE, 0)


def test_who_is_asked_pings_for_another_and_hands_the_answer_on() -> None:
    core = membership()
    ((to, ping),) = read(core.receive(said(2, kind=Kind.PING_REQUEST, sequence=9, target=3), 1))
    assert (to, ping.kind, ping.sequence, ping.target, ping.origin) == (3, Kind.PING, 9, 3, 2)
    answer = said(3, kind=Kind.ACK, sequence=9, target=3, origin=2)
    ((to, ack),) = read(core.receive(answer, 2))
    assert (to, ack.kind, ack.sequence, ack.target, ack.origin) == (2, Kind.ACK, 9, 3, 2)
    # What was handed on is not handed on again, and nobody is asked for himself or a stranger.
    assert core.receive(said(4, kind=Kind.ACK, sequence=9, target=3, origin=2), 3) == []
    assert core.receive(said(2, kind=Kind.PING_REQUEST, target=1), 4) == []
    assert core.receive(said(2, kind=Kind.PING_REQUEST, target=99), 4) == []
    assert core.receive(said(3, kind=Kind.ACK, target=3, origin=99), 5) == []
    assert core.receive(said(2, kind=Kind.PING, target=3), 6) == []


POSSIBLE = list(product(State, (3, 4)))


@pytest.mark.parametrize(("old", "new"), list(product(POSSIBLE, POSSIBLE)))
def test_a_rumour_counts_if_it_is_higher(old: tuple[State, int], new: tuple[State, int]) -> None:
    core = membership()
    for now_ms, (what, number) in ((1, old), (2, new)):
        core.receive(said(2, Rumour(3, FIRST + number, what)), now_ms)
    what, number = max((old[1], old[0]), (new[1], new[0]))[::-1]
    assert state(core, 3) == (what, number)
    assert core.views()[3].since_ms == (0 if what is ALIVE and old[0] is ALIVE
                                        else 1 if what is old[0] else 2)  # fmt: skip


HEARD = st.builds(
    Rumour, st.sampled_from([2, 3, 4]), st.integers(FIRST, FIRST + 3), st.sampled_from(State)
)


@given(st.lists(HEARD, max_size=12), st.randoms(use_true_random=False))
def test_rumours_come_to_the_same_in_every_order_and_number(
    rumours: list[Rumour], random: Random
) -> None:
    found = []
    for _ in range(2):
        members = Members(Rumour(1, FIRST, ALIVE), TERMS, 0)
        members.registered(dict.fromkeys((2, 3, 4), 1), 0)
        for rumour in rumours:
            members.hear(rumour, 1)
        found.append({one: row.rumour for one, row in members.rows.items()})
        rumours = [*rumours, *rumours[:3]]
        random.shuffle(rumours)
    assert found[0] == found[1]


@pytest.mark.parametrize("what", State)
@pytest.mark.parametrize("number", [0, 1, 5])
def test_a_member_refutes_that_it_is_not_alive(what: State, number: int) -> None:
    core = membership()
    ((to, ack),) = read(core.receive(said(2, Rumour(1, FIRST + number, what)), 1))
    assert (to, ack.kind) == (2, Kind.ACK)
    wrong = what is not ALIVE
    assert ack.incarnation == FIRST + (number + 1 if wrong else 0)
    assert (Rumour(1, ack.incarnation, ALIVE) in ack.rumours) == wrong
    # The same again is out of date by now.
    assert read(core.receive(said(3, Rumour(1, FIRST + number, what)), 2))[0][1].incarnation == (
        ack.incarnation
    )


def test_rumours_about_other_registrations_are_not_taken() -> None:
    core = membership(epoch=2)
    for rumour in (Rumour(1, FIRST, DEAD), Rumour(1, 3 * FIRST, DEAD), Rumour(1, 2**64 - 1, DEAD)):
        assert read(core.receive(said(2, rumour), 1))[0][1].incarnation == 2 * FIRST
    for rumour in (
        Rumour(3, FIRST - 1, DEAD),
        Rumour(3, 2 * FIRST, DEAD),
        Rumour(3, 2**64 - 1, DEAD),
    ):
        core.receive(said(2, rumour), 2)
    assert state(core, 3) == (ALIVE, 0)
    core.receive(said(2, Rumour(1, 3 * FIRST - 1, DEAD)), 3)  # the last incarnation that there is
    assert core.views()[1].incarnation == 2 * FIRST
    core.receive(said(2, Rumour(3, 2 * FIRST - 1, DEAD)), 3)
    assert core.views()[3].state is DEAD
    core.registered({2: 1, 3: 2, 4: 1}, 4)
    assert core.views()[3] == (ALIVE, 4, 2 * FIRST)


def test_registrations_come_and_go() -> None:
    core = membership((2, 3))
    core.receive(said(2, Rumour(3, FIRST, DEAD)), 1)
    core.registered({2: 1, 3: 1, 5: 4}, 2)
    assert core.views()[3].state is DEAD  # the same registration, so the same process
    assert core.views()[5] == (ALIVE, 2, 4 * FIRST)
    core.registered({2: 1}, 3)
    assert set(core.views()) == {1, 2}
    core.registered({}, 4)
    assert set(core.views()) == {1}
    assert core.tick(core.due_ms) == []
    core.registered(dict.fromkeys(range(5_000), 1), 5)
    assert len(core.views()) == MEMBERS_MAX


def test_a_process_whose_session_expired_goes_on_in_its_next_registration() -> None:
    core = membership((2,))
    core.receive(said(2, Rumour(1, FIRST, DEAD)), 1)
    core.registered({1: 1, 2: 1}, 2)
    assert state(core, 1) == (ALIVE, 1)  # that was no other registration
    core.registered({1: 3, 2: 1}, 3)
    assert core.views()[1] == (ALIVE, 3, 3 * FIRST)
    ((_, ack),) = read(core.receive(said(2, Rumour(1, 3 * FIRST, SUSPECT)), 4))
    assert ack.incarnation == 3 * FIRST + 1


def test_who_is_not_thought_alive_is_told_so() -> None:
    core = membership((2,))
    core.receive(said(2), 1)
    first_ping(core)
    core.tick(core.due_ms)
    sends = read(core.tick(core.due_ms))
    assert sends[0][1].rumours[0] == Rumour(2, FIRST, SUSPECT)
    ((_, ack),) = read(core.receive(said(2), core.due_ms - 1))
    assert ack.rumours[0] == Rumour(2, FIRST, SUSPECT)
    core.receive(said(2, incarnation=FIRST + 1), core.due_ms - 1)
    assert state(core, 2) == (ALIVE, 1)
    ((_, ack),) = read(core.receive(said(2, incarnation=FIRST + 1), core.due_ms - 1))
    assert not [one for one in ack.rumours if one.broker_id == 2]  # it knows


def test_a_rumour_is_carried_in_a_bounded_number_of_datagrams() -> None:
    core = membership()
    dead, carried = Rumour(3, FIRST, DEAD), 0
    for number in range(100):
        ((_, ack),) = read(core.receive(said(2, dead, sequence=number), number))
        carried += dead in ack.rumours
    assert carried == core.terms.retransmit_multiplier * 3  # of four members


def test_a_datagram_carries_what_was_sent_least_and_stays_short() -> None:
    ids = range(2, 302)
    core = membership(ids)
    for start in range(2, 302, 100):
        core.receive(said(2, *[Rumour(one, FIRST, DEAD) for one in range(start, start + 100)]), 1)
    told: list[Rumour] = []
    for number in range(3):
        (send,) = core.receive(said(2, sequence=number, incarnation=FIRST + 1), 2)
        assert len(send.data) <= DATAGRAM_BYTES_MAX
        told += decode(CLUSTER, send.data).rumours
    assert len(set(told)) >= 3 * RUMOURS_MAX - 15


def test_who_leaves_is_dead_at_once_by_its_own_word_and_does_nothing_more() -> None:
    core, other = membership(), membership((2, 3, 4))
    sends = core.leave(10)
    assert sorted(send.broker_id for send in sends) == [2, 3, 4]
    assert all(Rumour(1, FIRST, DEAD) in datagram.rumours for _, datagram in read(sends))
    assert core.due_ms == inf
    assert (
        core.leave(11) == core.tick(11) == core.receive(said(2, Rumour(1, FIRST, DEAD)), 11) == []
    )
    other.receive(said(2, Rumour(3, FIRST, DEAD)), 1)
    assert state(other, 3) == (DEAD, 0)


def test_a_process_that_was_stopped_gives_others_the_time_that_it_missed() -> None:
    core = membership()
    target, _ = first_ping(core)
    core.tick(core.due_ms)
    core.tick(core.due_ms)
    assert state(core, target) == (SUSPECT, 0)
    core.tick(60_000)
    assert state(core, target) == (SUSPECT, 0)
    # Nobody is suspected for the probe that was under way; another has begun.
    suspects = [one for one, view in core.views().items() if view.state is SUSPECT]
    assert suspects == [target]
    # The timer was due at 2,000, when the suspicion had 1,000 left.
    while core.due_ms < 61_000:
        core.tick(core.due_ms)
    assert state(core, target) == (SUSPECT, 0)
    core.tick(core.due_ms)
    assert state(core, target) == (DEAD, 0)


def test_nobody_is_asked_about_the_dead_nor_are_they_asked() -> None:
    core = membership()
    core.receive(said(2, Rumour(3, FIRST + 9, DEAD)), 1)
    asked = {}
    for number in range(3):
        target, _ = first_ping(core)
        asked[target] = {to for to, _ in read(core.tick(core.due_ms))}
        core.receive(said(2, incarnation=FIRST + 1 + number), core.due_ms - 1)
        core.receive(said(4, incarnation=FIRST + 1 + number), core.due_ms - 1)
    assert asked == {2: {4}, 3: set(), 4: {2}}


@pytest.mark.parametrize(("others", "periods"), [(1, 4), (9, 4), (99, 8), (999, 12)])
def test_suspicions_last_longer_where_there_are_more(others: int, periods: int) -> None:
    core = membership(range(2, 2 + others))
    core.receive(said(2, Rumour(2, FIRST, SUSPECT)), 1)
    ends_ms = 1 + periods * TERMS.probe_interval_ms
    while core.due_ms < ends_ms:
        assert state(core, 2) == (SUSPECT, 0)
        core.tick(core.due_ms)
    core.tick(ends_ms)
    assert state(core, 2) == (DEAD, 0)


def test_who_misses_acknowledgements_takes_its_time() -> None:
    core = membership(range(2, 12))
    pinged_ms: list[float] = []
    while len(pinged_ms) < 10:
        now_ms = core.due_ms
        for to, sent in read(core.tick(now_ms)):
            if sent.kind is Kind.PING:
                pinged_ms.append(now_ms)
                ack = said(to, kind=Kind.ACK, sequence=sent.sequence, target=to, origin=1)
                if len(pinged_ms) > 5:
                    core.receive(ack, now_ms)
    lengths = [after - before for before, after in pairwise(pinged_ms)]
    assert lengths == [500, 1_000, 1_500, 2_000, 2_000, 2_000, 1_500, 1_000, 500]


def test_strangers_are_refused_and_counted() -> None:
    core = membership((2,))
    assert core.receive(said(9, Rumour(2, FIRST, DEAD)), 1) == []
    assert core.receive(said(1, Rumour(2, FIRST, DEAD)), 1) == []  # as if it were this one
    assert core.receive(b"PG", 1) == []
    assert core.receive(b"PG\x02" + bytes(60), 1) == []
    assert core.receive(bytes(2_000), 1) == []
    assert core.receive(encode(cluster_key("d"), decode(CLUSTER, said(2))), 1) == []
    assert core.refused == {
        Refusal.STRANGER: 2,
        Refusal.MALFORMED: 1,
        Refusal.FUTURE_VERSION: 1,
        Refusal.TOO_LONG: 1,
        Refusal.OTHER_CLUSTER: 1,
    }
    assert state(core, 2) == (ALIVE, 0)


BROKERS = st.sampled_from([1, 2, 3, 9, -1])
ANY = st.builds(
    Datagram,
    st.sampled_from(Kind),
    st.integers(0, 2**32 - 1),
    BROKERS,
    st.sampled_from([0, FIRST, FIRST + 1, 2 * FIRST - 1, 2**64 - 1]),
    BROKERS,
    BROKERS,
    st.lists(
        st.builds(
            Rumour,
            BROKERS,
            st.sampled_from([0, FIRST, FIRST + 1, 2 * FIRST - 1, 2**64 - 1]),
            st.sampled_from(State),
        ),
        max_size=RUMOURS_MAX,
    ).map(tuple),
)


@given(st.lists(ANY, max_size=8), st.integers(0, 2**32 - 1))
def test_no_datagram_breaks_anything(datagrams: list[Datagram], epoch: int) -> None:
    core = membership((2, 3), epoch=epoch)
    now_ms = 0.0
    for datagram in datagrams:
        sends = core.receive(encode(CLUSTER, datagram), now_ms)
        assert len(sends) <= 1
        now_ms = max(now_ms, core.due_ms)
        sends += core.tick(now_ms)
        assert all(len(send.data) <= DATAGRAM_BYTES_MAX for send in sends)
        assert core.due_ms > now_ms
    assert set(core.views()) == {1, 2, 3}


def test_a_timeout_that_does_not_fit_its_period_is_refused() -> None:
    with pytest.raises(InvalidSetting, match="probe_interval_ms"):
        GossipTerms(probe_timeout_ms=500)
