"""Skew of keys, and the effect of salting: Gini, Zipf, key ‖ ":" ‖ (sequence mod n).

A salted key has n names, each with an n-th of its records, and each name is hashed. So its load
spreads over at most n partitions, and the hottest partition keeps at least `share / n`. Several
names may fall on one partition. The advice on hot keys is salting, since more partitions do not
help.

Source: the log and queue article, hot partition and scaling axes (the two kinds of growth).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.client.partitioning import murmur2
from penstock.planner.keys.census import (
    OVER_PROVISION,
    CensusResult,
    Counts,
    KeysInputs,
    Loads,
    needed_partitions,
)
from penstock.planner.results import Finding, Snippet, note, ok, warn

ZIPF_RANKS_MAX: Final = 1000
ZIPF_RANKS_MIN: Final = 3


def top_share(counts: Counts, total: int, distinct: float, part: float) -> float:
    """Return the share of the first `part` of all keys, at least one; `counts` are ranked.

    Keys outside `counts` are unknown, so it is a lower bound.
    """
    if not total:
        return 0.0
    return float(counts[: keys_in(distinct, part)].sum()) / total


def keys_in(distinct: float, part: float) -> int:
    return max(1, ceil(round(distinct * part, 6)))


def gini(counts: Counts, total: int, distinct: float) -> float:
    """Return 0 when all keys have as many records, towards 1 when one has all.

    Records outside `counts` count as spread evenly over the other keys. With true counts that makes
    it a lower bound.
    """
    rest_keys = max(0.0, distinct - len(counts))
    rest = max(0.0, float(total - counts.sum()))
    keys = len(counts) + rest_keys
    if not total or not keys:
        return 0.0
    rising = counts[::-1].astype(np.float64)
    # The sum over ranks (from 1, rising) of rank × count; the even rest comes first.
    ranks = rest_keys + np.arange(1, len(rising) + 1)
    weighted = float((ranks * rising).sum()) + (rest * (rest_keys + 1) / 2 if rest_keys else 0.0)
    known = float(rising.sum()) + (rest if rest_keys else 0.0)
    if not known:
        return 0.0
    return max(0.0, 2 * weighted / (keys * known) - (keys + 1) / keys)


def zipf_exponent(counts: Counts, error: int = 0) -> float | None:
    """Return `s` of count ~ rank^-s over the first ranks, by least squares of logarithms.

    Counts below ten times their error are ignored. None below three keys.
    """
    head = counts[:ZIPF_RANKS_MAX]
    head = head[head > 10 * error]
    if len(head) < ZIPF_RANKS_MIN:
        return None
    ranks: npt.NDArray[np.float64] = np.log(np.arange(1, len(head) + 1, dtype=np.float64))
    slope = np.polyfit(ranks, np.log(head.astype(np.float64)), 1)[0]
    return float(max(0.0, -slope))


def hot_keys(counts: Counts, total: int, partitions: int) -> int:
    """Return how many of the ranked keys each exceed a partition's even share."""
    return int(np.count_nonzero(counts * partitions > total))


_POSITIVE: Final = np.uint32(0x7FFFFFFF)


@dataclass(frozen=True, slots=True, kw_only=True)
class SaltEffect:
    """Loads of all partitions, in keyed records, with `salts` names for each salted key."""

    salts: int
    loads: Loads

    @property
    def hottest_share(self) -> float:
        total = float(self.loads.sum())
        return float(self.loads.max()) / total if total else 0.0

    @property
    def skew(self) -> float:
        return self.hottest_share * len(self.loads)


def salted_keys(keys: Any, salt: int) -> Any:
    suffix = pa.scalar(b":" + str(salt).encode(), keys.type)
    empty = pa.scalar(b"", keys.type)
    return pc.binary_join_element_wise(keys, suffix, empty)


def salt_effects(
    census: CensusResult, partitions: int, salts: Sequence[int], salted: int | None
) -> tuple[SaltEffect, ...]:
    """Return loads when the first `salted` of the ranked keys get 1, 2, … names; 1 is unsalted.

    None salts all keys. Keys outside the summary then count as spread evenly.
    """
    keys = census.keys if salted is None else census.keys.slice(0, salted)
    records = census.key_records[:salted].astype(np.float64)
    before = census.loads[partitions]
    rest = np.maximum(before - _placed(keys, records, partitions), 0.0)
    if salted is None:
        rest = np.full(partitions, rest.sum() / partitions)
    effects = [SaltEffect(salts=1, loads=before)]
    spread = np.zeros(partitions)
    names = 0
    for count in sorted({salt_count for salt_count in salts if salt_count > 1}):
        for salt in range(names, count):
            spread += _placed(salted_keys(keys, salt), records, partitions)
        names = count
        effects.append(SaltEffect(salts=count, loads=rest + spread / count))
    return tuple(effects)


def _placed(keys: Any, records: Loads, partitions: int) -> Loads:
    assigned = (murmur2(keys) & _POSITIVE) % np.uint32(partitions)
    return np.bincount(assigned, weights=records, minlength=partitions).astype(np.float64)


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """Salts for the `hot` first keys (1 is none), and the resulting share of the hottest partition.

    `enough` is whether that suffices; `floor` is the share that no number of partitions reduces.
    """

    hot: int
    partitions: int
    salts: int
    before: float
    after: float
    enough: bool
    floor: float
    floor_rate: float
    provision: tuple[int | None, int | None]


def advise(
    census: CensusResult,
    inputs: KeysInputs,
    partitions: int,
    hot: int,
    effects: Sequence[SaltEffect],
    rate: float,
) -> Advice:
    """Choose the fewest salts that suffice, or else those with the coolest hottest partition."""

    def serves(effect: SaltEffect) -> bool:
        within = not rate or effect.hottest_share * rate <= inputs.partition_rate
        return within and effect.skew <= inputs.skew_max

    coolest = min(effects, key=lambda one: one.hottest_share)
    chosen = next((effect for effect in effects if serves(effect)), coolest)
    least, most = OVER_PROVISION
    needed = needed_partitions(inputs, rate) if rate else None
    floor = int(census.key_records[:1].sum()) / census.keyed_records
    return Advice(
        hot=hot,
        partitions=partitions,
        salts=chosen.salts if hot else 1,
        before=effects[0].hottest_share,
        after=chosen.hottest_share,
        enough=serves(chosen),
        floor=floor,
        floor_rate=floor * rate,
        provision=(needed * least, needed * most) if needed else (None, None),
    )


def findings(complete: bool, census: CensusResult, advice: Advice) -> Iterator[Finding]:
    yield _hotness(advice)
    if advice.hot and not advice.enough:
        yield warn(
            "salting",
            f"{advice.salts} salts leave {_percent(advice.after)} to the hottest of"
            f" {advice.partitions} partitions",
            "give hot keys a topic of their own, or raise --salts-max or --partitions",
        )
    if advice.salts > 1:
        yield note(
            "salted keys",
            f"a key's records are in up to {advice.salts} partitions: its order is lost, and"
            f" consumers get {advice.salts} partial results",
            f"aggregate {advice.salts} partials by the unsalted key; order by timestamps",
        )
    if census.default_placed < census.keyed_records:
        part = 1 - census.default_placed / census.keyed_records
        yield note(
            "partitioner",
            f"{_percent(part)} of keyed records are in other partitions than Kafka's partitioner"
            " chooses: another partitioner, salts, or partitions that were added",
        )
    if census.null_records:
        yield note(
            "records without a key",
            f"{census.null_records:,} take partitions in turns, have no order, and are left"
            " out of loads",
        )
    if not census.exact:
        yield note(
            "estimates",
            f"more distinct keys than are tracked: counts of a key are up to"
            f" {census.count_error:,} records too low; loads of partitions are exact",
            "raise --tracked-keys",
        )
    if not complete:
        yield note("sample", "not the whole topic was read")
    yield note(
        "number of partitions",
        "with another number keys move to other partitions, and their order breaks there",
        "create topics with 4 to 10 times what is needed, and decide once",
    )


def _hotness(advice: Advice) -> Finding:
    if not advice.hot and not advice.enough:
        return warn(
            "skew",
            f"no single key is hot, but the hottest of {advice.partitions} partitions has"
            f" {_percent(advice.before)}",
            "take a key with more values, salt all keys, or see other numbers of partitions",
        )
    if not advice.hot:
        cause = f"no key has more than an even share of {advice.partitions} partitions"
        return ok("hot keys", cause)
    rate = f" ({advice.floor_rate:,.0f} messages/s)" if advice.floor_rate else ""
    return warn(
        "hot keys",
        f"{advice.hot} with more than an even share of {advice.partitions} partitions"
        f" each; the hottest leaves {_percent(advice.floor)}{rate} to one partition, however"
        " many there are",
        f"salt hot keys by {advice.salts}"
        if advice.salts > 1
        else "give hot keys a topic of their own",
    )


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"


def snippets(advice: Advice) -> Iterator[Snippet]:
    if advice.salts == 1:
        return
    yield Snippet(
        title=f"producers: spread hot keys over {advice.salts} names",
        language="python",
        text=f'key = key + b":%d" % (sequence % {advice.salts}) if key in HOT_KEYS else key',
    )
    yield Snippet(
        title="consumers: put partial results together by the unsalted key",
        language="sql",
        text="select regexp_replace(cast(key as string), ':[0-9]+$', '') as key,"
        " sum(partial) as total\nfrom partials group by 1",
    )
