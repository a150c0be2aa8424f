"""Cost of a lost packet: the timers of loss reports and retransmissions.

    lost ── gap seen ── delay or backoff ──> NAK ── round trip ──> retransmitted data
                                              └─ a NAK that comes within the linger is ignored

A unicast receiver reports a gap at once. Receivers of a group wait a random time up to the maximal
backoff, so that few report the same gap; the default of 10 ms is for ten or more, and delays every
repair of a small group needlessly. The linger bounds the cost of a lost retransmission.

Source: Aeron's `Configuration.java` (defaults), `OptimalMulticastDelayGenerator`,
`RetransmitHandler`; backoff, linger and group size for small groups after the article
"The Four Receive-Path Buffers".
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from typing import Final

from penstock.planner.receive_path.inputs import ReceivePathInputs
from penstock.planner.receive_path.limits import (
    BACKOFF_FLOOR_US,
    NAK_MULTICAST_BACKOFF_US,
    NAK_MULTICAST_GROUP,
    NAK_UNICAST_DELAY_US,
    NAK_UNICAST_RETRY_RATIO,
    RETRANSMIT_LINGER_US,
)

BACKOFF_ROUND_TRIPS: Final = 2
LINGER_TIMES: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Timers:
    """Timers in microseconds, and the worst cost of losses with them and with the defaults."""

    to_group: bool
    wait_us: float
    wait_least_us: float
    retry_ratio: int
    linger_us: float
    group_size: int
    lost_once_us: float
    lost_twice_us: float
    lost_once_default_us: float
    lost_twice_default_us: float


def backoff_us(rtt_us: float, receivers: int) -> float:
    """Return the maximal backoff: two round trips for a small group, else the default or more."""
    trips = BACKOFF_ROUND_TRIPS * rtt_us
    if receivers <= NAK_MULTICAST_GROUP:
        return max(trips, BACKOFF_FLOOR_US)
    return max(trips, NAK_MULTICAST_BACKOFF_US)


def linger_us(wait_us: float, rtt_us: float) -> float:
    """Return how long a sender ignores further reports of retransmitted data."""
    return LINGER_TIMES * (wait_us + rtt_us)


def lost_once_us(wait_us: float, rtt_us: float) -> float:
    """Return the worst delay of data that is lost once: the wait, then NAK and retransmission."""
    return wait_us + rtt_us


def lost_twice_us(wait_us: float, retry_us: float, rtt_us: float, linger: float) -> float:
    """Return the worst delay when the retransmission is lost too.

    The first accepted report comes after the linger, by up to one interval of retries.
    """
    return lost_once_us(wait_us, rtt_us) + linger + retry_us


def plan_timers(inputs: ReceivePathInputs) -> Timers:
    rtt = inputs.rtt_us
    if inputs.to_group:
        wait = backoff_us(rtt, inputs.receivers)
        ratio, retry, retry_default = NAK_UNICAST_RETRY_RATIO, wait, NAK_MULTICAST_BACKOFF_US
        wait_default = NAK_MULTICAST_BACKOFF_US
    else:
        wait = wait_default = NAK_UNICAST_DELAY_US
        trips = BACKOFF_ROUND_TRIPS * rtt
        ratio = max(NAK_UNICAST_RETRY_RATIO, ceil(round(trips / NAK_UNICAST_DELAY_US, 3)))
        retry = NAK_UNICAST_DELAY_US * ratio
        retry_default = NAK_UNICAST_DELAY_US * NAK_UNICAST_RETRY_RATIO
    linger = linger_us(wait, rtt)
    return Timers(
        to_group=inputs.to_group,
        wait_us=wait,
        wait_least_us=BACKOFF_ROUND_TRIPS * rtt if inputs.to_group else wait,
        retry_ratio=ratio,
        linger_us=linger,
        group_size=inputs.receivers,
        lost_once_us=lost_once_us(wait, rtt),
        lost_twice_us=lost_twice_us(wait, retry, rtt, linger),
        lost_once_default_us=lost_once_us(wait_default, rtt),
        lost_twice_default_us=lost_twice_us(wait_default, retry_default, rtt, RETRANSMIT_LINGER_US),
    )
