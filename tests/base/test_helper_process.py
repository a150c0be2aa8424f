"""A process of lower priority: started on demand, restarted when it dies, killed when it hangs."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from functools import partial
from multiprocessing.connection import Connection

import pytest

from penstock.base.helper_process import HelperProcess


def serve(connection: Connection) -> None:
    """Answer with the sum of the numbers; end at a text."""
    asked = connection.recv()
    if isinstance(asked, str):
        os._exit(1)
    connection.send((sum(asked), os.getpid(), os.getpriority(os.PRIO_PROCESS, 0)))


def exchange(asked: object, connection: Connection) -> tuple[int, int, int]:
    connection.send(asked)
    if not connection.poll(60):
        raise TimeoutError
    answer: tuple[int, int, int] = connection.recv()
    return answer


@pytest.fixture
def process() -> Iterator[HelperProcess]:
    made = HelperProcess(__name__)
    yield made
    made.end()


def test_requests_are_served_by_one_process_of_lower_priority(process: HelperProcess) -> None:
    assert process.pid is None
    total, pid, nice = process.ask(partial(exchange, [1, 2]))
    assert total == 3
    assert pid == process.pid
    assert nice > os.getpriority(os.PRIO_PROCESS, 0)
    assert process.ask(partial(exchange, [4])) == (4, pid, nice)


def test_a_killed_process_is_replaced(process: HelperProcess) -> None:
    _, pid, _ = process.ask(partial(exchange, [1]))
    os.kill(pid, signal.SIGKILL)
    total, after, _ = process.ask(partial(exchange, [1, 1]))
    assert total == 2
    assert after != pid


def test_a_request_that_ends_the_process_fails_after_two_attempts(process: HelperProcess) -> None:
    attempts = []

    def counted(connection: Connection) -> tuple[int, int, int]:
        attempts.append(process.pid)
        return exchange("end", connection)

    with pytest.raises((OSError, EOFError)):
        process.ask(counted)
    assert len(set(attempts)) == 2
    assert process.ask(partial(exchange, [5]))[0] == 5


def test_a_process_without_an_answer_in_time_is_killed(process: HelperProcess) -> None:
    def late(connection: Connection) -> None:
        raise TimeoutError("no response")

    process.ask(partial(exchange, []))
    with pytest.raises(TimeoutError, match="no response"):
        process.ask(late)
    assert process.pid is None


def test_a_process_without_requests_ends() -> None:
    process = HelperProcess(__name__, idle_seconds=0.01)
    _, pid, _ = process.ask(partial(exchange, [1]))
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    total, after, _ = process.ask(partial(exchange, [1, 1]))
    assert (total, after != pid) == (2, True)
    process.end()


def test_a_closed_process_starts_no_other_for_a_request(process: HelperProcess) -> None:
    process.ask(partial(exchange, [1]))
    process.close()
    with pytest.raises((OSError, EOFError)):
        process.ask(partial(exchange, [1]))
    assert process.pid is None
