"""Roles of the threads of a blocking client: which thread leads, and the gates of the others.

The engine's lock guards everything; only `Gate.wait` is called without it.
"""

from __future__ import annotations

import threading

from penstock.host.client.futures import PublishFuture


class Gate:
    """Gate at which one thread waits. Opened once."""

    __slots__ = ("_lock", "opened")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()
        self.opened = False

    def open(self) -> None:
        if not self.opened:
            self.opened = True
            self._lock.release()

    def wait(self, seconds: float) -> None:
        """Return when the gate has been opened, or `seconds` have passed."""
        self._lock.acquire(timeout=min(seconds, threading.TIMEOUT_MAX))


class Roles:
    """The leader, at most one, and the waiting threads in the order in which they came."""

    def __init__(self) -> None:
        self.leading = False
        self.led = 0
        """How often somebody has begun to lead."""
        self.moved = False
        """Whether something ended, began or broke since the watchers were told last."""
        self.watching: dict[Gate, None] = {}
        """Of those followers that wait for something else than one future."""
        self.following: dict[Gate, None] = {}

    def lead(self) -> None:
        """The caller leads now."""
        self.leading = True
        self.led += 1

    def follow(self, future: PublishFuture | None) -> Gate:
        """A gate for a thread that waits for a future, or else for anything that moves."""
        gate = Gate()
        self.following[gate] = None
        if future is None:
            self.watching[gate] = None
        elif future.gates is None:
            future.gates = [gate]
        else:
            future.gates.append(gate)
        return gate

    def leave(self, gate: Gate, future: PublishFuture | None) -> None:
        """The thread does not wait at its gate any more."""
        self.following.pop(gate, None)
        if future is None:
            self.watching.pop(gate, None)
        elif future.gates is not None:
            future.gates.remove(gate)

    def hand_over(self) -> None:
        """Have the first follower look whether it is to lead.

        Who leaves calls this, too: its gate may have been opened for this very reason.
        """
        if self.following and not self.leading:
            next(iter(self.following)).open()

    def tell_watchers(self) -> None:
        """Have those who watch look again, if something has moved."""
        if self.moved:
            self.moved = False
            for gate in self.watching:
                gate.open()

    def dismiss(self) -> None:
        """Open all gates: there is nothing to wait for any more."""
        for gate in self.following:
            gate.open()
