"""Paths of a pipeline's files below its state directory.

    <state>/lock                     lock file of the process that runs the pipeline
    <state>/run.json                 address of the running pipeline's status page
    <state>/checkpoints/<query>/     Spark's checkpoint
    <state>/journal/<query>/         journal: a file per batch
    <state>/definitions/             stored copies of the pipeline file
    <state>/schemas/<source>.ddl     inferred schemas
    <state>/held/<query>/            retry store: a Delta table
    <state>/releases/<query>/        requests to release parked records; completed ones in done/
    <state>/wake-<query>             time of the next batch of a query with held records
    <state>/joined/<query>/          start positions of added sinks
    <state>/backfills/<query>/       progress of backfills of added sinks
    <state>/replaying/               the open replay of dead letters, and completed ones
    <state>/replays                  replayed dead letters: a Delta table

The settings `run.state` and `--state` name the state directory.
"""

from __future__ import annotations

from pathlib import Path

from penstock.spark.pipeline.spec import PipelineSpec


class PipelinePaths:
    """Paths of one pipeline."""

    def __init__(self, spec: PipelineSpec) -> None:
        self.state = spec.run.state

    def checkpoint(self, query: str) -> Path:
        return self.state / "checkpoints" / query

    def committed(self, query: str, batch_id: int) -> Path:
        """Return the path of the file that Spark writes when it has completed a batch."""
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
