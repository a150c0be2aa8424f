"""Every point of a batch is died at once, and nothing is lost, doubled or overtaken.

A short form of `python -m tests.scenarios.spark`; and sinks that are broken on purpose, which it
has to notice.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.scenarios.spark.__main__ import ON_CLUSTER
from tests.scenarios.spark.campaign import Campaign, Wrong
from tests.scenarios.spark.line import Line
from tests.scenarios.spark.points import (
    BROKER,
    BY_NAME,
    DRIVER,
    EXECUTOR,
    PLANNER,
    WORKER,
    Point,
)
from tests.spark.cluster.standalone import StandaloneCluster

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.long,
    pytest.mark.timeout(1_200),
    # PySpark warns of newer pandas at every conversion.
    pytest.mark.filterwarnings("ignore:PySpark does not yet:FutureWarning"),
]

SEED = 7
TRIES_MAX = 3


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Lines below it share what Java makes of Spark's classes."""
    return tmp_path_factory.mktemp("kills")


def through(campaign: Campaign, points: Sequence[Point], during: Sequence[Point]) -> None:
    """A life for each point, until each was died at; others are killed on the way."""
    left, others = list(points), list(during)
    for _ in range(TRIES_MAX):
        for number, point in enumerate(left):
            some = others[:2]
            del others[:2]
            campaign.live(some, point, more=number < len(left) - 1)
        killed = set(campaign.line.kills)
        left = [point for point in left if point.name not in killed]
        others = [point for point in during if point.name not in killed]
    campaign.finish()


def test_every_point(folder: Path) -> None:
    shared = [point for point in DRIVER if point.needs == "any"]
    own = [point for point in DRIVER if point.needs == "letters"]
    held = [point for point in DRIVER if point.needs == "holding"]
    alive = (*WORKER, *PLANNER, *BROKER)
    with (
        Line(folder / "rejecting", holding=False, seed=SEED) as rejecting,
        Line(folder / "holding", holding=True, seed=SEED) as holding,
        ThreadPoolExecutor(max_workers=2) as side_by_side,
    ):
        campaigns = [Campaign(line, seed=SEED) for line in (rejecting, holding)]
        try:
            campaigns[0].warm_up()
            running = [
                side_by_side.submit(through, campaigns[0], [*shared[::2], *own], alive),
                side_by_side.submit(through, campaigns[1], [*shared[1::2], *held], alive),
            ]
            for process in running:
                process.result()
        finally:
            for campaign in campaigns:
                campaign.close()
        killed = {*rejecting.kills, *holding.kills}
        assert killed >= {point.name for point in (*DRIVER, *alive)}


def test_executors(folder: Path) -> None:
    with (
        StandaloneCluster(folder / "spark", workers=2) as cluster,
        Line(folder / "cluster", holding=False, seed=SEED) as line,
    ):
        campaign = Campaign(line, seed=SEED, master=cluster.url, settings=ON_CLUSTER)
        try:
            campaign.live(EXECUTOR, DRIVER[0], more=False)
            campaign.finish()
        finally:
            campaign.close()
        assert set(line.kills) >= {point.name for point in EXECUTOR}


@pytest.mark.parametrize(
    ("bug", "point", "noticed"),
    [
        ("table forgets batches", "table: committed", "table: more than once"),
        ("topic forgets batches", "topic: commit answered", "topic: more than once"),
    ],
)
def test_a_broken_sink_is_noticed(folder: Path, bug: str, point: str, noticed: str) -> None:
    with Line(folder / bug.replace(" ", "-"), holding=False, seed=SEED) as line:
        campaign = Campaign(line, seed=SEED, bug=bug)
        try:
            campaign.live([], BY_NAME[point])
            with pytest.raises(Wrong, match=noticed):
                campaign.finish()
        finally:
            campaign.close()
