"""Transforms of a connector's file: `[transform.NAME]` tables and the predicates that select rows.

    [transform.masked]                 # in the order of the file
    type = "MaskField"                 # or Kafka Connect's class with $Key or $Value
    fields = ["after.card"]
    predicate = "orders"               # only rows that it selects
    negate = true                      # only rows that it does not select

    [predicate.orders]
    type = "TopicNameMatches"
    pattern = "shop\\\\..*orders"

Options may also have Kafka Connect's names: `"static.field"` for `static_field`.
"""

from __future__ import annotations

import difflib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, fields
from importlib import import_module
from typing import Any, Final, TypeVar

import numpy as np
import pyarrow as pa

from penstock.base.document import Key
from penstock.base.errors import InvalidSetting
from penstock.base.settings import by_name, parse, setting, unknown
from penstock.connect.errors import RowsRejected
from penstock.connect.merging import merged
from penstock.connect.plugins import KEY, VALUE, ConnectorSettings, Records

Refuse = Callable[[Key, str, str], None]
"""Reports a problem of a key in the file: the key, the message, the remedy."""

TRANSFORMS: Final[Mapping[str, str]] = {
    "Cast": "fields", "DropHeaders": "headers", "ExtractField": "fields", "Filter": "routing",
    "Flatten": "fields", "HeaderFrom": "headers", "HoistField": "fields", "InsertField": "fields",
    "InsertHeader": "headers", "MaskField": "fields", "RegexRouter": "routing",
    "ReplaceField": "fields", "SetSchemaMetadata": "fields", "TimestampConverter": "fields",
    "TimestampRouter": "routing", "ValueToKey": "fields",
}  # fmt: skip
PREDICATES: Final[Mapping[str, str]] = {
    "HasHeaderKey": "headers", "RecordIsTombstone": "routing", "TopicNameMatches": "routing",
}  # fmt: skip
"""Modules of `transforms` by the names of their classes, which are imported at first use."""
_PACKAGE: Final = "org.apache.kafka.connect.transforms."
_ROW: Final = "#row"
"""Column with the index of each row before the transforms."""


class Transform(ConnectorSettings, ABC):
    """Step between a source or sink and its topics. Its settings are the options of its table."""

    @abstractmethod
    def apply(self, records: Records) -> Iterable[Records]:
        """Return the transformed rows, in order; several entries if topics differ.

        Columns that the transform does not know are kept.

        Raises:
            RowsRejected: some rows cannot be transformed; the indexes are those of `records`.
        """


class Predicate(ConnectorSettings, ABC):
    """Condition that selects rows. Its settings are the options of its table."""

    @abstractmethod
    def matches(self, records: Records) -> Any:
        """Return flags of the rows (NumPy), or one flag for all rows."""


def step_class(name: str) -> type[Any]:
    """Return the class of a transform or predicate."""
    module = TRANSFORMS.get(name) or PREDICATES[name]
    found: type[Any] = getattr(import_module(f"penstock.connect.transforms.{module}"), name)
    return found


class StepOptions(ConnectorSettings):
    """Keys of `[transform.NAME]` that all transforms share."""

    predicate: str = setting(
        "", "Name of a `[predicate.NAME]` table: only rows that it selects.", shown="–"
    )
    negate: bool = setting(False, "Only rows that the predicate does not select.")


class Conditional(Transform):
    """Transform of the rows that a predicate selects."""

    transform: Transform
    predicate: Predicate
    negate: bool

    def apply(self, records: Records) -> list[Records]:
        flags = self.predicate.matches(records)
        if isinstance(flags, bool):
            return list(self.transform.apply(records)) if flags != self.negate else [records]
        flags = flags != self.negate
        rows = np.flatnonzero(flags)
        if len(rows) in (0, records.count):
            return list(self.transform.apply(records)) if len(rows) else [records]
        chosen = records.with_rows(records.rows.filter(pa.array(flags)))
        try:
            after = list(self.transform.apply(chosen))
        except RowsRejected as rejected:
            given = rows[list(rejected.rows)].tolist()
            raise RowsRejected(given, rejected.reasons) from rejected
        others = records.with_rows(records.rows.filter(pa.array(~flags)))
        return merged(others, after, _ROW)


def build_transforms(
    steps: Mapping[str, Any], predicates: Mapping[str, Any], refuse: Refuse
) -> tuple[Transform, ...]:
    """Return the transforms of a file in its order; problems are reported to `refuse`."""
    tables = _Tables(refuse)
    known = {
        name: tables.built(("predicate", name), table, PREDICATES, _PACKAGE + "predicates.")
        for name, table in predicates.items()
    }
    found = []
    for name, table in steps.items():
        step = tables.step(("transform", name), table, known)
        if step is not None:
            found.append(step)
    return tuple(found)


T = TypeVar("T", bound=ConnectorSettings)


class _Tables:
    """Reader of the tables of transforms and predicates, which reports their problems."""

    def __init__(self, refuse: Refuse) -> None:
        self._refuse = refuse

    def step(
        self, key: Key, table: Any, predicates: Mapping[str, Predicate | None]
    ) -> Transform | None:
        shared = (
            {name: table[name] for name in by_name(StepOptions) if name in table}
            if isinstance(table, Mapping)
            else {}
        )
        rest = {name: table[name] for name in table if name not in shared} if shared else table
        transform: Transform | None = self.built(key, rest, TRANSFORMS, _PACKAGE)
        options = self._settings(key, shared, StepOptions)
        if transform is None or options is None:
            return None
        if not options.predicate:
            if type(transform).__name__ == "Filter":
                self._refuse((*key, "predicate"), "is required for Filter", "name a predicate")
            if options.negate:
                self._refuse((*key, "negate"), "needs a predicate", "name a predicate")
            return transform
        if options.predicate not in predicates:
            there = ", ".join(predicates) or "none"
            self._refuse(
                (*key, "predicate"), f"there is no predicate {options.predicate!r}",
                f"known are {there}; write [predicate.{options.predicate}]",
            )  # fmt: skip
            return None
        predicate = predicates[options.predicate]
        return (
            None
            if predicate is None
            else Conditional(transform=transform, predicate=predicate, negate=options.negate)
        )

    def built(self, key: Key, table: Any, known: Mapping[str, str], package: str) -> Any:
        """Return the object of a table; None if the table has problems."""
        if not isinstance(table, Mapping):
            self._refuse(key, "must be a table", f"write [{'.'.join(map(str, key))}]")
            return None
        given = table.get("type")
        if not isinstance(given, str) or not given:
            self._refuse((*key, "type"), "is required", f"write one of {', '.join(known)}")
            return None
        name, _, part = given.removeprefix(package).partition("$")
        if name not in known or part.lower() not in ("", KEY, VALUE):
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {close[0]}?" if close else ""
            kind = "transform" if known is TRANSFORMS else "predicate"
            fix = "" if close else f"known are {', '.join(known)}"
            self._refuse((*key, "type"), f"there is no {kind} {given!r}{hint}", fix)
            return None
        options = {name: value for name, value in table.items() if name != "type"}
        if part and options.setdefault("of", part.lower()) != part.lower():
            self._refuse((*key, "of"), f"contradicts {given}", "remove it")
            return None
        return self._settings(key, options, step_class(name))

    def _settings(self, key: Key, table: Mapping[str, Any], cls: type[T]) -> T | None:
        """Return the settings of a table; None if an option is unknown, missing or invalid."""
        known, values, whole = by_name(cls), {}, True
        written: dict[str, Key] = {}
        for path, value in _flat(table):
            name = ".".join(path).replace(".", "_").replace("-", "_")
            written[name] = (*key, *path)
            try:
                if name not in known:
                    raise InvalidSetting(name, value, unknown(name, known))
                values[known[name].attribute] = parse(known[name], _text(value))
            except InvalidSetting as error:
                self._refuse(written[name], error.reason, "")
                whole = False
        for item in fields(cls):  # type: ignore[arg-type]
            if item.default is MISSING and item.name not in written:
                self._refuse((*key, item.name), "is required", f"write {item.name} = …")
                whole = False
        if not whole:
            return None
        try:
            return cls(**values)
        except InvalidSetting as error:
            self._refuse(written.get(error.name, key), f"{error.name}: {error.reason}", "")
            return None


def _flat(table: Mapping[str, Any]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield values with the keys to them, since a bare key `static.field` makes a table in TOML."""
    for name, value in table.items():
        if isinstance(value, Mapping):
            yield from (((name, *rest), inner) for rest, inner in _flat(value))
        else:
            yield (name,), value


def _text(value: Any) -> Any:
    """Return numbers as text, since options such as `replacement` are texts."""
    plain = isinstance(value, (int, float)) and not isinstance(value, bool)
    return str(value) if plain else value


def applied(transforms: Sequence[Transform], records: Records) -> list[Records]:
    """Return rows after all transforms.

    Raises:
        RowsRejected: some rows cannot be transformed; the error has all of them.
    """
    if not any(isinstance(transform, Conditional) for transform in transforms):
        found = [records]
        with suppress(RowsRejected):
            for transform in transforms:
                found = [after for rows in found if rows.count for after in transform.apply(rows)]
            return found
    # With the numbers of the rows, for `Conditional` and for an error with all rejected rows.
    index = pa.array(np.arange(records.count))
    found = [records.with_rows(records.rows.append_column(_ROW, index))]
    rejected: dict[int, str] = {}
    for transform in transforms:
        found = [after for before in found for after in _passed(transform, before, rejected)]
    if rejected:
        rows = sorted(rejected)
        raise RowsRejected(rows, [rejected[row] for row in rows])
    return [after.with_rows(after.rows.drop_columns([_ROW])) for after in found]


def _passed(transform: Transform, records: Records, rejected: dict[int, str]) -> list[Records]:
    """Return the rows that a transform accepts; the others are added to `rejected`."""
    while records.count:
        try:
            return list(transform.apply(records))
        except RowsRejected as error:
            bad = pa.array(error.rows, pa.int64())
            rows = records.rows.column(_ROW).take(bad).to_pylist()
            rejected.update(zip(rows, error.reasons, strict=True))
            records = records.without(error)
    return []
