"""Threads of the blocking client; a thread that waits for an answer usually receives it itself.

One lock guards all state. No thread waits while it holds the lock, and no code of callers runs
under it. Waiting threads have roles:

- The *leader* is a thread that waits for its own result. It receives on the socket, and processes
  the answers for all threads. It stops when its own result has arrived. So a round trip wakes only
  the thread that needs the answer.
- *Followers* wait at gates while another thread leads. A follower's gate opens when its result has
  arrived, or when it must become the leader.
- The *background thread* connects, handles timeouts, sends bytes that the kernel did not accept at
  once, and receives while no thread waits. After another thread has led, it pauses some
  milliseconds before it reads the socket again. So it does not wake with every answer of a thread
  that publishes and waits in turn.

The thread that publishes also sends. If the kernel's send buffer is full, this thread waits for
space. It leads meanwhile if no other thread does, because an agent stops reading from a client that
does not read its answers.

Source: leader/followers (Schmidt and others, "Leader/Followers", PLoP 2000).
"""

from __future__ import annotations

import logging
import os
import select
import socket
import struct
import threading
from collections import deque
from collections.abc import Callable
from math import inf
from typing import Final

from penstock.base.errors import PenstockError
from penstock.base.system import SYSTEM_CLOCK, SYSTEM_RANDOMNESS, Clock, Randomness
from penstock.host.client.futures import PublishFuture
from penstock.host.client.line import Line, receive_from
from penstock.host.client.options import ClientOptions
from penstock.host.client_machine import ClientState
from penstock.host.errors import ClientClosed, Draining, NoCredit, NotConnected
from penstock.host.publication import Publication

# Roles of the threads of a blocking client: which thread leads, and the gates of the others.
#
# The engine's lock guards everything; only `Gate.wait` is called without it.


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
        """Return a new gate for a thread that waits while another thread leads.

        It opens when the future has its result. With None the thread is a watcher: the gate opens
        when a publication, the connection or the credit changes.
        """
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
        """Wake the threads that wait for any change, if something changed since the last call."""
        if self.moved:
            self.moved = False
            for gate in self.watching:
                gate.open()

    def dismiss(self) -> None:
        """Open all gates, because the engine has stopped."""
        for gate in self.following:
            gate.open()


logger = logging.getLogger(__name__)

_LEADER_STEP_MS: Final = 100.0
"""Maximum time in milliseconds for which a leader waits without checking its deadline."""

_PAUSE_MS: Final = 5.0
"""Pause in milliseconds of the background thread after another thread has led."""

_UNREAD_MAX: Final = 8
"""Number of publications after which the publishing thread reads available answers itself."""

_BACKGROUND_STEP_MS: Final = 100.0
_BACKGROUND_IDLE_STEP_MS: Final = 1_000.0
"""Maximum waits of the background thread in milliseconds, with frames in flight and without."""

_NOT_NOW: Final = (NoCredit, NotConnected, Draining)
"""Errors after which a publish that may block waits and retries."""

_DONTWAIT: Final = socket.MSG_DONTWAIT
_RECEIVE_TIMEOUT: Final = struct.pack("ll", 0, int(_LEADER_STEP_MS * 1000))


class Engine:
    """State and threads of a blocking client; methods may be called from any thread."""

    def __init__(
        self,
        options: ClientOptions,
        *,
        producer_id: int,
        producer_epoch: int,
        clock: Clock = SYSTEM_CLOCK,
        randomness: Randomness = SYSTEM_RANDOMNESS,
    ) -> None:
        self.options = options
        self.lock = threading.Lock()
        self.orphaned = False
        """Whether no reference to the client exists any more; set without the lock."""
        self.stopped = False
        self._monotonic = clock.monotonic
        self._retired: list[socket.socket] = []
        core = options.delivery(producer_id, producer_epoch)
        self.line = Line(options, core, randomness, self._retired.append)
        self._refusal: PenstockError | None = None
        self._forked = False
        self._roles = Roles()
        self._led_seen = 0
        self._unread = 0
        self._background_asleep = False
        self._tick_at_ms = 0.0
        self._to_call: deque[PublishFuture] = deque()
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._patience_ms = (
            options.delivery_timeout_ms if options.resend else options.publish_timeout_ms
        )
        self._background = threading.Thread(
            target=self._run_background, name="penstock-host-background", daemon=True
        )
        self._background.start()

    def now_ms(self) -> float:
        return self._monotonic() * 1000

    # Publishing

    def publish(self, publication: Publication, *, block: bool) -> PublishFuture:
        """Send a publication, or queue it if `resend` is set.

        Raises:
            PenstockError: as `Delivery.submit`; with `block`, only after the publish timeout.
        """
        if self._refusal is not None:
            raise self._refusal
        future = PublishFuture(self)
        publication.waiter = future
        publication.on_end = self._on_end
        line = self.line
        with self.lock:
            now_ms = self._monotonic() * 1000
            try:
                line.core.submit(publication, now_ms)
            except _NOT_NOW:
                if not block or threading.current_thread() is self._background:
                    raise
                waiting = submitted = False
            else:
                line.flush(now_ms)
                self._unread += 1
                if self._unread >= _UNREAD_MAX:
                    self._look_for_answers(now_ms)
                submitted, waiting = True, line.out.waiting
                if now_ms + self._patience_ms < self._tick_at_ms:
                    self._ring_bell()
        if not submitted:
            self._submit_later(publication, now_ms + self.options.publish_timeout_ms)
            waiting = line.out.waiting
        if waiting:
            self._send_waiting(now_ms + self.options.publish_timeout_ms if block else 0.0)
        if self._to_call:
            self._call_back()
        return future

    def _look_for_answers(self, now_ms: float) -> None:
        """Process answers that have arrived, without waiting.

        A thread that publishes many frames calls this now and then, so that the background thread
        need not wake up for each answer.
        """
        self._unread = 0
        line = self.line
        if self._roles.leading or line.socket is None:
            return
        received = line.receive(_DONTWAIT)
        if received >= 0:
            line.arrived(received, now_ms)
            if line.retimed:
                self._retime(now_ms)
            if self._roles.watching:
                self._roles.tell_watchers()
            self._close_retired()
        self._roles.led += 1

    def send(self, publication: Publication, timeout: float | None, *, block: bool) -> None:
        """Publish and wait, as `publish(…).result(timeout)` does.

        If no thread leads, which is the usual case, the caller submits and becomes the leader in
        one step. It then needs no future.

        Raises:
            TimeoutError: no answer arrived within `timeout` seconds.
            PenstockError: the same errors as `publish`, or the error of the frame.
        """
        if self._refusal is not None:
            raise self._refusal
        deadline_ms = inf if timeout is None else self.now_ms() + timeout * 1000
        with self.lock:
            current = self._submit_as_leader(publication)
        if current is None:
            self.publish(publication, block=block).result(timeout)
            return

        def done() -> bool:
            return publication.ended

        finished = self._lead(current, done, deadline_ms)
        if self._to_call:
            self._call_back()
        if not finished and not self._drive(done, None, deadline_ms):
            raise TimeoutError(f"no answer arrived within {timeout} s; the publication continues")
        if publication.error is not None:
            raise publication.error

    def _submit_as_leader(self, publication: Publication) -> socket.socket | None:
        """Submit a publication, make the caller the leader, and return the socket to receive on.

        It returns None, and submits nothing, if another thread leads, or if the connection or the
        credit does not allow it now.
        """
        line = self.line
        current = line.socket
        if current is None or self._roles.leading or not line.started:
            return None
        now_ms = self._monotonic() * 1000
        publication.on_end = self._on_lone_end
        try:
            line.core.submit(publication, now_ms)
        except _NOT_NOW:
            return None
        line.flush(now_ms)
        self._roles.lead()
        if now_ms + self._patience_ms < self._tick_at_ms:
            self._ring_bell()
        return current

    def _on_lone_end(self, publication: Publication) -> None:
        self._roles.moved = True

    def _submit_later(self, publication: Publication, deadline_ms: float) -> None:
        """Wait until a publication can be submitted, and submit it.

        Raises:
            NoCredit, NotConnected: it could not be submitted until the deadline.
        """
        refused: list[PenstockError] = []

        def submitted() -> bool:
            refused.clear()
            now_ms = self.now_ms()
            try:
                self.line.core.submit(publication, now_ms)
            except _NOT_NOW as error:
                refused.append(error)
                return False
            except PenstockError as error:
                refused.append(error)
                return True
            self.line.flush(now_ms)
            return True

        self._drive(submitted, None, deadline_ms)
        if refused:
            raise refused[0]

    def _send_waiting(self, deadline_ms: float) -> None:
        """Wait until the kernel has accepted all waiting bytes, or until the deadline."""
        line = self.line
        while (now_ms := self.now_ms()) < deadline_ms:
            with self.lock:
                current = line.socket
                if current is None or not line.out.waiting:
                    return
                lead = not self._roles.leading
                descriptor = current.fileno()  # it may be closed before it is looked at
            if lead:
                self._drive(lambda: not line.out.waiting, None, deadline_ms)
                continue
            poller = select.poll()
            poller.register(descriptor, select.POLLOUT)
            if poller.poll(min(_LEADER_STEP_MS, deadline_ms - now_ms)):
                self._flush(current)
        with self.lock:
            self._ring_bell()

    def _flush(self, current: socket.socket) -> None:
        with self.lock:
            if self.line.socket is current:
                self.line.flush(self.now_ms())

    def _on_end(self, publication: Publication) -> None:
        future: PublishFuture = publication.waiter
        if self._forked:
            future.forget_waiters()
        self._roles.moved = True
        if future.finish(publication.error):
            self._to_call.append(future)
        if future.gates:
            for gate in future.gates:
                gate.open()

    def _call_back(self) -> None:
        """Run the callbacks of ended futures; the caller must not hold the lock."""
        ended = self._to_call
        while ended:
            try:
                future = ended.popleft()
            except IndexError:
                return
            future.call_back()

    # Waiting

    def wait_for(self, future: PublishFuture, timeout: float | None) -> None:
        """Return when the future has ended.

        Raises:
            TimeoutError: it has not ended after `timeout` seconds.
        """
        deadline_ms = inf if timeout is None else self.now_ms() + timeout * 1000
        if not self._drive(future.done, future, deadline_ms):
            raise TimeoutError(f"no answer arrived within {timeout} s; the publication continues")

    def wait_until(self, done: Callable[[], bool], deadline_ms: float) -> bool:
        """Wait until `done()` is true; it is called under the lock whenever state has changed."""
        return self._drive(done, None, deadline_ms)

    def _drive(
        self, done: Callable[[], bool], future: PublishFuture | None, deadline_ms: float
    ) -> bool:
        """Wait until `done()` is true, as leader or follower; return False at the deadline."""
        gate: Gate | None = None
        while True:
            with self.lock:
                if gate is not None:
                    self._roles.leave(gate, future)
                    gate = None
                finished = done()
                now_ms = self.now_ms()
                if finished or now_ms >= deadline_ms or self.stopped:
                    self._hand_over()
                    break
                current = self.line.socket
                if current is None or self._roles.leading:
                    gate = self._roles.follow(future)
                else:
                    self._roles.lead()
            if gate is not None:
                self._wait_at(gate, future, (deadline_ms - now_ms) / 1000)
            elif current is not None:
                finished = self._lead(current, done, deadline_ms)
                if self._to_call:
                    self._call_back()
                if finished:
                    break
        return finished

    def _wait_at(self, gate: Gate, future: PublishFuture | None, seconds: float) -> None:
        if threading.current_thread() is self._background:
            self._leave_and_hand_over(gate, future)
            raise RuntimeError("a callback cannot wait for another publication")
        try:
            gate.wait(seconds)
        except BaseException:  # an interrupt from the keyboard
            self._leave_and_hand_over(gate, future)
            raise

    def _leave_and_hand_over(self, gate: Gate, future: PublishFuture | None) -> None:
        with self.lock:
            self._roles.leave(gate, future)
            self._hand_over()

    def _hand_over(self) -> None:
        if self.line.socket is not None:
            self._roles.hand_over()

    def _lead(self, current: socket.socket, done: Callable[[], bool], deadline_ms: float) -> bool:
        """Receive answers for all threads as the leader, until `done()` is true.

        It returns False at the deadline, when futures have callbacks to run, or when the connection
        has changed. The caller handles that, and may lead again.
        """
        line = self.line
        leading = True
        try:
            while True:
                received = self._await_bytes(current, deadline_ms)
                with self.lock:
                    finished = False
                    if line.socket is current:
                        now_ms = self._monotonic() * 1000
                        if received >= 0:
                            line.arrived(received, now_ms)
                            if line.retimed:
                                self._retime(now_ms)
                            if self._roles.watching:
                                self._roles.tell_watchers()
                        finished = done()
                        # Callbacks are run by a thread that does not lead.
                        if not finished and not self._to_call and now_ms < deadline_ms:
                            continue
                    leading = False
                    self._step_down()
                    return finished
        finally:
            if leading:  # an interrupt from the keyboard
                with self.lock:
                    self._step_down()

    def _step_down(self) -> None:
        self._roles.leading = False
        if self._retired:
            self._close_retired()
        if self._roles.following:
            self._hand_over()
        if self._background_asleep or self.line.socket is None:
            self._ring_bell()

    def _await_bytes(self, current: socket.socket, deadline_ms: float) -> int:
        """Receive answers once, and send waiting bytes meanwhile; return the number of received
        bytes.

        It returns -1 if none arrive within `_LEADER_STEP_MS`, so that the leader can check its
        deadline.
        """
        line = self.line
        room = line.inbox.room
        if not line.out.waiting:
            if deadline_ms == inf:
                return receive_from(current, room)
            left_ms = deadline_ms - self.now_ms()
            if left_ms > _LEADER_STEP_MS:
                return receive_from(current, room)
        else:
            left_ms = deadline_ms - self.now_ms()
        poller = select.poll()
        poller.register(
            current, select.POLLIN | select.POLLOUT if line.out.waiting else select.POLLIN
        )
        for _, events in poller.poll(max(0.0, min(left_ms, _LEADER_STEP_MS))):
            if events & select.POLLOUT:
                self._flush(current)
            if events & ~select.POLLOUT:
                return receive_from(current, room, _DONTWAIT)
        return -1

    def _retime(self, now_ms: float) -> None:
        """Wake the background thread if a timeout is due before its next check."""
        self.line.retimed = False
        if self.line.next_wake_ms(now_ms) < self._tick_at_ms:
            self._ring_bell()

    def _close_retired(self) -> None:
        """Close sockets of ended connections, unless a leader may still be receiving on one."""
        if self._retired and not self._roles.leading:
            for retired in self._retired:
                retired.close()
            self._retired.clear()

    # The background thread

    def _ring_bell(self) -> None:
        """Wake the background thread; the caller holds the lock, so the descriptor is valid."""
        if self._bell >= 0:
            os.eventfd_write(self._bell, 1)

    def orphan(self) -> None:
        """Make the background thread fail all publications and end, because the client was dropped
        without `close`.

        It takes no lock, because destructors call it.
        """
        self.orphaned = True
        self._ring_bell()

    def _run_background(self) -> None:
        try:
            while not self.stopped:
                with self.lock:
                    if self.stopped:
                        return
                    if self.orphaned:
                        self._shut_down(ClientClosed("the client was dropped without close()"))
                        return
                    now_ms = self.now_ms()
                    self._maintain(now_ms)
                    current = self.line.socket
                    # By number: a leader may close it before it is looked at, which is then no
                    # error but an event.
                    descriptor = -1 if current is None else current.fileno()
                    events, wait_ms = self._plan(now_ms)
                self._call_back()
                self._look(current, descriptor, events, wait_ms)
                self._call_back()
        except Exception as error:
            logger.exception("the client's background thread failed")
            with self.lock:
                self._shut_down(ClientClosed(f"the client failed: {error!r}"))
            self._call_back()
        finally:
            with self.lock:
                bell, self._bell = self._bell, -1
                os.close(bell)

    def _maintain(self, now_ms: float) -> None:
        """Connect if an attempt is due, handle timeouts, and wake threads that can continue."""
        line = self.line
        if now_ms >= line.connect_at_ms():
            connected = line.connect(now_ms)
            self._roles.moved = True
            if connected and line.socket is not None:
                line.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _RECEIVE_TIMEOUT)
        if now_ms >= self._tick_at_ms or now_ms >= line.next_wake_ms(now_ms):
            line.tick(now_ms)
        self._roles.tell_watchers()
        self._close_retired()
        self._hand_over()

    def _plan(self, now_ms: float) -> tuple[int, float]:
        """Return the socket events that the background thread waits for, and the milliseconds to
        wait.
        """
        line = self.line
        wake_ms = line.next_wake_ms(now_ms)
        step_ms = _BACKGROUND_STEP_MS if line.core.outstanding else _BACKGROUND_IDLE_STEP_MS
        wait_ms = max(0.0, min(wake_ms - now_ms, step_ms))
        self._tick_at_ms = now_ms + wait_ms
        led = self._roles.led
        recently, self._led_seen = led != self._led_seen, led
        self._background_asleep = False
        events = select.POLLOUT if line.out.waiting else 0
        if recently:
            wait_ms = min(wait_ms, _PAUSE_MS)
        elif self._roles.leading:
            self._background_asleep = True
        else:
            events |= select.POLLIN
        return events, wait_ms

    def _look(
        self, current: socket.socket | None, descriptor: int, events: int, wait_ms: float
    ) -> None:
        """Wait for socket events, a wake-up by another thread or the timeout, and handle them."""
        poller = select.poll()
        poller.register(self._bell, select.POLLIN)
        if descriptor >= 0 and events:
            poller.register(descriptor, events)
        for called, happened in poller.poll(wait_ms):
            if called == self._bell:
                os.eventfd_read(self._bell)
            elif current is not None:
                self._serve(current, happened)

    def _serve(self, current: socket.socket, happened: int) -> None:
        """Receive, unless a leader does, or send waiting bytes."""
        line = self.line
        with self.lock:
            if line.socket is not current:
                return
            now_ms = self.now_ms()
            if happened & ~select.POLLOUT and not self._roles.leading:
                line.arrived(line.receive(_DONTWAIT), now_ms)
            elif happened & select.POLLOUT:
                line.flush(now_ms)
            self._roles.tell_watchers()
            self._close_retired()

    # The end

    def refuse(self, error: PenstockError) -> None:
        """Reject further publications with an error."""
        self._refusal = error

    def close(self, deadline_ms: float) -> bool:
        """Deliver outstanding publications until the deadline, then end the others and the thread.

        Returns:
            Whether all publications had ended by the deadline.
        """
        core = self.line.core
        with self.lock:
            core.close()
            self._ring_bell()
        delivered = self.stopped or self._drive(lambda: not core.outstanding, None, deadline_ms)
        with self.lock:
            self._shut_down(ClientClosed("the client was closed before an answer arrived"))
        self._call_back()
        if threading.current_thread() is not self._background:
            self._background.join()
        return delivered

    def _shut_down(self, error: PenstockError) -> None:
        """End all publications and the connection, once; the caller holds the lock."""
        if self.stopped:
            return
        self.refuse(ClientClosed("the client has been closed"))
        now_ms = self.now_ms()
        self.line.core.abandon(error)
        self.line.lost("the client has been closed", now_ms)
        self._ring_bell()
        self.stopped = True
        self._roles.dismiss()
        self._close_retired()

    def after_fork_in_child(self) -> None:
        """Drop everything that belongs to the parent process, without a message to the agent."""
        self.lock = threading.Lock()
        self.stopped = self._forked = True
        self.refuse(
            ClientClosed(
                "this client belongs to the process that was forked; create a new client in"
                " this process"
            )
        )
        for inherited in (self.line.socket, *self._retired):
            if inherited is not None:
                inherited.close()
        self.line.socket = None
        os.close(self._bell)
        self._bell = -1
        refusal = self._refusal
        if refusal is not None:
            self.line.core.abandon(refusal)
        self._to_call.clear()

    @property
    def state(self) -> str:
        """State of the client: that of its connection, `connecting` without one, or `closed`."""
        if self._refusal is not None or self.line.core.fenced is not None:
            return "closed"
        state = self.line.core.machine.state
        return "connecting" if state is ClientState.DISCONNECTED else state.value
