"""Plan of a topic's keys: skew, hot keys, partitions, salting, recommendations, and charts."""

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
from penstock.planner.keys.census import CensusResult, Counts, Loads
from penstock.planner.keys.inputs import (
    OVER_PROVISION,
    KeysInputs,
    needed_partitions,
    planned_partitions,
)
from penstock.planner.quantities import NothingToPlan
from penstock.planner.results import (
    Chart,
    Figure,
    Finding,
    Number,
    Plan,
    Snippet,
    curves,
    note,
    ok,
    warn,
)

# Skew of keys (Gini, Zipf), and the effect of salting on the load of partitions.
#
# A salted key is replaced by n keys: key ‖ ":" ‖ (sequence mod n). Each has 1/n of the records, and
# each is hashed. So the load of the key spreads over at most n partitions, and the hottest
# partition keeps at least `share / n`. Several salted keys may hash to the same partition. The
# advice for hot keys is salting, because more partitions do not help.
#
# Source: the log and queue article, hot partition and scaling axes (the two kinds of growth).


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
    """Return the number of keys that each have more records than an average partition."""
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


POINTS_MAX: Final = 200
"""Maximum number of points of a curve."""


def charts(
    census: CensusResult, hot: Sequence[SaltEffect], everything: Sequence[SaltEffect], salts: int
) -> tuple[Chart, ...]:
    """Return all charts; `salts` is the number of salts in the chart of partitions."""
    loads = (_partitions(hot, everything, salts), _salts(hot, everything))
    return (_ranks(census), *loads) if len(census.keys) else loads


def _ranks(census: CensusResult) -> Chart:
    ranks = _ranks_shown(len(census.key_records))
    shares = 100 * census.key_records[ranks - 1] / census.keyed_records
    even = [100 / census.distinct] * len(ranks)
    return Chart(
        title="share of records by rank of key", x_label="rank", y_label="% of keyed records",
        x_log=True, y_log=True,
        curves=curves(ranks.tolist(), {"measured": shares.tolist(), "if keys were equal": even}),
    )  # fmt: skip


def _partitions(
    hot: Sequence[SaltEffect], everything: Sequence[SaltEffect], salts: int
) -> Chart:  # fmt: skip
    salted = (("hot", hot), ("all", everything))
    shown = {"as it is": hot[0]} | {
        f"{which} keys × {salts} salts": effect
        for which, effects in salted
        for effect in effects
        if effect.salts == salts
    }
    ranks = _ranks_shown(len(hot[0].loads))
    falling = {label: np.sort(effect.loads)[::-1] for label, effect in shown.items()}
    return Chart(
        title=f"load of {len(hot[0].loads)} partitions, hottest first",
        x_label="rank of partition", y_label="% of keyed records",
        curves=curves(ranks.tolist(), {
            label: (100 * loads[ranks - 1] / loads.sum()).tolist()
            for label, loads in falling.items()
        }),
    )  # fmt: skip


def _ranks_shown(last: int) -> npt.NDArray[np.int64]:
    """Return at most `POINTS_MAX` ranks from 1 to `last`, denser at the beginning."""
    if last <= POINTS_MAX:
        return np.arange(1, last + 1)
    return np.unique(np.geomspace(1, last, POINTS_MAX).round().astype(np.int64))


def _salts(hot: Sequence[SaltEffect], everything: Sequence[SaltEffect]) -> Chart:
    return Chart(
        title="hottest partition by number of salts",
        x_label="salts", y_label="% of keyed records", x_log=True,
        curves=curves([effect.salts for effect in hot], {
            "hot keys salted": [100 * effect.hottest_share for effect in hot],
            "all keys salted": [100 * effect.hottest_share for effect in everything],
        }),
    )  # fmt: skip


_COUNTED: Final = "counted"
_READ: Final = "the records that were read"
_ARTICLE: Final = "log and queue article: hot partition; scaling axes"
_PARTITIONER: Final = "Kafka: Utils.murmur2, BuiltInPartitioner.partitionForKey"
_SUMMARY: Final = "Misra, Gries (1982); Agarwal et al.: Mergeable summaries (2012)"
_KEY_CHARS_MAX: Final = 40
_ANSWERS: Final = ("records", "hot_keys", "hottest_key_percent", "records_hottest_percent")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """Part of a topic that was read; `sizes` is the length of each partition's log in offsets."""

    topic: str
    read: str
    complete: bool
    sizes: npt.NDArray[np.int64]


def plan_keys(scope: Scope, census: CensusResult, inputs: KeysInputs) -> Plan:
    """Return the plan of how a topic's keys load its partitions.

    Raises:
        NothingToPlan: no record with a key was read.
    """
    if not census.keyed_records:
        raise NothingToPlan(
            f"no record with a key was read: {scope.topic} gave {census.records} records"
            f" without a key ({scope.read}). Skew is computed from keyed records only,"
            " because others are spread over partitions. Read another topic, or more of"
            " this one"
        )
    partitions = planned_partitions(inputs, census.partitions)
    hot = hot_keys(census.key_records, census.keyed_records, partitions)
    of_hot = salt_effects(census, partitions, inputs.salts(), hot)
    of_all = salt_effects(census, partitions, inputs.salts(), None)
    rate = inputs.rate or census.records_per_second or 0.0
    advice = advise(census, inputs, partitions, hot, of_hot, rate)
    shown_salts = advice.salts if advice.salts > 1 else inputs.salts()[-1]
    recommended = _advice(advice, inputs, partitions, rate, _counts_that_do(census, inputs, rate))
    return Plan(
        title=f"keys of {scope.topic}",
        inputs=inputs,
        figures=(
            *_read(scope, census),
            *_spread(census, hot, partitions),
            *_hottest(census, inputs.shown_keys),
            *_now(scope, census),
            *_counts(census, inputs, rate),
            *(_salting(of_hot, "hot", "salting the hot keys", partitions) if hot else ()),
            *_salting(of_all, "all", "salting all keys", partitions),
            *recommended,
        ),
        findings=tuple(findings(scope.complete, census, advice)),
        snippets=tuple(snippets(advice)),
        charts=charts(census, of_hot, of_all, shown_salts),
        answers=(*_ANSWERS, *[figure.name for figure in recommended]),
    )


def _read(scope: Scope, census: CensusResult) -> list[Figure]:
    group = f"read: {scope.read}"
    seconds = None
    if census.first_ms is not None and census.last_ms is not None:
        seconds = (census.last_ms - census.first_ms) / 1000
    placed = 100 * census.default_placed / census.keyed_records
    rows: list[tuple[str, str, Number | None, str, str, str]] = [
        ("records", "records", census.records, "", _COUNTED, scope.topic),
        ("size_bytes", "keys and values", census.size_bytes, "bytes", _COUNTED, scope.topic),
        ("null_keys_percent", "records without a key", 100 * census.null_records / census.records,
         "%", f"{census.null_records:,} / {census.records:,} records", scope.topic),
        ("span_s", "time span", seconds, "s", "last timestamp - first", scope.topic),
        ("observed_rate", "rate by timestamps", census.records_per_second, "messages/s",
         "records / time span, if that is at least a minute", scope.topic),
        ("default_placed_percent", "placed by Kafka's partitioner", placed, "%",
         "keyed records in partition murmur2(key) mod partitions", _PARTITIONER),
    ]  # fmt: skip
    return [Figure(*row, group=group) for row in rows]


def _spread(census: CensusResult, hot: int, partitions: int) -> list[Figure]:
    keyed, counts = census.keyed_records, census.key_records
    least = "" if census.exact else "(an estimate, probably too low)"
    distinct_from = "Flajolet et al.: HyperLogLog (2007)" if not census.exact else _READ
    zipf = zipf_exponent(counts, census.count_error)
    rows: list[tuple[str, str, Number | None, str, str, str]] = [
        ("distinct_keys", "distinct keys", round(census.distinct), "",
         _COUNTED if census.exact else "HyperLogLog of 16,384 registers", distinct_from),
        ("distinct_error_percent", "standard error of the distinct keys",
                100 * census.distinct_error, "%",
         "0 if all keys are counted exactly, else 1.04 / √16384", distinct_from),
        ("count_error_records", "maximum undercount of a key", census.count_error, "",
         f"sum of the summary's subtractions; at most keyed records / (keys kept + 1) ="
         f" {census.count_error_max:,}", _SUMMARY),
        ("hottest_key_percent", "share of the hottest key", 100 * top_share(counts, keyed, 1, 0),
         "%", f"{int(counts[:1].sum()):,} / {keyed:,} keyed records{least}", _READ),
        ("top_1_percent_share_percent", "share of the top 1 % of keys",
         100 * top_share(counts, keyed, census.distinct, 0.01), "%",
         f"records of the first {keys_in(census.distinct, 0.01):,} keys / keyed records{least}",
         _READ),
        ("gini", "Gini coefficient", gini(counts, keyed, census.distinct), "",
         f"2 Σ rank × count / (keys × Σ count) - (keys + 1) / keys{least}", "Gini (1912)"),
        ("zipf_exponent", "Zipf exponent", zipf, "",
         "least squares of log count by log rank, first 1,000 keys", "Zipf (1949)"),
        ("hot_keys", "hot keys", hot, "",
         f"keys with more than 1/{partitions} of the keyed records, the share of an even partition",
         _ARTICLE),
    ]  # fmt: skip
    return [Figure(*row, group="skew of keys") for row in rows]


def _hottest(census: CensusResult, shown: int) -> list[Figure]:
    least, source = ("", _READ) if census.exact else (", at least", _SUMMARY)
    ranked = zip(
        census.keys.slice(0, shown).to_pylist(),
        census.key_records[:shown].tolist(),
        census.key_bytes[:shown].tolist(),
        strict=False,
    )
    return [
        Figure(f"key_{place}_{what}_percent", f"{place}. {shown_key(key)}: share of {what}{least}",
               100 * part / whole if whole else 0.0, "%", f"{part:,} / {whole:,}", source,
               group="hottest keys")
        for place, (key, records, size) in enumerate(ranked, 1)
        for what, part, whole in (
            ("records", records, census.keyed_records),
            ("bytes", size, census.keyed_bytes),
        )
    ]  # fmt: skip


def shown_key(key: bytes) -> str:
    text = key.decode("utf-8", "replace")
    if not text.isprintable() or "\ufffd" in text:
        text = f"0x{key[:_KEY_CHARS_MAX].hex()}"
    return text if len(text) <= _KEY_CHARS_MAX else f"{text[: _KEY_CHARS_MAX - 1]}…"


def _now(scope: Scope, census: CensusResult) -> list[Figure]:
    group = "partitions of the topic"
    rows: list[tuple[str, str, Number | None, str, str, str]] = [
        ("partitions", "partitions", census.partitions, "", "the topic's number", scope.topic),
    ]  # fmt: skip
    for name, label, loads in (
        ("records", "records", census.partition_records),
        ("bytes", "bytes", census.partition_bytes),
        ("log", "offsets in the whole log", scope.sizes),
    ):
        total, largest = int(loads.sum()), int(loads.max())
        rows += [
            (f"{name}_hottest_percent", f"hottest partition: share of {label}",
             100 * largest / total if total else 0.0, "%", f"{largest:,} / {total:,}", _READ),
            (f"{name}_skew", f"hottest partition / mean, by {label}",
             largest * len(loads) / total if total else 0.0, "×", "largest / mean", _READ),
        ]  # fmt: skip
    idle = int(np.count_nonzero(census.partition_records == 0))
    rows.append(("idle_partitions", "partitions without a record", idle, "", _COUNTED, scope.topic))
    return [Figure(*row, group=group) for row in rows]


def _counts(census: CensusResult, inputs: KeysInputs, rate: float) -> list[Figure]:
    shares = {
        count: float(loads.max()) / census.keyed_records for count, loads in census.loads.items()
    }
    return [
        Figure(f"partitions_{count}_hottest_percent",
               f"{count:,} partitions: hottest ({_does(share, count, inputs, rate)})", 100 * share,
               "%", f"largest load by murmur2(key) mod {count}: {share * count:.3g} × mean,"
               f" allowed {inputs.skew_max:g}; {share * rate:,.0f} messages/s, allowed"
               f" {inputs.partition_rate:,.0f}", _PARTITIONER,
               group="with other numbers of partitions")
        for count, share in shares.items()
    ]  # fmt: skip


_DOES: Final = "suffices"


def _does(share: float, count: int, inputs: KeysInputs, rate: float) -> str:
    if rate and share * rate > inputs.partition_rate:
        return "too much for one consumer"
    return _DOES if share * count <= inputs.skew_max else "too skewed"


def _counts_that_do(census: CensusResult, inputs: KeysInputs, rate: float) -> str:
    serving = [
        f"{count:,}"
        for count, loads in census.loads.items()
        if _does(float(loads.max()) / census.keyed_records, count, inputs, rate) == _DOES
    ]
    return "; ".join(serving) or "none; more partitions do not divide the load of a key"


def _salting(
    effects: Sequence[SaltEffect], which: str, group: str, partitions: int
) -> list[Figure]:
    return [
        Figure(f"salts_{effect.salts}_{which}_hottest_percent",
               f"{effect.salts} salt{'s' if effect.salts > 1 else ''}: hottest of {partitions}"
               " partitions", 100 * effect.hottest_share, "%",
               f"salted keys key:0 … key:{effect.salts - 1}, each with 1/{effect.salts} of the"
               f" key's records; {effect.skew:.3g} × mean", _ARTICLE, group=group)
        for effect in effects
    ]  # fmt: skip


def _advice(
    advice: Advice, inputs: KeysInputs, partitions: int, rate: float, counts: str
) -> list[Figure]:
    group = "recommendation"
    least, most = advice.provision
    rows: list[tuple[str, str, Number | str | None, str, str, str]] = [
        ("salts", "salts for hot keys", advice.salts, "",
         f"smallest number with which the hottest of {partitions} partitions has at most"
         f" {inputs.skew_max:g} × the mean and {inputs.partition_rate:,.0f} messages/s; 1"
         " means no salting",
         _ARTICLE),
        ("hottest_now_rate", "load of the hottest partition now", advice.before * rate or None,
         "messages/s",
         f"{100 * advice.before:.3g} % of {rate:,.0f} messages/s", _ARTICLE),
        ("hottest_salted_rate", "load of the hottest partition with these salts",
                advice.after * rate or None,
         "messages/s",
         f"{100 * advice.after:.3g} % of {rate:,.0f} messages/s", _ARTICLE),
        ("counts_that_do", "numbers of partitions that suffice without salts", counts, "",
         f"of the numbers above, those whose hottest partition has at most {inputs.skew_max:g} ×"
         f" the mean and {inputs.partition_rate:,.0f} messages/s", _ARTICLE),
        ("needed_partitions", "needed partitions, if keys spread evenly",
         needed_partitions(inputs, rate) if rate else None, "",
         f"rate / partition-rate = {rate:,.0f} / {inputs.partition_rate:,.0f}", _ARTICLE),
        ("provision_min_partitions", "recommended minimum of partitions", least, "",
         "4 × needed, because the number is hard to change for a keyed topic in use", _ARTICLE),
        ("provision_max_partitions", "recommended maximum of partitions", most, "", "10 × needed",
         _ARTICLE),
    ]  # fmt: skip
    return [Figure(*row, group=group) for row in rows]
