"""Choice of a messaging technology, by rules about the workload.

    Workload ──> rules (data) ──> reasons per candidate ──> verdicts ──> recommendation
                                                      └── other answers, one by one ──> changes

`plan.py` holds the questions and reads `technologies.toml`: the candidate technologies, the
matching parts of Penstock, and the rules with their thresholds. It applies the rules to the
answers, tries other answers one by one, and makes a `Plan`.

Source: the log and queue article (why a table is no queue, the decision matrix, the use cases), the
filesystem outbox article (when it is wrong), the host IPC article (alternatives, when wrong).
"""

from penstock.planner.choosing.plan import (
    CANDIDATES,
    RULES,
    Candidate,
    Change,
    Choice,
    Question,
    Reason,
    Rule,
    Test,
    Verdict,
    Workload,
    changes,
    judge,
    plan_choice,
    questions,
)

__all__ = [
    "CANDIDATES", "RULES", "Candidate", "Change", "Choice", "Question", "Reason", "Rule", "Test",
    "Verdict", "Workload", "changes", "judge", "plan_choice", "questions",
]  # fmt: skip
