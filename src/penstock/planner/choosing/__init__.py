"""Choice of a messaging technology by a decision matrix of rules.

    Workload ──> rules (data) ──> reasons per candidate ──> verdicts ──> recommendation
                                                      └── each answer flipped ──> changes

`workload.py` holds the questions, `technologies.toml` the candidates, their parts in Penstock,
and the rules with their thresholds, which `rules.py` reads. `judging.py` applies them, `answers.py`
flips answers one by one, and `plan.py` makes a `Plan` of it.

Source: the log and queue article (why a table is no queue, the decision matrix, the use cases),
the filesystem outbox article (when it is wrong), the host IPC article (alternatives, when wrong).
"""

from penstock.planner.choosing.answers import Change, Question, changes, questions
from penstock.planner.choosing.judging import Choice, Reason, Verdict, judge
from penstock.planner.choosing.plan import plan_choice
from penstock.planner.choosing.rules import CANDIDATES, RULES, Candidate, Rule, Test
from penstock.planner.choosing.workload import Workload

__all__ = [
    "CANDIDATES",
    "RULES",
    "Candidate",
    "Change",
    "Choice",
    "Question",
    "Reason",
    "Rule",
    "Test",
    "Verdict",
    "Workload",
    "changes",
    "judge",
    "plan_choice",
    "questions",
]
