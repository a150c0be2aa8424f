"""The plan of a receive path, put together."""

from __future__ import annotations

from penstock.planner.receive_path.charts import charts
from penstock.planner.receive_path.figures import figures
from penstock.planner.receive_path.findings import broken_findings, findings
from penstock.planner.receive_path.inputs import ReceivePathInputs
from penstock.planner.receive_path.sizing import size_receive_path
from penstock.planner.receive_path.texts import snippets, socket_snippet
from penstock.planner.results import Plan


def plan_receive_path(
    inputs: ReceivePathInputs, socket_settings: tuple[str, str] | None = None
) -> Plan:
    """Size the buffers, rings and timers between a network interface and an application.

    `socket_settings` are the names of a broker's settings for receive and send buffers, for a text
    to paste. There is none to paste where a constraint is broken: each one is a finding with its
    cure, and the sizes are those that were given or that come closest.
    """
    sizing = size_receive_path(inputs)
    texts = () if broken_findings(sizing) else snippets(sizing)
    if texts and socket_settings is not None:
        texts = (*texts, socket_snippet(sizing, *socket_settings))
    found = figures(sizing)
    return Plan(
        title="Receive path",
        inputs=inputs,
        figures=found,
        findings=findings(sizing),
        snippets=texts,
        charts=charts(sizing),
        answers=tuple([one.name for one in found if one.setting]),
    )
