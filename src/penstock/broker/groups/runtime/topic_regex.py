"""Regular expressions over topic names and attributes of clients, in RE2's syntax.

RE2 matches in linear time; it lacks the constructs that need backtracking (backreferences,
lookaround). An expression must match the whole name. Kafka uses RE2/J.

Source: RE2's syntax page; KIP-848.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Final

REGEX_CHARACTERS_MAX: Final = 10_000
EXPRESSION_BYTES_MAX: Final = 1 << 20
"""Maximum memory of one compiled expression with its automata; RE2 rejects larger ones."""
COMPILED_MAX: Final = 128


class InvalidRegex(ValueError):
    """Expression that is too large, or whose syntax is invalid or unsupported."""


@lru_cache(maxsize=COMPILED_MAX)
def compile_regex(text: str) -> Callable[[str], bool]:
    """Return a function that returns whether the expression matches a whole name.

    Raises:
        InvalidRegex: its syntax is invalid or unsupported, or it is too large.
    """
    import re2

    if len(text) > REGEX_CHARACTERS_MAX:
        raise InvalidRegex(f"{len(text)} characters, at most {REGEX_CHARACTERS_MAX} are allowed")
    options = re2.Options()
    options.max_mem = EXPRESSION_BYTES_MAX
    options.log_errors = False
    options.never_capture = True
    try:
        fullmatch = re2.compile(text.encode(), options).fullmatch
    except re2.error as error:
        raise InvalidRegex(error.args[0].decode(errors="replace")) from None
    return lambda name: fullmatch(name.encode()) is not None
