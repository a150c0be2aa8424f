"""The broker's page lists the files that a produce request goes through."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Collection
from types import FrameType
from typing import Any

from penstock.broker.server import BrokerServer
from tests.broker.walks import SOURCE, name_of
from tests.broker.wire_client import WireClient, batch

FILES_MAX = 14


def listed() -> tuple[list[str], list[str]]:
    """The files of the walk, in order, and those that they ask by the way."""
    text = (SOURCE / "broker" / "README.md").read_text(encoding="utf-8")
    section = text[text.index("**The walk of a produce request**") :]
    section = section[: section.index("`tests/broker/test_produce_walk.py`")]
    walk, _, asked = section.partition("Files that these call")
    names = re.compile(r"`([\w/]+\.py)`")
    return names.findall(walk), names.findall(asked)


class Trace:
    """Files of the package that run from the arrival of a frame until it is on disk, and
    their calls."""

    def __init__(self, walk: Collection[str]) -> None:
        """Only what a file of the walk has begun counts, no timer of the loop's."""
        self._walk = walk
        self.files: set[str] = set()
        self.calls: set[tuple[str, str]] = set()
        self.on_disk = False

    def __call__(self, frame: FrameType, event: str, argument: Any) -> None:
        if event == "c_call" and argument is os.fdatasync:
            self.on_disk = True
        if event == "call" and not self.on_disk:
            name, caller = name_of(frame), name_of(frame.f_back)
            if name and _first(frame) in self._walk:
                self.files.add(name)
                if caller and caller != name:
                    self.calls.add((caller, name))


def _first(frame: FrameType | None) -> str:
    """The file of the package by which the loop began what runs."""
    first = ""
    while frame is not None:
        first = name_of(frame) or first
        frame = frame.f_back
    return first


async def test_a_produce_request_goes_through_the_files_of_the_map(
    broker: BrokerServer, client: WireClient
) -> None:
    walk, asked = listed()
    assert len(walk) <= FILES_MAX
    assert all((SOURCE / name).is_file() for name in [*walk, *asked])
    await client.create("t")
    for _ in range(3):
        await client.produce("t", batch(b"v"))
    trace = Trace(walk)
    sys.setprofile(trace)
    try:
        await client.produce("t", batch(b"v"))
    finally:
        sys.setprofile(None)
    assert trace.on_disk
    gone_through = {name for name in trace.files if not name.startswith("base/")}
    assert gone_through <= {*walk, *asked}, "files that the map does not have"
    onward = [pair for pair in trace.calls if pair[0] in asked and pair[1] in walk]
    assert not onward, "these are on the walk, not by the way"
