"""What a query reads of its records, and who opens their values.

The source opens them where it reads, in its Python worker, if all topics of the query have values
of one format that it can open; then the bytes of a value need not travel through Spark. Otherwise
Spark opens them, from those bytes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from penstock.formats import ValueFormat
from penstock.spark.formats.binary import BinaryDecoder
from penstock.spark.formats.decoders import Decoder
from penstock.spark.options import value_options
from penstock.spark.pipeline.graph import QueryPlan
from penstock.spark.pipeline.spec import PipelineSpec
from penstock.spark.schema import COLUMN_NAMES


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """What the source of a query gives: columns, and values of a format that it opens.

    Without a format Spark opens the values; `why` says why.
    """

    columns: tuple[str, ...] = COLUMN_NAMES
    value_format: ValueFormat | None = None
    why: str = ""

    def options(self) -> dict[str, str]:
        """The options of format `penstock` that ask for it."""
        found = {"columns": ",".join(self.columns)}
        return found if self.value_format is None else found | value_options(self.value_format)

    def __str__(self) -> str:
        return f"Spark: {self.why}" if self.why else "the source, where it reads them"


def read_of(spec: PipelineSpec, plan: QueryPlan, decoders: Mapping[str, Decoder]) -> Read:
    """What a query reads."""
    made = [decoders[name] for name in plan.sources]
    formats = [one.value_format for one in made if isinstance(one, BinaryDecoder)]
    sources = [spec.sources[name] for name in plan.sources]
    if any(source.outbox is not None for source in sources):
        return Read(why="an outbox has the values in other files")
    plain = [source for source in sources if source.value_format.kind in {"raw", "text"}]
    if len(plain) == len(sources):
        return Read(why="there is nothing to open")
    if len(formats) < len(made):
        return Read(why="the schema has parts that only Spark opens")
    if any(one != formats[0] for one in formats):
        return Read(why="the query's topics have values of several formats")
    return Read(value_format=formats[0])
