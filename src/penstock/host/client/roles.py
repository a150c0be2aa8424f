"""Roles of the threads of a blocking client: which thread leads, and the gates of the others.

The engine's lock guards everything; only `Gate.wait` is called without it.
"""

from __future__ import annotations

import threading

from penstock.host.client.futures import PublishFuture


class Gate:
    """Gate at which one thread waits; it is opened once."""

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
        """Return when the gate is open, or `seconds` have passed."""
        self._lock.acquire(timeout=min(seconds, threading.TIMEOUT_MAX))


class Roles:
    """The leader, if there is one, and the waiting threads in the order of their arrival."""

    def __init__(self) -> None:
        self.leading = False
        self.led = 0
        """Number of times that a thread became the leader."""
        self.moved = False
        """Whether a publication, the connection or the credit changed since watchers were last
        woken.
        """
        self.watching: dict[Gate, None] = {}
        """Gates of followers that wait for any change instead of one future."""
        self.following: dict[Gate, None] = {}

    def lead(self) -> None:
        """Make the caller the leader."""
        self.leading = True
        self.led += 1

    def follow(self, future: PublishFuture | None) -> Gate:
        """Return a new gate for a thread that waits for a future, or for any change with None."""
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
        """Remove the gate of a thread that no longer waits at it."""
        self.following.pop(gate, None)
        if future is None:
            self.watching.pop(gate, None)
        elif future.gates is not None:
            future.gates.remove(gate)

    def hand_over(self) -> None:
        """Open the gate of the first follower if no thread leads, so that it may become the leader.

        A thread that leaves must call this too, because its gate may have been opened for this
        reason.
        """
        if self.following and not self.leading:
            next(iter(self.following)).open()

    def tell_watchers(self) -> None:
        """Open the gates of watchers if anything has changed since the last call."""
        if self.moved:
            self.moved = False
            for gate in self.watching:
                gate.open()

    def dismiss(self) -> None:
        """Open all gates, because the engine has stopped."""
        for gate in self.following:
            gate.open()
