"""Where a pipeline keeps what it knows: names below its state directory.

<state>/checkpoints/<query>/     Spark's own
<state>/journal/<query>/         a file per batch
<state>/held/<query>/            the retry store, a Delta table
<state>/releases/<query>/        requests to release parked records; done/ has the old ones
<state>/schemas/<source>.ddl     schemas that were inferred
<state>/joined/<query>/          where each sink joined the query
<state>/replays                  which dead letters were put back: a Delta table
<state>/replaying/               the replay of dead letters that is under way, and the old ones
<state>/backfills/<query>/       how far sinks that joined later were given what came before
<state>/wake-<query>             when a query with held records has something to do
<state>/lock                     held by the process that runs the pipeline
"""

from __future__ import annotations

from pathlib import Path

from penstock.spark.pipeline.spec import PipelineSpec


class PipelinePaths:
    """The paths of one pipeline."""

    def __init__(self, spec: PipelineSpec) -> None:
        self.state = spec.run.state

    def checkpoint(self, query: str) -> Path:
        return self.state / "checkpoints" / query

    def committed(self, query: str, batch_id: int) -> Path:
        """The file that is there when Spark has done with a batch."""
        return self.checkpoint(query) / "commits" / str(batch_id)

    def journal(self, query: str) -> Path:
        return self.state / "journal" / query

    def held(self, query: str) -> Path:
        return self.state / "held" / query

    def releases(self, query: str) -> Path:
        return self.state / "releases" / query

    @property
    def definitions(self) -> Path:
        return self.state / "definitions"

    def schema(self, source: str) -> Path:
        return self.state / "schemas" / f"{source}.ddl"

    def joined(self, query: str) -> Path:
        return self.state / "joined" / query

    @property
    def replays(self) -> Path:
        return self.state / "replays"

    @property
    def replaying(self) -> Path:
        return self.state / "replaying"

    def backfill(self, query: str, sink: str) -> Path:
        return self.state / "backfills" / query / f"{sink}.json"

    def wake_file(self, query: str) -> Path:
        return self.state / f"wake-{query}"

    @property
    def lock(self) -> Path:
        return self.state / "lock"
