"""The order of the tests, and which process runs which.

What costs most is what several files share: Spark's session, the foreign clients and their server,
brokers, PostgreSQL, S3. Each process has its own, and those of a folder end when the process goes
on to another. So files go in the order of their folders, Spark's first and the foreign clients'
last, the short ones between. The first process takes them from the front, those of odd numbers from
the back, the others behind Spark's folder, as long as there is anything else: they meet where files
are short, so that all work until the end, and one alone has a session of Spark. There are four for
two cores, as more than half of the time tests wait for servers, timeouts and disks, those with
foreign clients most: two processes share these.
"""

from __future__ import annotations

import pytest
from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

DEAR = ("spark", "scenarios", "host", "deploy", "broker", "outbox", "apps")
"""Folders of this one, dearest first; the others follow by name."""

SPARKS = f"tests/{DEAR[0]}/"


def rank(item: pytest.Item) -> int:
    """Return the position of a test's folder in the order of a run."""
    top, folder, *_ = item.nodeid.split("/")
    if top != "tests":
        return len(DEAR) + 1
    return DEAR.index(folder) if folder in DEAR else len(DEAR)


class FromBothEnds(LoadFileScheduling):  # type: ignore[misc]
    """Whole files, in order, to each process from its own place."""

    def _assign_work_unit(self, node: WorkerController) -> None:
        number, files = self.nodes.index(node), self.workqueue
        first = next(iter(files))
        if number % 2:
            first = next(reversed(files))
        elif number:
            first = next((file for file in files if not file.startswith(SPARKS)), first)
        files.move_to_end(first, last=False)
        super()._assign_work_unit(node)
