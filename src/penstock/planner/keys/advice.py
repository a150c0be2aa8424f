"""Advice on hot keys: salting, since more partitions do not help.

Source: the log and queue article, hot partition and scaling axes (the two kinds of growth).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from penstock.planner.keys.census import CensusResult
from penstock.planner.keys.inputs import OVER_PROVISION, KeysInputs, needed_partitions
from penstock.planner.keys.skew import SaltEffect
from penstock.planner.results import Finding, Snippet, note, ok, warn


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
