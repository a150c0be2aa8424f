"""Command `penstock plan choose`: recommends a technology, with reasons and thresholds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import click

from penstock.apps.client.session import State
from penstock.apps.plan.output import plan_inputs
from penstock.base.errors import InvalidSetting
from penstock.base.settings import SettingInfo, render
from penstock.planner.choosing import Question, Workload, plan_choice, questions
from penstock.planner.quantities import format_quantity, read_inputs
from penstock.planner.results import Plan, input_rows

ATTEMPTS_MAX: Final = 5
"""Most attempts to answer one question."""

_WORDS: Final = {"y": "true", "yes": "true", "n": "false", "no": "false"}


@click.command("choose")
@click.option(
    "--ask", is_flag=True, help="Ask the questions one by one, and show the thresholds of each."
)
@plan_inputs(Workload)
def choose(state: State, inputs: Workload, ask: bool) -> Plan:
    """Recommend a technology: log, queue, outbox, host socket, RPC, engine or processor.

    Each candidate gets a verdict, with the reasons for and against it and the thresholds behind
    them. At the end, single answers are listed that would change the recommendation. Exits with
    status 1 if no candidate fits.
    """
    return plan_choice(_asked(inputs) if ask else inputs)


def _asked(defaults: Workload) -> Workload:
    """Ask all questions and return the answers; `defaults` come from options and files."""
    answers: dict[str, object] = {name: value for name, value, _, _ in input_rows(defaults)}
    asked = questions()
    for number, question in enumerate(asked, 1):
        answers[question.info.name] = _answer(question, f"{number}/{len(asked)}", answers)
    return read_inputs(Workload, answers)


def _answer(question: Question, place: str, answers: Mapping[str, object]) -> object:
    info = question.info
    click.echo(f"\n[{place}] {info.doc}", err=True)
    for line in question.thresholds:
        click.echo(f"    {line}", err=True)
    for _ in range(ATTEMPTS_MAX):
        text = click.prompt(
            f"{info.name}{_choices(info)}", default=_shown(info, answers[info.name]), err=True
        )
        if text == _shown(info, answers[info.name]):
            return answers[info.name]
        value = _WORDS.get(text.lower(), text) if info.type_name == "bool" else text
        try:
            read_inputs(Workload, {info.name: value})
        except InvalidSetting as flaw:
            click.echo(str(flaw), err=True)
        else:
            return value
    raise click.UsageError(f"{info.name}: no valid answer in {ATTEMPTS_MAX} attempts")


def _choices(info: SettingInfo) -> str:
    if info.type_name == "bool":
        return " (yes, no)"
    return f" ({', '.join(info.choices)})" if info.choices else ""


def _shown(info: SettingInfo, value: object) -> str:
    if isinstance(value, (bool, int, float)):
        return format_quantity(value, info.unit)
    return render(str(value))
