"""Draft: the tables of a pipeline's file with converted values, as input of the checks.

Values are converted as `spec.py` declares their keys. If a value does not fit its key, the draft
reports a problem and stores no value. The key still counts as given, so that no check reports it as
missing too.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from penstock.base.document import (
    Document,
    DocumentInvalid,
    Key,
    Problem,
    dotted,
    read,
    read_text,
)
from penstock.base.errors import InvalidError
from penstock.base.ids import validate_topic_name
from penstock.base.settings import Kind, SettingInfo, by_name, describe
from penstock.formats.value_format import is_schema_file
from penstock.security.data.file_ring import KeyPlace, ring_at
from penstock.security.data.key_ring import KeyRingUnusable
from penstock.spark.pipeline.kinds import SETTINGS, TEXT, Located, Unfit, nearest, type_name
from penstock.spark.pipeline.spec import (
    ENTRIES,
    NAMED,
    RULE,
    SINGLE,
    TOP,
    ErrorPolicy,
    PipelineSpec,
    Source,
    Step,
    Table,
)

NAME_CHARS_MAX: Final = 100
"""Longest name of a pipeline, a view or a sink, in characters."""


@dataclass(frozen=True, slots=True)
class Section:
    """Table of the file, such as `[source.orders]`, or one rule or protection of a view.

    `raw` has the values as TOML gives them, `values` the converted ones.
    """

    key: Key
    raw: Mapping[str, Any]
    values: Mapping[str, Any]

    @property
    def name(self) -> str:
        return str(self.key[-1])

    def given(self, name: str) -> bool:
        return name in self.raw

    def get(self, name: str) -> Any:
        """Return the converted value of a key; None if it is missing or its value does not fit."""
        return self.values.get(name)

    def which(self, *names: str) -> tuple[str, ...]:
        return tuple(name for name in names if name in self.raw)

    def fields(self, part: type[Any]) -> dict[str, Any]:
        """Return the converted values of the keys that `part` declares, by its field names."""
        infos = (info for info in describe(part) if info.name in self.values)
        return {info.attribute: self.values[info.name] for info in infos}

    @property
    def rules(self) -> tuple[Section, ...]:
        entries: tuple[Section, ...] = self.values.get("expect", ())
        return entries

    @property
    def protections(self) -> tuple[Section, ...]:
        entries: tuple[Section, ...] = self.values.get("protect", ())
        return entries


class Draft:
    """Converted content of a whole file, and the problems that were found in it."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.problems: list[Problem] = []
        self._unknown((), document.values, (*_names(TOP.keys), *SINGLE, *NAMED))
        self.sources, self.steps, self.sinks = map(self._named, NAMED)
        self.name = self._pipeline_name()
        self.run, self.errors = self._single("run"), self._single("errors")
        settings = self.convert(("spark",), SETTINGS, document.values.get("spark", {}))
        self.spark: dict[str, str] = settings or {}

    def refuse(self, key: Key, message: str, fix: str = "", *, under: Key = ()) -> None:
        self.problems.append(self.document.problem(key, message, fix, under=under))

    def views(self) -> Iterator[Section]:
        yield from self.sources.values()
        yield from self.steps.values()

    def otherwise(self, rule: Section) -> str:
        """Return the action for rows that do not meet a rule."""
        return str(rule.get("otherwise") or self.default_otherwise)

    @property
    def default_otherwise(self) -> str:
        return str(self.errors.get("on_invalid") or by_name(ErrorPolicy)["on_invalid"].default)

    def convert(self, key: Key, kind: Kind | None, value: object) -> Any:
        """Return a value as the spec has it; add a problem and return None if it does not fit."""
        kind = kind or TEXT
        try:
            found = kind.convert(value)
        except Unfit as unfit:
            self.refuse(key, unfit.message, unfit.fix)
            return None
        return kind.locate(found, self.document.path) if isinstance(kind, Located) else found

    def _unknown(self, key: Key, raw: Mapping[str, Any], names: tuple[str, ...]) -> None:
        for name in raw:
            if name not in names:
                close = nearest(name, names)
                fix = f"write {close}" if close else f"known are {', '.join(names)}"
                self.refuse((*key, name), "is not known here", fix)

    def _table(self, key: Key, raw: object) -> dict[str, Any]:
        if isinstance(raw, dict):
            return raw
        self.refuse(
            key, f"must be a table, but is {type_name(raw)}", f"write [{'.'.join(map(str, key))}]"
        )
        return {}

    def _section(self, key: Key, raw: dict[str, Any], table: Table) -> Section:
        self._unknown(key, raw, _names(table.keys))
        values = {}
        for known in table.keys:
            if known.name in raw:
                convert = self._entries if known.name in ENTRIES else self.convert
                converted = convert((*key, known.name), known.kind, raw[known.name])
                if converted is not None:
                    values[known.name] = converted
        return Section(key, raw, values)

    def _single(self, name: str) -> Section:
        raw = self._table((name,), self.document.values.get(name, {}))
        return self._section((name,), raw, SINGLE[name])

    def _named(self, kind: str) -> dict[str, Section]:
        tables = self._table((kind,), self.document.values.get(kind, {}))
        known = _names(NAMED[kind].keys)
        scalars = [name for name, raw in tables.items() if not isinstance(raw, dict)]
        if scalars and all(name in known for name in scalars):
            self.refuse((kind,), "has no name", f"write [{kind}.NAME]")
            return {}
        return {
            name: self._section((kind, name), self._table((kind, name), raw), NAMED[kind])
            for name, raw in tables.items()
        }

    def _pipeline_name(self) -> str:
        given = self.document.values.get("name")
        default = self.document.default_name
        name = default if given is None else self.convert(("name",), TEXT, given)
        if name is None:
            return default
        try:
            validate_topic_name(name)
        except InvalidError as error:
            reason = getattr(error, "reason", error)
            said = f"{name!r} cannot name a pipeline: {reason}".replace("topic name", "name")
            self.refuse(("name",), said, 'write name = "orders", with letters, digits, ., _ and -')
        if len(name) > NAME_CHARS_MAX:
            self.refuse(
                ("name",),
                f"has {len(name)} characters, the limit is {NAME_CHARS_MAX}",
                "choose a shorter name",
            )
        return str(name)

    def _entries(self, key: Key, kind: Kind | None, raw: object) -> tuple[Section, ...]:
        """Return the rules or the protections of a view."""
        name = str(key[-1])
        table = ENTRIES[name]
        if not isinstance(raw, dict):
            what = "" if kind is None else kind.words
            said = f"must be a {what}, but is {type_name(raw)}"
            self.refuse(key, said, f"write {name} = {{{table.example}}}")
            return ()
        entries = (self._entry((*key, entry), value, table) for entry, value in raw.items())
        return tuple(entry for entry in entries if entry is not None)

    def _entry(self, key: Key, raw: object, table: Table) -> Section | None:
        first = table.keys[0]
        if not isinstance(raw, dict):
            value = self.convert(key, first.kind, raw)
            return None if value is None else Section(key, {first.name: raw}, {first.name: value})
        before = len(self.problems)
        section = self._section(key, raw, table)
        if not section.given(first.name):
            self.refuse(key, *table.missing)
        # Leave out a rule with a problem: its `otherwise` may differ from the default.
        left_out = table is RULE and len(self.problems) > before
        return None if left_out or section.get(first.name) is None else section


def _names(keys: Iterable[SettingInfo]) -> tuple[str, ...]:
    return tuple(key.name for key in keys)


# Checks of the other files that a pipeline names: schemas, SQL, Python and the keyring.
#
# Python files are not run, because they may import packages that only the cluster has. The checks
# find a step's function in the syntax tree, and compare the number of its parameters with the
# step's inputs.


_FUNCTIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef)


def check_files(draft: Draft) -> None:
    for source in draft.sources.values():
        for key in ("schema_file", "registry_config"):
            if source.get(key):
                _exists(draft, (*source.key, key), source.get(key))
        if is_schema_file(source.get("reader") or ""):
            _exists(draft, (*source.key, "reader"), Path(source.get("reader")))
    for step in draft.steps.values():
        if step.get("sql_file"):
            _exists(draft, (*step.key, "sql_file"), step.get("sql_file"))
        if step.get("python"):
            _python(draft, step)


def sql_text(draft: Draft, step: Section) -> str | None:
    """Return a step's SQL, from `sql_file` or `sql`; None if it is missing or cannot be read."""
    file: Path | None = step.get("sql_file")
    if file is None:
        text = step.get("sql")
        return None if text is None else str(text)
    try:
        return read_text(file, "") if file.is_file() else None
    except DocumentInvalid as invalid:
        _unreadable(draft, (*step.key, "sql_file"), invalid)
        return None


def _unreadable(draft: Draft, key: Key, invalid: DocumentInvalid) -> None:
    problems = [replace(problem, where=dotted(key)) for problem in invalid.problems]
    draft.problems.extend(problem for problem in problems if problem not in draft.problems)


def _exists(draft: Draft, key: Key, file: Path) -> bool:
    if file.is_file():
        return True
    siblings = tuple(sorted(path.name for path in file.parent.glob(f"*{file.suffix}"))[:1000])
    close = nearest(file.name, siblings)
    fix = f"there is {close} beside it" if close else "paths are relative to the pipeline's file"
    draft.refuse(key, f"there is no file {file}", fix)
    return False


def _python(draft: Draft, step: Section) -> None:
    file, function = step.get("python")
    key = (*step.key, "python")
    if not _exists(draft, key, file):
        return
    try:
        tree = ast.parse(read_text(file, ""))
    except DocumentInvalid as invalid:
        _unreadable(draft, key, invalid)
        return
    except (SyntaxError, ValueError) as error:
        line = error.lineno if isinstance(error, SyntaxError) else None
        said = error.msg if isinstance(error, SyntaxError) else str(error)
        draft.problems.append(
            Problem(file=file, line=line, where=dotted(key), message=said, fix="fix the syntax")
        )
        return
    names = _defined_names(tree)
    if function not in names:
        close = nearest(function, tuple(names))
        given = step.raw["python"].rpartition(":")[0]
        fix = f"write {given}:{close}" if close else f"define {function} at the top of the file"
        draft.refuse(key, f"{given} has no function {function}", fix)
    found = names.get(function)
    inputs = step.get("inputs")
    if isinstance(found, _FUNCTIONS) and inputs:
        _parameters(draft, step, found, len(inputs))


def _defined_names(tree: ast.Module) -> dict[str, ast.stmt]:
    found: dict[str, ast.stmt] = {}
    for node in tree.body:
        if isinstance(node, _FUNCTIONS):
            found[node.name] = node
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            found |= {(name.asname or name.name): node for name in node.names}
        elif isinstance(node, ast.Assign):
            found |= {name.id: node for name in node.targets if isinstance(name, ast.Name)}
    return found


def _parameters(
    draft: Draft, step: Section, function: ast.FunctionDef | ast.AsyncFunctionDef, inputs: int
) -> None:
    arguments = function.args
    most = len(arguments.posonlyargs) + len(arguments.args)
    least = most - len(arguments.defaults)
    if isinstance(function, ast.AsyncFunctionDef):
        fix = "write def without async"
        draft.refuse((*step.key, "python"), f"{function.name} is a coroutine", fix)
    elif inputs < least or (inputs > most and arguments.vararg is None):
        draft.refuse(
            (*step.key, "inputs"),
            f"{function.name} takes {most} frames (line {function.lineno} of its file), "
            f"but {inputs} are given",
            "name one view for each parameter",
        )


def keys_of(spec: PipelineSpec) -> KeyPlace | None:
    """Return the location of a pipeline's keyring; None if the file names none."""
    if spec.run.keys is None:
        return None
    return KeyPlace(ring=spec.run.keys, master=spec.run.master_key)


def check_keys(spec: PipelineSpec) -> None:
    """Check that the pipeline's keyring can be opened, if a protection needs it.

    Raises:
        DocumentInvalid: the keyring is missing or readable by others, or its master key does not
            fit.
    """
    place = keys_of(spec)
    parts: list[Source | Step] = [*spec.sources.values(), *spec.steps.values()]
    if place is None or not any(
        protection.needs_keys for part in parts for protection in part.protections
    ):
        return
    try:
        ring_at(place)
    except KeyRingUnusable as error:
        problem = read(spec.file).problem(("run", "keys"), str(error))
        raise DocumentInvalid((problem,)) from error
