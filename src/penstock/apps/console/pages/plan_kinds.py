"""Kinds of plans that the console computes, each with the inputs that the planner declares.

They are plans of `penstock plan`, with default settings of brokers and the packaged prices.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any, Final

from msgspec import Struct

from penstock.apps.console.formats import sentence
from penstock.apps.console.forms import InvalidField
from penstock.apps.console.pages.plan_keys import RECORDS, RECORDS_DEFAULT, RECORDS_MAX, TOPIC
from penstock.apps.plan.command import SUMMARIES
from penstock.apps.plan.cost import load_prices, today
from penstock.apps.plan.output import default_text
from penstock.base.errors import BugError
from penstock.base.settings import SettingInfo, describe
from penstock.planner.capacity import CapacityInputs, capacity_plan
from penstock.planner.choosing import Workload, plan_choice
from penstock.planner.cost import PRESETS, CostInputs, Preset, Prices, cost_plan
from penstock.planner.keys.inputs import KeysInputs
from penstock.planner.quantities import format_quantity, read_inputs
from penstock.planner.receive_path import ReceivePathInputs, plan_receive_path
from penstock.planner.results import Plan

PRESET: Final = "preset"
"""Parameter with the name of a published example, whose inputs the other fields override."""
KEYS: Final = "keys"
YES_NO: Final = {"true": "yes", "false": "no"}


class PlanKind(Struct, frozen=True, kw_only=True):
    """Kind of plan: its inputs, the function that computes it, and its published examples."""

    name: str
    title: str
    inputs: type[Any]
    compute: Callable[[Any, str], Plan] | None = None
    """Function of the inputs and the preset; None if the plan needs more (`keys_plan`)."""
    presets: Mapping[str, Preset] = {}
    more: Mapping[str, tuple[str, str]] = {}
    """Further fields: their hints and defaults."""

    @property
    def summary(self) -> str:
        return SUMMARIES[self.name]

    @property
    def preset_titles(self) -> dict[str, str]:
        """Choices of a published example, by name."""
        return {"": "None", **{name: preset.doc for name, preset in sorted(self.presets.items())}}

    @property
    def parameters(self) -> Sequence[str]:
        """Query parameters of the kind's page."""
        names = [*self.more, *(info.name for info in describe(self.inputs))]
        return [*names, PRESET] if self.presets else names

    def plan(self, texts: Mapping[str, str]) -> Plan:
        """Compute a plan from texts by the names of inputs; empty texts count as missing.

        Raises:
            InvalidField: there is no published example with the name.
            InvalidSetting: a text is no value of its input.
            ImpossiblePlan: no configuration can serve the inputs.
        """
        given = dict(self._preset(texts))
        given |= {name: text for name, text in texts.items() if text and name != PRESET}
        if self.compute is None:
            raise BugError(f"the plan of {self.name} needs more than its inputs")
        return self.compute(read_inputs(self.inputs, given), texts.get(PRESET, ""))

    def fields(self, texts: Mapping[str, str]) -> list[Field]:
        """Return the fields of the form with their texts."""
        preset = self._preset(texts)
        more = [
            Field(name=name, hint=hint, text=texts.get(name, ""), default=default, choices={})
            for name, (hint, default) in self.more.items()
        ]
        return more + [
            _field(info, texts.get(info.name, ""), preset.get(info.name))
            for info in describe(self.inputs)
        ]

    def _preset(self, texts: Mapping[str, str]) -> Mapping[str, object]:
        """Return the inputs of the chosen example; raises InvalidField for an unknown one."""
        name = texts.get(PRESET, "")
        if name and name not in self.presets:
            raise InvalidField(f"{PRESET} {name[:64]!r} must be one of {', '.join(self.presets)}")
        return self.presets[name].inputs if name else {}


class Field(Struct, frozen=True, kw_only=True):
    """Field of a form. `default` is the text that applies if the field is empty."""

    name: str
    hint: str
    text: str
    default: str
    choices: Mapping[str, str]


def _field(info: SettingInfo, text: str, preset: Any) -> Field:
    choices = {choice: choice for choice in info.choices}
    if info.type_name == "bool":
        choices = YES_NO
    default = default_text(info if preset is None else replace(info, default=preset))
    return Field(
        name=info.name,
        hint=f"{info.doc}{_limits(info)}",
        text=text,
        default=choices.get(default, default),
        choices=choices,
    )


def _limits(info: SettingInfo) -> str:
    """Return the limits of a number and its unit as a sentence; empty without them."""
    if info.type_name not in ("int", "float"):
        return ""
    limits = [
        f"{word} {format_quantity(bound, info.unit)}"
        for word, bound in (("from", info.minimum), ("to", info.maximum))
        if bound is not None
    ]
    if limits:
        return f" {sentence(' '.join(limits))}."
    return f" In {info.unit}." if info.unit else ""


@cache
def _prices() -> Prices:
    return load_prices(None)


KINDS: Final = {
    kind.name: kind
    for kind in (
        PlanKind(
            name="capacity",
            title="Capacity of a cluster",
            inputs=CapacityInputs,
            compute=lambda inputs, _: capacity_plan(inputs),
        ),
        PlanKind(
            name="cost",
            title="Monthly cost",
            inputs=CostInputs,
            compute=lambda inputs, preset: cost_plan(
                inputs, _prices(), today(), preset=preset or None
            ),
            presets=PRESETS,
        ),
        PlanKind(
            name="receive-path",
            title="Receive path",
            inputs=ReceivePathInputs,
            compute=lambda inputs, _: plan_receive_path(inputs),
        ),
        PlanKind(
            name="choose",
            title="Choice of a technology",
            inputs=Workload,
            compute=lambda inputs, _: plan_choice(inputs),
        ),
        PlanKind(
            name=KEYS,
            title="Keys of a topic",
            inputs=KeysInputs,
            more={
                TOPIC: ("Topic whose newest committed records are read.", ""),
                RECORDS: (
                    f"Number of the newest records to read, at most {RECORDS_MAX:,}.",
                    str(RECORDS_DEFAULT),
                ),
            },
        ),
    )
}
