"""Choice of a messaging technology by a decision matrix of rules.

    Workload ──> rules (data) ──> reasons per candidate ──> verdicts ──> recommendation
                                                      └── each answer flipped ──> changes

`rules.py` holds the questions, and reads `technologies.toml`: the candidates, their parts in
Penstock, and the rules with their thresholds. `plan.py` applies them, flips answers one by one, and
makes a `Plan` of it.

Source: the log and queue article (why a table is no queue, the decision matrix, the use cases),
the filesystem outbox article (when it is wrong), the host IPC article (alternatives, when wrong).
"""

from penstock.planner.choosing.plan import (
    Change,
    Choice,
    Question,
    Reason,
    Verdict,
    changes,
    judge,
    plan_choice,
    questions,
)
from penstock.planner.choosing.rules import CANDIDATES, RULES, Candidate, Rule, Test, Workload

__all__ = [
    "CANDIDATES", "RULES", "Candidate", "Change", "Choice", "Question", "Reason", "Rule", "Test",
    "Verdict", "Workload", "changes", "judge", "plan_choice", "questions",
]  # fmt: skip
