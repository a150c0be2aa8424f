"""Command `penstock plan keys`: reads a topic by columns, and reports skew, hot keys and
salting.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import click

from penstock.apps.client.session import State
from penstock.apps.plan.output import plan_inputs
from penstock.base.extras import check_installed
from penstock.base.system import SystemClock
from penstock.planner.keys.inputs import KeysInputs, partition_counts
from penstock.planner.quantities import NoQuantity, format_quantity, parse_quantity
from penstock.planner.results import Plan

if TYPE_CHECKING:
    from penstock.client import Client
    from penstock.planner.keys.plan import Scope

RECORDS_DEFAULT: Final = 1_000_000
WHOLE: Final = "the whole topic"
_COMMITTED: Final = 1


@dataclass(frozen=True, slots=True)
class Range:
    """Offsets to read in each partition, the sizes of all partitions, and a description."""

    start: Mapping[int, int]
    end: Mapping[int, int]
    sizes: Mapping[int, int]
    text: str

    @property
    def complete(self) -> bool:
        return sum(self.sizes.values()) == sum(self.end.values()) - sum(self.start.values())


@click.command("keys")
@click.argument("topic")
@click.option(
    "--records", type=click.IntRange(min=1),
    help="Read about this number of the newest records, in proportion to the partitions' sizes."
    f" [default: {RECORDS_DEFAULT:,}]",
)  # fmt: skip
@click.option(
    "--since",
    metavar="DURATION",
    help="Read only records of this last period, such as 90s, 15min or 2h.",
)
@click.option("--all", "everything", is_flag=True, help="Read the whole topic.")
@plan_inputs(KeysInputs)
def keys(
    state: State,
    inputs: KeysInputs,
    topic: str,
    records: int | None,
    since: str | None,
    everything: bool,
) -> Plan:
    """Report the skew of a topic's keys, and the effect of salting and of more partitions.

    Only committed records are read, and nothing is changed. They are counted in bounded memory.
    Sizes are those of keys and values, uncompressed.
    """
    if sum([records is not None, since is not None, everything]) > 1:
        raise click.UsageError("give one of --records, --since and --all")
    check_installed("client")
    from penstock.planner.keys.census import COLUMNS, Census
    from penstock.planner.keys.plan import plan_keys

    with state.client() as client:
        partitions = len(client.describe_topic(topic).partitions)
        counts = partition_counts(inputs, partitions)
        if everything:
            chosen = _whole(client, topic, partitions)
        elif since is not None:
            chosen = _recent(client, topic, partitions, since)
        else:
            chosen = newest(_whole(client, topic, partitions), records or RECORDS_DEFAULT)
        census = Census(partitions, counts, inputs.tracked_keys)
        for batch in client.iter_arrow(
            topic, start=chosen.start, end=chosen.end, columns=COLUMNS, isolation="read_committed"
        ):
            census.add(batch)
    return plan_keys(scope_of(topic, chosen, partitions), census.result(), inputs)


def scope_of(topic: str, chosen: Range, partitions: int) -> Scope:
    """Return the part of a topic that a range covers, for its plan."""
    import numpy as np

    from penstock.planner.keys.plan import Scope

    sizes = np.array([chosen.sizes.get(index, 0) for index in range(partitions)], np.int64)
    return Scope(topic=topic, read=chosen.text, complete=chosen.complete, sizes=sizes)


def _whole(client: Client, topic: str, partitions: int) -> Range:
    """Return the range of all records that are committed now, in the first `partitions`
    partitions.
    """
    those = range(partitions)
    start = client.list_offsets(topic, "earliest", partitions=those)
    end = client.list_offsets(topic, "latest", partitions=those, isolation=_COMMITTED)
    end = {index: max(offset, start[index]) for index, offset in end.items()}
    sizes = {index: end[index] - start[index] for index in start}
    return Range(start, end, sizes, WHOLE)


def _recent(client: Client, topic: str, partitions: int, since: str) -> Range:
    try:
        seconds = parse_quantity(since, "s")
    except NoQuantity as flaw:
        raise click.UsageError(f"--since {since}: {flaw}") from None
    if not 0 < seconds < 1e10:
        raise click.UsageError(f"--since {since}: must be above 0")
    whole = _whole(client, topic, partitions)
    since_ms = max(0, SystemClock().now_ms() - int(1000 * seconds))
    found = client.list_offsets(topic, since_ms, partitions=range(partitions))
    start = {
        index: max(whole.start[index], min(offset, end) if offset >= 0 else end)
        for index, end in whole.end.items()
        for offset in (found[index],)
    }
    return Range(start, whole.end, whole.sizes, f"the last {format_quantity(seconds, 's')}")


def newest(whole: Range, records: int) -> Range:
    """Return a range of about `records` newest offsets, from each partition in proportion to its
    size.
    """
    total = sum(whole.sizes.values())
    if total <= records:
        return whole
    start = {
        index: whole.end[index] - min(size, -(-records * size // total))
        for index, size in whole.sizes.items()
    }
    return Range(start, whole.end, whole.sizes, f"about the newest {records:,} offsets")
