"""The order of the tests, and which process runs which.

Most of the cost is in what several files share: Spark's session, the foreign clients and their
server, brokers, PostgreSQL, S3. Each process has its own, and those of a folder end when it goes
on to another. So files go in the order of their folders, Spark's first, the foreign clients'
last. Two processes begin with Spark's files, from either end: a session of Spark takes ten seconds
to start and a minute to become fast, so other processes start one only when no other file is left.
They take the rest from either end, and the first two join them. There are four processes for two
cores, as tests also wait for servers, timeouts and disks.
"""

from __future__ import annotations

import pytest
from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

DEAR = ("spark", "apps", "scenarios", "host", "deploy", "broker", "outbox")
"""Folders of this one, dearest first; the others follow by name."""

SPARKS = f"tests/{DEAR[0]}/"
SPARK_PROCESSES = 2

PARSING = {f"tests/test_{name}.py" for name in ("imports", "language", "tidy")}
"""Files that one process runs, because their tests share what `source_facts.py` finds."""


def rank(item: pytest.Item) -> int:
    """Return the position of a test's folder in the order of a run."""
    top, folder, *_ = item.nodeid.split("/")
    if top != "tests":
        return len(DEAR) + 1
    return DEAR.index(folder) if folder in DEAR else len(DEAR)


class FromBothEnds(LoadFileScheduling):  # type: ignore[misc]
    """Whole files, in order, to each process from its own place."""

    def _split_scope(self, nodeid: str) -> str:
        """Return the unit that a test belongs to: its file, or that of the files in `PARSING`."""
        file = str(super()._split_scope(nodeid))
        return min(PARSING) if file in PARSING else file

    def _assign_work_unit(self, node: WorkerController) -> None:
        number, files = self.nodes.index(node), self.workqueue
        for_spark = [file for file in files if file.startswith(SPARKS)]
        others = [file for file in files if not file.startswith(SPARKS)]
        queue = (for_spark or others) if number < SPARK_PROCESSES else (others or for_spark)
        files.move_to_end(queue[-1 if number % 2 else 0], last=False)
        super()._assign_work_unit(node)
