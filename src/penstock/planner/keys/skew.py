"""Skew of keys (Gini, Zipf), and the effect of salting on the load of partitions.

A salted key is replaced by n keys: key ‖ ":" ‖ (sequence mod n). Each has 1/n of the records, and
each is hashed. So the load of the key spreads over at most n partitions, and the hottest partition
keeps at least `share / n`. Several salted keys may hash to the same partition. The advice for hot
keys is salting, because more partitions do not help.

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
    """Return the share of records that the busiest `part` of all keys has, at least one key.

    `counts` is sorted by descending count. Keys outside `counts` are unknown, so the result is a
    lower bound.
    """
    if not total:
        return 0.0
    return float(counts[: keys_in(distinct, part)].sum()) / total


def keys_in(distinct: float, part: float) -> int:
    return max(1, ceil(round(distinct * part, 6)))


def gini(counts: Counts, total: int, distinct: float) -> float:
    """Return the Gini coefficient: 0 if all keys have equally many records, near 1 if one has all.

    Records outside `counts` are assumed to spread evenly over the other keys. Therefore the result
    is a lower bound if the counts are exact.
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
    """Return the exponent s of count ~ rank^-s, by least squares of logarithms over the first
    ranks.

    Counts below ten times their error are ignored. Returns None if fewer than three keys are left.
    """
    head = counts[:ZIPF_RANKS_MAX]
    head = head[head > 10 * error]
    if len(head) < ZIPF_RANKS_MIN:
        return None
    ranks: npt.NDArray[np.float64] = np.log(np.arange(1, len(head) + 1, dtype=np.float64))
    slope = np.polyfit(ranks, np.log(head.astype(np.float64)), 1)[0]
    return float(max(0.0, -slope))


def hot_keys(counts: Counts, total: int, partitions: int) -> int:
    """Return how many keys exceed the share of records that an even partition has."""
    return int(np.count_nonzero(counts * partitions > total))


_POSITIVE: Final = np.uint32(0x7FFFFFFF)


@dataclass(frozen=True, slots=True, kw_only=True)
class SaltEffect:
    """Loads of all partitions in keyed records, if each salted key is replaced by `salts` keys."""

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
    """Return the loads of partitions for each number of salts, beginning with 1, which is unsalted.

    The first `salted` of the ranked keys are salted; None salts all keys. In that case keys outside
    the summary count as spread evenly.
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
    """Recommended number of salts for the `hot` busiest keys; 1 means no salting.

    `before` and `after` are the shares of the hottest partition without and with salting. `enough`
    is whether the salts suffice. `floor` is the share of the hottest key, which no number of
    partitions reduces.
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
    """Choose the fewest sufficient salts, or else those that load the hottest partition least."""

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
            f"with {advice.salts} salts, the hottest of {advice.partitions} partitions"
            f" still has {_percent(advice.after)} of the records",
            "write hot keys to a topic of their own, or raise --salts-max or --partitions",
        )
    if advice.salts > 1:
        yield note(
            "salted keys",
            f"the records of a salted key are in up to {advice.salts} partitions, so their"
            f" order is lost and consumers get {advice.salts} partial results",
            f"combine the {advice.salts} partial results by the unsalted key; order records"
            " by timestamp",
        )
    if census.default_placed < census.keyed_records:
        part = 1 - census.default_placed / census.keyed_records
        yield note(
            "partitioner",
            f"{_percent(part)} of the keyed records are not in the partition that Kafka's"
            " partitioner chooses. The producers use another partitioner or salts, or"
            " partitions were added later",
        )
    if census.null_records:
        yield note(
            "records without a key",
            f"{census.null_records:,} records have no key. They are spread over partitions,"
            " have no order, and are not part of the loads",
        )
    if not census.exact:
        yield note(
            "estimates",
            "there are more distinct keys than can be counted exactly. Counts of a key are"
            f" up to {census.count_error:,} records too low; loads of partitions are exact",
            "raise --tracked-keys",
        )
    if not complete:
        yield note("sample", "only a part of the topic was read")
    yield note(
        "number of partitions",
        "a change of this number moves keys to other partitions, and breaks their order",
        "create topics with 4 to 10 times the needed number, and keep it",
    )


def _hotness(advice: Advice) -> Finding:
    if not advice.hot and not advice.enough:
        return warn(
            "skew",
            f"no single key is hot, but the hottest of {advice.partitions} partitions has"
            f" {_percent(advice.before)} of the records",
            "use a key with more values, salt all keys, or try another number of partitions",
        )
    if not advice.hot:
        cause = f"no key has more records than an even partition of {advice.partitions}"
        return ok("hot keys", cause)
    rate = f" ({advice.floor_rate:,.0f} messages/s)" if advice.floor_rate else ""
    return warn(
        "hot keys",
        f"{advice.hot} keys each have more records than an even partition of"
        f" {advice.partitions}. The hottest key gives one partition"
        f" {_percent(advice.floor)}{rate}, with any number of partitions",
        f"salt hot keys with {advice.salts} salts"
        if advice.salts > 1
        else "write hot keys to a topic of their own",
    )


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"


def snippets(advice: Advice) -> Iterator[Snippet]:
    if advice.salts == 1:
        return
    yield Snippet(
        title=f"producers: spread each hot key over {advice.salts} salted keys",
        language="python",
        text=f'key = key + b":%d" % (sequence % {advice.salts}) if key in HOT_KEYS else key',
    )
    yield Snippet(
        title="consumers: combine partial results by the unsalted key",
        language="sql",
        text="select regexp_replace(cast(key as string), ':[0-9]+$', '') as key,"
        " sum(partial) as total\nfrom partials group by 1",
    )
