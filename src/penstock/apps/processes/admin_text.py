"""Merging of several brokers' answers into one, for the shared admin address."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from penstock.base.metrics import Metrics, Sample, gauges, render

Answers = Mapping[int, Any]
"""Bodies of answers by node.id; None for a broker that did not answer."""


class ProcessMetrics(Metrics, prefix="penstock_process_"):
    """Metrics that the shared admin address adds to those of its brokers."""

    up: dict[str, int] = gauges(
        "up",
        "With several processes: 1 if the broker answered this scrape, else 0.",
        "broker",
    )


def health(answers: Answers, *, vital: bool) -> dict[str, Any]:
    """Merge the brokers' health answers into one; the name of each check begins with its broker.

    A broker that does not answer counts as a failed check. With `vital`, which is for `/livez`, it
    does not, because its parent restarts it.
    """
    checks: list[dict[str, Any]] = []
    for broker, body in answers.items():
        if body is None:
            cause = "the broker does not answer; its parent process restarts it if it has ended"
            checks.append({"name": f"broker {broker}", "ok": vital, "cause": cause})
            continue
        named = body.get("checks", ())
        checks += [{**check, "name": f"broker {broker}: {check['name']}"} for check in named]
    good = all([check["ok"] for check in checks])
    status = "ok" if good else "failing"
    return {"node_id": min(answers), "status": status, "checks": checks}


def groups(answers: Answers) -> dict[str, Any]:
    found = [group for body in answers.values() if body for group in body.get("groups", ())]
    return {"groups": sorted(found, key=lambda group: str(group["group_id"]))}


def failures(answers: Answers) -> list[str]:
    """Return sentences about files that brokers could not load, and brokers that do not answer."""
    found = []
    for broker, body in answers.items():
        told = ["it does not answer"] if body is None else body.get("failures", ())
        found += [f"broker {broker}: {sentence}" for sentence in told]
    return found


def metrics(answers: Mapping[int, bytes | None], own: Iterable[Sample] = ()) -> bytes:
    """Merge the metrics of brokers, with the label `broker` on every sample, and samples of its
    `own`.

    All samples of a metric follow its HELP and TYPE lines, as the exposition format requires.
    """
    heads: dict[bytes, list[bytes]] = {}
    samples: dict[bytes, list[bytes]] = {}
    processes = ProcessMetrics()
    processes.up = {str(broker): text is not None for broker, text in answers.items()}
    texts = [(b"", render([*processes.samples(), *own]))]
    texts += [(b'broker="%d"' % broker, text or b"") for broker, text in answers.items()]
    for label, text in texts:
        family = b""
        for line in text.splitlines():
            if line.startswith(b"# "):
                family = line.split(b" ", 3)[2]
                known = heads.setdefault(family, [])
                if line not in known:
                    known.append(line)
            elif line:
                samples.setdefault(family, []).append(_labelled(line, label) if label else line)
    lines = list[bytes]()
    for family, found in samples.items():
        lines += heads.get(family, ())
        lines += found
    return b"\n".join(lines) + b"\n"


def _labelled(line: bytes, label: bytes) -> bytes:
    name, brace, rest = line.partition(b"{")
    if brace:
        return b"%b{%b,%b" % (name, label, rest)
    name, _, value = line.partition(b" ")
    return b"%b{%b} %b" % (name, label, value)
