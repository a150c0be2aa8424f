"""A Python client's transactional producer in a process of its own, to be killed and stopped.

    python -m compat.drivers.apart CLIENT BOOTSTRAP

The program answers the calls of `remote.py` that are about transactions.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from compat.drivers import DRIVERS, Driver, KafkaProblem
from compat.drivers.port import Transactional
from compat.drivers.remote import Program, Remote, from_json


class Apart(Remote):
    """A driver of this package behind a program of its own."""

    def __init__(self, bootstrap: str, name: str) -> None:
        self.name = name
        super().__init__(bootstrap)

    def _start(self) -> Program:
        command = [sys.executable, "-m", "compat.drivers.apart", self.name, self.bootstrap]
        return Program(command, {})


class _Calls:
    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._producers: dict[int, Transactional] = {}

    def answer(self, call: dict[str, Any]) -> Any:
        match call["op"]:
            case "version":
                return self._driver.version
            case "transactional_open":
                self._producers[call["id"]] = self._driver.transactional(
                    call["transactional"], timeout_ms=call["timeout_ms"]
                )
                return call["id"]
            case "transactional":
                return self._perform(self._producers[call["producer"]], call)
        raise ValueError(f"there is no call {call['op']!r}")

    def _perform(self, producer: Transactional, call: dict[str, Any]) -> Any:
        match call["does"]:
            case "begin":
                producer.begin()
            case "send":
                records = [from_json({"offset": -1, **each}) for each in call["records"]]
                return producer.send(call["topic"], records)
            case "send_offsets":
                offsets = {part: offset for part, offset in call["offsets"]}
                producer.send_offsets(call["group"], call["topic"], offsets)
            case "close":
                self._producers.pop(call["producer"]).close()
            case end:
                producer.end(commit=end == "commit")
        return None


def main() -> None:
    """Answer a call a line, until there are no more."""
    name, bootstrap = sys.argv[1:]
    answers, sys.stdout = sys.stdout, sys.stderr
    calls = _Calls(DRIVERS[name](bootstrap))
    for line in sys.stdin:
        call = json.loads(line)
        answer: dict[str, Any]
        try:
            answer = {"id": call["id"], "result": calls.answer(call)}
        except KafkaProblem as problem:
            answer = {"id": call["id"], "error": problem.code, "message": str(problem)}
        except Exception as error:
            answer = {"id": call["id"], "error": type(error).__name__, "message": repr(error)}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
