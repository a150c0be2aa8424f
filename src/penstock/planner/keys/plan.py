"""Plan of a topic's keys: skew, hot keys, partitions, salting, recommendations, and charts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from penstock.planner.inputs import NothingToPlan
from penstock.planner.keys.census import (
    CensusResult,
    KeysInputs,
    needed_partitions,
    planned_partitions,
)
from penstock.planner.keys.skew import (
    Advice,
    SaltEffect,
    advise,
    findings,
    gini,
    hot_keys,
    keys_in,
    salt_effects,
    snippets,
    top_share,
    zipf_exponent,
)
from penstock.planner.results import Chart, Figure, Number, Plan, curves

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
