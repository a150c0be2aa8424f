"""Parser of a pipeline's file into its spec.

`document` reads the file with the lines of its keys, `draft` converts its tables, and `checking`
checks everything. This module makes a `PipelineSpec` from the result. Parsing does not start Spark,
and runs no file that the pipeline names. `sql_views` finds the views that SQL reads.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, TypeVar

from penstock.base.document import DocumentInvalid, Problem, dotted, read
from penstock.base.settings import by_name
from penstock.formats import ValueFormat
from penstock.spark.pipeline import kinds
from penstock.spark.pipeline.checking import check, has_changes, step_inputs, view_named
from penstock.spark.pipeline.draft import Draft, Section, sql_text
from penstock.spark.pipeline.spec import (
    ADMIN,
    BOOTSTRAP,
    LAKE_TRIGGER,
    REGISTRY_VARIABLE,
    ConsoleSink,
    ErrorPolicy,
    Evolve,
    FormatKeys,
    IcebergSink,
    OneTopic,
    PipelineSpec,
    Protection,
    PythonStep,
    Rule,
    RunOptions,
    Sink,
    Source,
    Step,
    TableSink,
    TopicSink,
)

T = TypeVar("T")

ENVIRONMENT: Final[Mapping[str, str]] = {
    "bootstrap": "PENSTOCK_BOOTSTRAP",
    "admin": "PENSTOCK_ADMIN_URL",
}
STATE_DIRECTORY: Final = ".penstock"
_MAKING: Final[Mapping[str, tuple[str, ...]]] = {
    "source": ("topic", "topics", "pattern", "table", "outbox", *by_name(FormatKeys)),
    "step": ("sql", "sql_file", "python", "inputs"),
}
"""Keys that determine a view's rows and columns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """Readable part of a file, and all of its problems.

    If there are problems, use `spec` for inspection only. It lacks values that do not fit their
    keys, and sinks without a view or a target. `unsure` names the views whose columns are
    unreliable.
    """

    spec: PipelineSpec
    problems: tuple[Problem, ...]
    unsure: frozenset[str]


def load(
    path: Path,
    *,
    bootstrap: str | None = None,
    admin: str | None = None,
    state: Path | str | None = None,
) -> PipelineSpec:
    """Read and check a pipeline: one TOML file, or a directory with a `pipeline.toml`.

    Args:
        path: the file or the directory.
        bootstrap: the brokers; overrides the file, which overrides PENSTOCK_BOOTSTRAP.
        admin: the admin address; overrides the file, which overrides PENSTOCK_ADMIN_URL.
        state: the state directory, relative to the working directory; overrides the file.

    Returns:
        A spec with absolute paths. All of its views exist, without cycles, and all of its rules
        have an action. `file` is the TOML file.

    Raises:
        DocumentInvalid: the file has problems; the error lists all of them.
    """
    found = survey(path, bootstrap=bootstrap, admin=admin, state=state)
    if found.problems:
        raise DocumentInvalid(found.problems)
    return found.spec


def survey(
    path: Path,
    *,
    bootstrap: str | None = None,
    admin: str | None = None,
    state: Path | str | None = None,
) -> Survey:
    """Read a pipeline as `load` does, but return its problems with the part that could be read.

    Raises:
        DocumentInvalid: the file is missing, or not TOML.
    """
    document = read(path)
    drafted = Draft(document)
    run = _run(drafted, bootstrap, admin, state)
    problems = check(drafted)
    spec = PipelineSpec(
        name=drafted.name,
        file=document.file,
        run=run,
        sources={name: _source(drafted, source) for name, source in drafted.sources.items()},
        steps={name: _step(drafted, step) for name, step in drafted.steps.items()},
        sinks={name: _sink(drafted, sink) for name, sink in drafted.sinks.items() if _leads(sink)},
        errors=_made(ErrorPolicy, drafted.errors),
        spark=drafted.spark,
    )
    wrong = [problem.where for problem in problems]
    unsure = (view.name for view in drafted.views() if _is_unsure(view, wrong))
    return Survey(spec=spec, problems=problems, unsure=frozenset(unsure))


def _is_unsure(view: Section, wrong: list[str]) -> bool:
    making = {dotted(view.key), *(dotted((*view.key, name)) for name in _MAKING[str(view.key[0])])}
    return any(where in making for where in wrong)


def _leads(sink: Section) -> bool:
    targets = [sink.get(kind) for kind in sink.which("table", "iceberg", "topic", "console")]
    return sink.get("from") is not None and len(targets) == 1 and targets[0] is not None


def _address(drafted: Draft, name: str, flag: str | None, default: str) -> str:
    if not flag and drafted.run.given(name):
        return str(drafted.run.get(name) or default)
    kind, variable = by_name(RunOptions)[name].kind, ENVIRONMENT[name]
    for value, where in ((flag, f"--{name}"), (os.environ.get(variable), variable)):
        if value:
            return str(drafted.convert((where,), kind, value) or default)
    return default


def _made(part: type[T], section: Section, **others: Any) -> T:
    """Return an instance of `part` with the section's values, overridden by `others`."""
    return part(**(section.fields(part) | others))


def _run(
    drafted: Draft, bootstrap: str | None, admin: str | None, state: Path | str | None
) -> RunOptions:
    default = drafted.document.path(f"{STATE_DIRECTORY}/{drafted.name}")
    directory = drafted.run.get("state") or default
    if state is not None:
        directory = Path(state).expanduser().resolve()
    return _made(
        RunOptions,
        drafted.run,
        bootstrap=_address(drafted, "bootstrap", bootstrap, BOOTSTRAP),
        admin_url=_address(drafted, "admin", admin, ADMIN),
        state=directory,
        **_trigger(drafted),
    )


def _trigger(drafted: Draft) -> dict[str, str]:
    """Return the default trigger of a pipeline with Iceberg sinks: 12 commits a minute."""
    lake = any(sink.given("iceberg") for sink in drafted.sinks.values())
    return {"trigger": LAKE_TRIGGER} if lake and not drafted.run.given("trigger") else {}


def _source(drafted: Draft, source: Section) -> Source:
    return _made(
        Source,
        source,
        **source.fields(OneTopic),
        name=source.name,
        value_format=_value_format(drafted, source),
        rules=_rules(drafted, source),
        protections=_protections(source),
    )


def _value_format(drafted: Draft, source: Section) -> ValueFormat:
    found = ValueFormat(**source.fields(FormatKeys))
    address = os.environ.get(REGISTRY_VARIABLE)
    if found.kind != "registry" or source.given("registry") or not address:
        return found
    return replace(found, registry=drafted.convert((REGISTRY_VARIABLE,), kinds.REGISTRY, address))


def _step(drafted: Draft, step: Section) -> Step:
    python = step.get("python")
    return _made(
        Step,
        step,
        name=step.name,
        sql=sql_text(drafted, step),
        python=None if python is None else PythonStep(file=python[0], function=python[1]),
        inputs=step_inputs(drafted, step),
        rules=_rules(drafted, step),
        protections=_protections(step),
    )


def _rules(drafted: Draft, view: Section) -> tuple[Rule, ...]:
    made = (
        _made(Rule, rule, name=rule.name, otherwise=drafted.otherwise(rule)) for rule in view.rules
    )
    if not has_changes(view):
        return tuple(made)
    # Deletes and truncations have no values that a rule could check.
    exempt = "_change.op in ('d', 't') or"
    return tuple(replace(rule, condition=f"{exempt} ({rule.condition}\n)") for rule in made)


def _protections(view: Section) -> tuple[Protection, ...]:
    return tuple(_made(Protection, entry, column=entry.name) for entry in view.protections)


def _sink(drafted: Draft, sink: Section) -> Sink:
    view = view_named(drafted, sink.get("from"))
    return Sink(name=sink.name, view=view, to=_target(sink))


def _target(sink: Section) -> TableSink | TopicSink | ConsoleSink:
    if sink.given("table"):
        return _made(TableSink, sink, **sink.fields(Evolve))
    if sink.given("iceberg"):
        return _made(IcebergSink, sink, **sink.fields(Evolve))
    if sink.given("topic"):
        return _made(TopicSink, sink)
    return _made(ConsoleSink, sink)
