"""Shared parts of `penstock plan`: options of declared inputs; output as table, JSON or plot."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from penstock.apps.client.session import BadInput, State, client_options, write_json, write_table
from penstock.base.errors import InvalidError
from penstock.base.settings import SettingInfo, describe, render
from penstock.planner.quantities import (
    ImpossiblePlan,
    InvalidPlanFile,
    format_quantity,
    read_inputs,
)
from penstock.planner.results import (
    Figure,
    Finding,
    Plan,
    changed_rows,
    draw,
    given_rows,
    input_rows,
)

PLAN_FILE_BYTES_MAX: Final = 1 << 20
_PRESSING: Final = ("fail", "warn")
"""Severities of findings that are shown with the answers, also without --explain."""

Command = Callable[..., None]
Document = TypeVar("Document")


def plan_inputs(
    inputs_type: type[Any], presets: Mapping[str, Mapping[str, object]] | None = None
) -> Callable[[Callable[..., Plan]], Command]:
    """Return a decorator that makes a command from a function that returns a plan.

    The command has an option for each declared input of `inputs_type`, and writes the plan. The
    function gets `(state, inputs, **its own options)`. The options `--inputs` (a TOML file, which
    single options override), `--explain` and `--plot` are added. With `presets` the function must
    have an option `preset`, which names inputs that the file and options override. Invalid inputs
    exit with status 2.
    """

    def decorated(function: Callable[..., Plan]) -> Command:
        names = {info.attribute: info.name for info in describe(inputs_type)}

        @client_options
        def command(
            state: State,
            inputs_file: Path | None,
            explain: bool,
            plot: Path | None,
            **arguments: Any,
        ) -> None:
            texts = dict((presets or {}).get(arguments.get("preset") or "", {}))
            given = {name: arguments.pop(attribute) for attribute, name in names.items()}
            try:
                texts |= {} if inputs_file is None else read_plan_file(inputs_file, tomllib.loads)
                texts |= {name: text for name, text in given.items() if text is not None}
                plan = function(state, read_inputs(inputs_type, texts), **arguments)
                write_plan(state, plan, explain=explain, plot=plot)
            except InvalidError as flaw:
                if isinstance(flaw, ImpossiblePlan) or flaw.code == InvalidPlanFile.code:
                    raise BadInput(str(flaw)) from flaw
                raise
            if plan.failed:
                raise click.exceptions.Exit(1)

        command.__doc__ = function.__doc__
        options = [*map(_option, describe(inputs_type)), *_COMMON]
        for option in reversed(options):
            command = option(command)
        params = getattr(function, "__click_params__", [])
        command.__click_params__ = [*getattr(command, "__click_params__", []), *params]  # type: ignore[attr-defined]
        return command

    return decorated


_COMMON: Final = (
    click.option(
        "--inputs",
        "inputs_file",
        type=click.Path(dir_okay=False, path_type=Path),
        metavar="FILE",
        help="TOML file with inputs, under the names of these options, which override it.",
    ),
    click.option(
        "--explain",
        is_flag=True,
        help="Show also all inputs, figures, formulas, sources and findings.",
    ),
    click.option(
        "--plot",
        type=click.Path(dir_okay=False, path_type=Path),
        metavar="FILE.svg|FILE.png",
        help="Draw the plan's charts to this file.",
    ),
)


def default_text(info: SettingInfo) -> str:
    """Return the default of an input as text with its unit; empty if it has none."""
    if info.type_name in ("int", "float") and isinstance(info.default, (int, float)):
        return format_quantity(info.default, info.unit)
    return render(info.default)


def _option(info: SettingInfo) -> Callable[[Any], Any]:
    default = default_text(info)
    shown = f" [default: {default}]" if default != "" else ""
    choices = f" One of {', '.join(info.choices)}." if info.choices else ""
    return click.option(
        f"--{info.name}",
        info.attribute,
        metavar=info.unit.upper() or ("TEXT" if info.type_name in ("str", "list") else "VALUE"),
        help=f"{info.doc}{choices}{shown}",
    )


def read_plan_file(path: Path, parse: Callable[[str], Document]) -> Document:
    """Read a file of a plan (inputs, prices or a calibration), and parse it.

    Raises:
        InvalidPlanFile: the file cannot be read, is too large, or `parse` raises a ValueError.
    """
    try:
        if path.stat().st_size > PLAN_FILE_BYTES_MAX:
            raise InvalidPlanFile(f"{path} is larger than {PLAN_FILE_BYTES_MAX} bytes")
        return parse(path.read_text("utf-8"))
    except OSError as error:
        raise InvalidPlanFile(f"{path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise InvalidPlanFile(f"{path}: {error}") from None


def write_plan(state: State, plan: Plan, *, explain: bool, plot: Path | None) -> None:
    """Write a plan as text, answers first, or as JSON; draw it to the file `plot`."""
    if plot is not None:
        plot.write_bytes(draw(plan, plot.suffix))
    if state.json:
        write_json(plan_document(plan))
        return
    given = ", ".join([f"{name} {_input_text(row)}" for name, *row in changed_rows(plan.inputs)])
    click.echo(f"{plan.title} ({given})" if given else plan.title)
    _write_figures("", plan.answered)
    pressing = [finding for finding in plan.findings if finding.severity in _PRESSING]
    others = [finding for finding in plan.findings if finding.severity not in _PRESSING]
    _write_findings(pressing)
    for snippet in plan.snippets:
        click.echo(f"# {snippet.title}")
        click.echo(snippet.text.rstrip("\n") + "\n")
    if explain:
        _write_findings(others)
        _write_details(plan)
    else:
        click.echo(
            f"add --explain for {len(given_rows(plan.inputs))} inputs, {len(plan.figures)} figures"
            f" with formulas and sources, and {len(others)} more findings"
        )
    if plot is not None:
        click.echo(f"drawn: {plot}")


def _input_text(row: Sequence[Any]) -> str:
    value, unit = row[:2]
    return format_quantity(value, unit) if isinstance(value, (int, float)) else render(value)


def _write_findings(findings: Sequence[Finding]) -> None:
    """Write findings as sentences, each with its fix on the next line."""
    for finding in findings:
        click.echo(f"{finding.severity:<4}  {finding.subject}: {finding.cause}")
        if finding.fix:
            click.echo(f"      → {finding.fix}")
    if findings:
        click.echo()


def _write_details(plan: Plan) -> None:
    rows = [(name, _input_text(row)) for name, *row in given_rows(plan.inputs)]
    write_table(("input", "value"), rows)
    for group in dict.fromkeys([figure.group for figure in plan.figures]):
        _write_figures(group, [figure for figure in plan.figures if figure.group == group])
    _write_explanations(plan.figures)


def _write_figures(group: str, figures: Sequence[Figure]) -> None:
    columns = ["figure", "value"]
    rows = [[figure.label, figure.text] for figure in figures]
    if any([figure.minimum is not None for figure in figures]):
        columns.append("at least")
        rows = [[*row, one.minimum_text] for row, one in zip(rows, figures, strict=True)]
    if any([figure.setting for figure in figures]):
        columns.append("setting")
        rows = [[*row, one.setting] for row, one in zip(rows, figures, strict=True)]
    write_table(columns, rows, title=group or None)


def _write_explanations(figures: Sequence[Figure]) -> None:
    """Write the formula and the source of each figure."""
    click.echo("# Formulas and sources")
    group = ""
    for figure in figures:
        if figure.group != group:
            group = figure.group
            click.echo(f"## {group}")
        least = "" if figure.minimum is None else f" (at least {figure.minimum_text})"
        click.echo(f"{figure.label}: {figure.text}{least}")
        click.echo(f"    = {figure.formula}")
        click.echo(f"    from {figure.source}")
    click.echo()


def plan_document(plan: Plan) -> dict[str, Any]:
    return {
        "title": plan.title,
        "inputs": {
            name: {"value": value, "unit": unit} for name, value, unit, _ in input_rows(plan.inputs)
        },
        "answers": list(plan.answers),
        "figures": [asdict(figure) for figure in plan.figures],
        "findings": [asdict(finding) for finding in plan.findings],
        "snippets": [asdict(snippet) for snippet in plan.snippets],
        "charts": [asdict(chart) for chart in plan.charts],
    }
