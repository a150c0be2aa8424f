"""The long form of the kills.

    python -m tests.scenarios.spark --kills 300 [--minutes M] [--seed N] [--folder F]

Two pipelines, one that rejects records and one that holds them, are killed side by side, and a
third one on a cluster loses its executors. A folder that was used before is gone on with; SIGTERM
ends the killing early. The last line is the verdict; `result.json` in the folder has the table of
points and kills.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from tests.scenarios.spark.campaign import CLASSES, Campaign
from tests.scenarios.spark.line import Line
from tests.scenarios.spark.points import ALL, BROKER, DRIVER, EXECUTOR, PLANNER, WORKER, Point
from tests.spark.cluster.standalone import StandaloneCluster

LIVES_PER_CHECK: Final = 5
WORKERS_PER_LIFE: Final = 4
PLANNER_CHANCE: Final = 0.3
BROKER_CHANCE: Final = 0.5
ANYWHERE_CHANCE: Final = 0.05
EXECUTOR_KILLS: Final = 12
ON_CLUSTER: Final = {
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.task.maxFailures": "100",
    "spark.stage.maxConsecutiveAttempts": "100",
}


class Counted:
    """Count the kills of all lines, with their deadline."""

    def __init__(self, lines: Sequence[Line], kills: int, minutes: float | None) -> None:
        self.lines = lines
        self.began = time.monotonic()
        self._wanted = kills
        self._seconds = None if minutes is None else minutes * 60
        self.problems: list[str] = []
        self._stopped = False

    def stop(self, *_: object) -> None:
        """Let there be no more lives; what there is is looked at."""
        self._stopped = True

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began

    def kills(self) -> Counter[str]:
        return Counter(name for line in self.lines for name in line.kills)

    def enough(self) -> bool:
        """Whether there were enough kills, the time is over, or something is wrong."""
        late = self._seconds is not None and self.seconds > self._seconds
        return late or self._stopped or bool(self.problems) or self.kills().total() >= self._wanted

    def say(self, text: str) -> None:
        print(f"{self.seconds:7.1f} s  {self.kills().total():4} kills  {text}", flush=True)


def plan(campaign: Campaign, chance: random.Random) -> tuple[list[Point], Point | None]:
    """Choose the processes to kill in the next life, and the point where its driver dies."""
    during = [campaign.choose(WORKER) for _ in range(WORKERS_PER_LIFE)]
    during += [campaign.choose(PLANNER)] * (chance.random() < PLANNER_CHANCE)
    during += [campaign.choose(BROKER)] * (chance.random() < BROKER_CHANCE)
    chance.shuffle(during)
    return during, None if chance.random() < ANYWHERE_CHANCE else campaign.choose(DRIVER)


def kill_drivers(campaign: Campaign, counted: Counted, seed: int) -> None:
    """Lives of a line until there were enough."""
    name = campaign.line.folder.name
    chance = random.Random(f"{seed}/{name}/plan")
    while not counted.enough():
        during, last = plan(campaign, chance)
        campaign.live(during, last)
        if campaign.lives % LIVES_PER_CHECK == 0:
            campaign.check()
            counted.say(f"{name}: {campaign.lives} lives, {dict(campaign.line.numbers)}")
        else:
            counted.say(f"{name}: {', '.join(point.name for point in (*during, last) if point)}")
    campaign.finish()
    counted.say(f"{name}: all there, {dict(campaign.line.numbers)}")


def kill_executors(campaign: Campaign, counted: Counted, kills: int) -> None:
    """Run one life on a cluster, whose executors die."""
    names = {point.name for point in EXECUTOR}
    left = kills - sum(name in names for name in campaign.line.kills)
    if left > 0:
        wanted = [point for _ in range(left) for point in EXECUTOR][:left]
        campaign.live(wanted, DRIVER[0], more=False)
        counted.say(f"executors: {dict(Counter(campaign.line.kills))}")
    campaign.finish()
    counted.say(f"executors: all there, {dict(campaign.line.numbers)}")


def run(counted: Counted, work: Sequence[Callable[[], None]]) -> None:
    """Everything side by side; what is wrong is noted, and stops the others."""

    def watched(one: Callable[[], None]) -> None:
        try:
            one()
        except Exception as error:  # whatever it is, it is the verdict
            counted.problems.append(f"{type(error).__name__}: {error}")
            counted.say(counted.problems[-1])

    threads = [threading.Thread(target=watched, args=(item,)) for item in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def report(counted: Counted, campaigns: Sequence[Campaign], folder: Path, wanted: int) -> bool:
    """Print and write the table of points and kills."""
    kills = counted.kills()
    missed = sum((campaign.missed for campaign in campaigns), Counter())
    print(f"\n{'point':55} kills  not come by")
    for point in ALL:
        print(f"{point.name:55} {kills[point.name]:5}  {missed[point.name] or ''}")
    verdict = "right" if not counted.problems else "WRONG"
    result = {
        "verdict": verdict,
        "kills": kills.total(),
        "wanted": wanted,
        "seconds": round(counted.seconds, 1),
        "lives": {campaign.line.folder.name: campaign.lives for campaign in campaigns},
        "records": {line.folder.name: dict(line.numbers) for line in counted.lines},
        "points": {point.name: kills[point.name] for point in ALL},
        "not come by": dict(missed),
        "problems": counted.problems,
    }
    (folder / "result.json").write_text(json.dumps(result, indent=2) + "\n")
    print(json.dumps({name: result[name] for name in ("lives", "records", "problems")}))
    print(f"{verdict}: {kills.total()} kills in {counted.seconds:.0f} s; {folder}/result.json")
    return not counted.problems


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.scenarios.spark")
    parser.add_argument("--kills", type=int, default=300, help="how many there are in the end")
    parser.add_argument("--minutes", type=float, help="stop killing after so long")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--folder", type=Path, help="where everything is; goes on with what is there"
    )
    parser.add_argument("--executors", type=int, default=EXECUTOR_KILLS, help="0: no cluster")
    given = parser.parse_args()
    folder = (given.folder or Path(tempfile.mkdtemp(prefix="penstock-kills-"))).resolve()
    seed, executors = given.seed, given.executors
    with (
        Line(folder / "rejecting", holding=False, seed=seed) as rejecting,
        Line(folder / "holding", holding=True, seed=seed) as holding,
        Line(folder / "cluster", holding=False, seed=seed) as clustered,
        StandaloneCluster(folder / "spark", workers=2 if executors else 0) as cluster,
    ):
        lines = [rejecting, holding, clustered]
        counted = Counted(lines, given.kills, given.minutes)
        on = {"master": cluster.url, "settings": ON_CLUSTER}
        campaigns = [Campaign(line, seed=seed) for line in (rejecting, holding)]
        last = Campaign(clustered, seed=seed, **on)  # type: ignore[arg-type]
        work: list[Callable[[], None]] = [
            lambda campaign=campaign: kill_drivers(campaign, counted, seed)  # type: ignore[misc]
            for campaign in campaigns
        ]
        if executors:
            work.append(lambda: kill_executors(last, counted, executors))
        signal.signal(signal.SIGTERM, counted.stop)
        try:
            if not (folder / CLASSES).exists():
                campaigns[0].warm_up()
            counted.say("warm")
            run(counted, work)
        finally:
            for campaign in (*campaigns, last):
                campaign.close()
        right = report(counted, [*campaigns, last], folder, given.kills)
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
