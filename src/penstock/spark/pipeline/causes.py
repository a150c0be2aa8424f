"""Cause of a query's failure, in one line.

Spark wraps an error of Penstock in Java exceptions with stack traces of Java and Python. The useful
part is the innermost message. PySpark 4 writes it in these forms:

    [STREAM_FAILED] Query [id = …, runId = …] terminated with exception: CAUSE SQLSTATE: XXKST
    === Streaming Query ===
    …
    Traceback (most recent call last):
      File …
    penstock.spark.errors.DataLoss: orders-0: offsets 0 to 9 are to be read, …
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from typing import Final

from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]

from penstock.base.errors import CorruptError, FencedError, InvalidError

CAUSE_CHARACTERS_MAX: Final = 600
_LASTING: Final = (InvalidError, CorruptError, FencedError)

_STREAM: Final = re.compile(r"^\[STREAM_FAILED\].*?terminated with exception: ", re.DOTALL)
_TASK: Final = re.compile(
    r"^Job aborted due to stage failure: .*?most recent failure: [^:]*\(TID \d+\)[^:]*: ", re.DOTALL
)
_PLAN: Final = re.compile(r"\n=== Streaming Query ===.*|\n== SQL.*|;\s*\n['~+\w]*\w+ .*", re.DOTALL)
_STOPPED: Final = re.compile(
    r"^: (java\.(?:lang\.Interrupted|io\.InterruptedIO|nio\.channels\.ClosedByInterrupt)Exception)",
    re.MULTILINE,
)
_CANCELLED: Final = re.compile(
    r"^: org\.apache\.spark\.SparkException: (?:\[SPARK_JOB_CANCELLED\]|Job \d+ cancelled)",
    re.MULTILINE,
)
_INTERRUPTED: Final = "java.lang.InterruptedException"
_TRACEBACK: Final = "Traceback (most recent call last):"
_CAUSED_BY: Final = "\nCaused by: "
_JAVA_FRAMES: Final = re.compile(r"\n(?:\s+at |\s+\.\.\. \d+ more|Driver stacktrace:).*", re.DOTALL)
_SQLSTATE: Final = re.compile(r"\s*SQLSTATE: \w{5}")
_CLASS: Final = re.compile(r"^((?:\w+\.)+)?([A-Z]\w*)(?:: |$)")
_NAMELESS: Final = ("penstock.", "pyspark.errors.")
"""Packages whose errors are shown without their class name."""
_OUR_CLASS: Final = re.compile(r"^(?:.*: )?(penstock(?:\.\w+)+\.[A-Z]\w*): ", re.MULTILINE)


def cause_of(error: BaseException) -> str:
    """Return an error's innermost message without stack traces.

    It has at most `CAUSE_CHARACTERS_MAX` characters.
    """
    return _shortened(cause_of_text(str(error)) or type(error).__name__)


def cause_of_text(text: str) -> str:
    """Return the innermost message in an error's text; keep class names of other libraries."""
    _, found, after = text.rpartition(_TRACEBACK)
    if found:
        return _python_error(after)
    text = _TASK.sub("", _STREAM.sub("", _PLAN.sub("", text)))
    head, found, after = text.rpartition(_CAUSED_BY)
    text = _JAVA_FRAMES.sub("", after if found else head + after)
    return _one_line(_without_java_class(text))


def is_lasting(error: BaseException) -> bool:
    """Whether every retry would fail: the innermost error is one of `_LASTING`."""
    found = _OUR_CLASS.findall(str(error))
    if not found:
        return isinstance(error, _LASTING)
    module, _, name = found[-1].rpartition(".")
    try:
        kind = getattr(importlib.import_module(module), name, None)
    except ImportError:
        return False
    return isinstance(kind, type) and issubclass(kind, _LASTING)


def interruption(error: BaseException | None) -> str | None:
    """Return the Java exception if a call failed because Spark stops its query; else None.

    If Spark cancelled the query's job, this is `InterruptedException` too.
    """
    for failure in _java_errors(error):
        text = str(failure)
        if (found := _STOPPED.search(text)) is not None:
            return found[1]
        if _CANCELLED.search(text) is not None:
            return _INTERRUPTED
    return None


def has_java_trace(error: BaseException) -> bool:
    return next(_java_errors(error), None) is not None


def _java_errors(error: BaseException | None) -> Iterator[Py4JJavaError]:
    while error is not None:
        if isinstance(error, Py4JJavaError):
            yield error
        error = error.__cause__ or error.__context__


def _python_error(after: str) -> str:
    """Return the error at the end of a Python traceback, without the name of its module."""
    lines = after.lstrip("\n").splitlines()
    start = next((n for n, line in enumerate(lines) if line[:1].strip()), 0)
    text = _JAVA_FRAMES.sub("", _PLAN.sub("", "\n".join(lines[start:])))
    named = _CLASS.match(text)
    if named is None:
        return _one_line(text)
    nameless = (named[1] or "").startswith(_NAMELESS)
    return _one_line(text[named.end() :] if nameless else text[named.start(2) :])


def _without_java_class(text: str) -> str:
    named = _CLASS.match(text)
    return text[named.end() :] if named and named[1] and named.end() < len(text) else text


def _one_line(text: str) -> str:
    return " ".join(_SQLSTATE.sub("", text).split())


def _shortened(text: str) -> str:
    return text if len(text) <= CAUSE_CHARACTERS_MAX else text[: CAUSE_CHARACTERS_MAX - 1] + "…"
