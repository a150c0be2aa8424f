"""Errors reduced to their cause; the texts are what Spark 4 wrote."""

from __future__ import annotations

import pytest

from penstock.base.errors import InvalidError
from penstock.spark.pipeline.causes import CAUSE_CHARACTERS_MAX, cause_of, cause_of_text

FAILED = "[STREAM_FAILED] Query [id = 7cf8, runId = 1b5e] terminated with exception: "
TAIL = """
=== Streaming Query ===
Identifier: bad [id = 7cf8, runId = 1b5e]
Current Committed Offsets: {}
Traceback of nothing"""
PYTHON = """\
[FOREACH_BATCH_USER_FUNCTION_ERROR] An error occurred in the user provided function in foreach \
batch sink. Reason: An exception was raised by the Python Proxy. Return Message: Traceback (most \
recent call last):
  File "clientserver.py", line 644, in _call_proxy
    return_value = getattr(self.pool[obj_id], method)(*params)
                   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
  File "probe.py", line 37, in bad
    raise InvalidError("topic x")
{error}
 SQLSTATE: 39000 SQLSTATE: XXKST"""
NO_SPACE = "No space left on device"
TASK = """\
Job aborted due to stage failure: Task 0 in stage 4.0 failed 1 times, most recent failure: Lost \
task 0.0 in stage 4.0 (TID 7) (127.0.0.1 executor driver): java.io.IOException: No space left on \
device
\tat java.base/java.io.FileOutputStream.writeBytes(Native Method)
\t... 3 more

Driver stacktrace:"""


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        (
            PYTHON.replace("{error}", "penstock.base.errors.InvalidError: topic x: at most 3"),
            "topic x: at most 3",
        ),
        (PYTHON.replace("{error}", "KeyError: 'missing'"), "KeyError: 'missing'"),
        (
            PYTHON.replace("{error}", "pyspark.errors.exceptions.captured.X: [NO_ROW] none"),
            "[NO_ROW] none",
        ),
        (PYTHON.replace("{error}", "a.b.Wrong: one\ntwo"), "Wrong: one two"),
        (PYTHON.replace("{error}", "StopIteration"), "StopIteration"),
        (
            "[USER_RAISED_EXCEPTION] no row SQLSTATE: P0001 SQLSTATE: XXKST",
            "[USER_RAISED_EXCEPTION] no row",
        ),
        (
            "[DIVIDE_BY_ZERO] Division by zero. SQLSTATE: 22012\n"
            "== SQL (line 1, position 1) ==\n1/(0)\n^^^^^\n SQLSTATE: XXKST",
            "[DIVIDE_BY_ZERO] Division by zero.",
        ),
        (TASK, NO_SPACE),
        ("Writing failed.\nCaused by: " + TASK[TASK.index("java.io.IO") :], NO_SPACE),
        ("plain words", "plain words"),
    ],
)  # fmt: skip
def test_what_stays(text: str, cause: str) -> None:
    assert cause_of_text(text) == cause
    assert cause_of_text(FAILED + text + TAIL) == cause


def test_a_plan_is_left_out() -> None:
    text = (
        "[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column `x` cannot be resolved. SQLSTATE: 42703; "
        "line 1 pos 0;\n'Project ['x]\n+- ~StreamingRelationV2 penstock, [subscribe=t]\n"
    )
    assert cause_of_text(text) == (
        "[UNRESOLVED_COLUMN.WITH_SUGGESTION] A column `x` cannot be resolved.; line 1 pos 0"
    )


def test_errors_of_ours_and_of_others() -> None:
    assert cause_of(InvalidError("one:\n two")) == "one: two"
    assert cause_of(ValueError()) == "ValueError"
    long = cause_of(InvalidError("x" * 2 * CAUSE_CHARACTERS_MAX))
    assert len(long) == CAUSE_CHARACTERS_MAX
    assert long.endswith("…")
