"""Parser of a pipeline's file into its spec.

The file is read with the lines of its keys (`document`), its tables are converted (`draft`),
everything is checked (`checking`), and the result becomes a `PipelineSpec` here. Nothing starts
Spark, and no file that the pipeline names is run. `sql_views` finds the views that SQL reads.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

from penstock.base.settings import describe
from penstock.formats import ValueFormat
from penstock.security.data.key_ring import ENVIRONMENT as ENVIRONMENT_KEY
from penstock.spark.pipeline.checking import check
from penstock.spark.pipeline.connections import step_inputs, table_path, view_named
from penstock.spark.pipeline.document import read
from penstock.spark.pipeline.draft import Draft, Section, default_otherwise, draft
from penstock.spark.pipeline.files import sql_text
from penstock.spark.pipeline.keys import FORMAT
from penstock.spark.pipeline.kinds import Unfit, servers, url
from penstock.spark.pipeline.locations import dotted
from penstock.spark.pipeline.problems import PipelineInvalid, Problem
from penstock.spark.pipeline.spec import (
    ADMIN,
    BOOTSTRAP,
    ConsoleSink,
    ErrorPolicy,
    Otherwise,
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

ENVIRONMENT: Final[Mapping[str, str]] = {
    "bootstrap": "PENSTOCK_BOOTSTRAP",
    "admin": "PENSTOCK_ADMIN_URL",
}
STATE_DIRECTORY: Final = ".penstock"
_MAKING: Final[Mapping[str, tuple[str, ...]]] = {
    "source": ("topic", "topics", "pattern", "table", "outbox", *(info.name for info in FORMAT)),
    "step": ("sql", "sql_file", "python", "inputs"),
}
"""Keys that determine a view's rows and columns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """Readable part of a file, and all of its problems.

    With problems, `spec` is for inspection only: values that do not fit are left out of it, as are
    sinks without a view or a target; `unsure` names the views with unreliable columns.
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
        bootstrap: the brokers; wins over the file, which wins over PENSTOCK_BOOTSTRAP.
        admin: the admin address; wins over the file, which wins over PENSTOCK_ADMIN_URL.
        state: the directory of checkpoints, relative to the working directory; wins over the file.

    Returns:
        A spec whose paths are absolute, whose views all exist and have no cycles, and whose
        rules all say what happens otherwise. `file` is the TOML file.

    Raises:
        PipelineInvalid: with all problems that were found.
    """
    found = survey(path, bootstrap=bootstrap, admin=admin, state=state)
    if found.problems:
        raise PipelineInvalid(found.problems)
    return found.spec


def survey(
    path: Path,
    *,
    bootstrap: str | None = None,
    admin: str | None = None,
    state: Path | str | None = None,
) -> Survey:
    """Read a pipeline as `load` does, but return the problems beside what could be read.

    Raises:
        PipelineInvalid: the file is missing, or not TOML.
    """
    document = read(path)
    drafted = draft(document)
    given = {
        "bootstrap": _address(drafted, "bootstrap", bootstrap, BOOTSTRAP),
        "admin": _address(drafted, "admin", admin, ADMIN),
    }
    problems = check(drafted)
    spec = PipelineSpec(
        name=drafted.name,
        file=document.file,
        run=_run(drafted, given["bootstrap"], given["admin"], state),
        sources={name: _source(drafted, source) for name, source in drafted.sources.items()},
        steps={name: _step(drafted, step) for name, step in drafted.steps.items()},
        sinks={name: _sink(drafted, sink) for name, sink in drafted.sinks.items() if _leads(sink)},
        errors=ErrorPolicy(**_fields(ErrorPolicy, drafted.errors)),
        spark=dict(drafted.spark.values),
    )
    wrong = [problem.where for problem in problems]
    unsure = (view.name for view in drafted.views() if _is_unsure(view, wrong))
    return Survey(spec=spec, problems=problems, unsure=frozenset(unsure))


def _is_unsure(view: Section, wrong: list[str]) -> bool:
    making = {dotted(view.key), *(dotted((*view.key, name)) for name in _MAKING[str(view.key[0])])}
    return any(where in making for where in wrong)


def _leads(sink: Section) -> bool:
    targets = [sink.get(kind) for kind in sink.which("table", "topic", "console")]
    return sink.get("from") is not None and len(targets) == 1 and targets[0] is not None


def _address(drafted: Draft, name: str, flag: str | None, default: str) -> str:
    convert = servers if name == "bootstrap" else url
    variable = ENVIRONMENT[name]
    if not flag and drafted.run.given(name):
        return str(drafted.run.get(name) or default)
    for value, where in ((flag, f"--{name}"), (os.environ.get(variable), variable)):
        if not value:
            continue
        try:
            return convert(value)
        except Unfit as unfit:
            drafted.problems.append(
                Problem(
                    file=drafted.document.file,
                    line=None,
                    where=where,
                    message=unfit.message,
                    fix=unfit.fix,
                )
            )
            return default
    return default


def _fields(kind: type[Any], section: Section, **others: Any) -> dict[str, Any]:
    """Return the fields of a class of the spec that the section gives; `others` win."""
    given = {info.attribute: section.get(info.name) for info in describe(kind)}
    return {name: value for name, value in (given | others).items() if value is not None}


def _run(drafted: Draft, bootstrap: str, admin: str, state: Path | str | None) -> RunOptions:
    default = f"{STATE_DIRECTORY}/{drafted.name}"
    directory = drafted.document.path(drafted.run.get("state") or default)
    if state is not None:
        directory = Path(state).expanduser().resolve()
    locations = {
        "bootstrap": bootstrap,
        "admin_url": admin,
        "state": directory,
        "keys": _path(drafted, drafted.run.get("keys")),
        "master_key": _master_key(drafted, drafted.run.get("master_key")),
    }
    return RunOptions(**_fields(RunOptions, drafted.run, **locations))


def _source(drafted: Draft, source: Section) -> Source:
    topic, table = source.get("topic"), source.get("table")
    formats = {info.name: source.get(info.name) for info in FORMAT if source.get(info.name)}
    formats["kind"] = formats.pop("format", "raw")
    formats["schema_file"] = _path(drafted, formats.get("schema_file"))
    return Source(
        **_fields(
            Source,
            source,
            name=source.name,
            topics=(topic,) if topic is not None else source.get("topics"),
            table=None if table is None else table_path(drafted, table),
            outbox=_path(drafted, source.get("outbox")),
            value_format=ValueFormat(**formats),
            rules=_rules(drafted, source),
            protections=_protections(drafted, source),
        )
    )


def _path(drafted: Draft, given: str | None) -> Path | None:
    return None if given is None else drafted.document.path(given)


def _master_key(drafted: Draft, given: str | None) -> str | None:
    if given is None or given.startswith(ENVIRONMENT_KEY):
        return given
    return str(drafted.document.path(given))


def _step(drafted: Draft, step: Section) -> Step:
    python = step.get("python")
    if python is not None:
        python = PythonStep(file=drafted.document.path(python[0]), function=python[1])
    return Step(
        **_fields(
            Step,
            step,
            name=step.name,
            sql=sql_text(drafted, step),
            python=python,
            inputs=step_inputs(drafted, step),
            rules=_rules(drafted, step),
            protections=_protections(drafted, step),
        )
    )


def _protections(drafted: Draft, view: Section) -> tuple[Protection, ...]:
    return tuple(
        Protection(**_fields(Protection, section, column=section.name))
        for section in drafted.protections.get(view.key, ())
        if section.get("by") is not None
    )


def _rules(drafted: Draft, view: Section) -> tuple[Rule, ...]:
    default = default_otherwise(drafted.errors)
    return tuple(
        Rule(
            name=rule.name,
            condition=rule.condition,
            otherwise=cast(Otherwise, rule.otherwise or default),
        )
        for rule in drafted.rules.get(view.key, ())
    )


def _sink(drafted: Draft, sink: Section) -> Sink:
    view = view_named(drafted, sink.get("from"))
    return Sink(name=sink.name, view=view, to=_target(drafted, sink))


def _target(drafted: Draft, sink: Section) -> TableSink | TopicSink | ConsoleSink:
    if sink.given("table"):
        table = table_path(drafted, sink.get("table"))
        adds = sink.get("add_columns") or sink.get("evolve") == "add"
        return TableSink(**_fields(TableSink, sink, table=table, add_columns=adds))
    kind = TopicSink if sink.given("topic") else ConsoleSink
    return kind(**_fields(kind, sink))
