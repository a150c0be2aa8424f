r"""Regular expressions over topic names, matched in time linear in the name.

The syntax is RE2's, without constructs that need backtracking (references, lookaround). An
expression must match the whole name. It becomes a non-deterministic automaton of at most
`STATES_MAX` states, simulated by sets of states; sets and their transitions are cached, so that
most characters cost one table lookup.

Topic names are ASCII, and so are all character sets; other characters match nothing.

    a b . [a-z] [^a] [[:alpha:]] \d \w \s \x41 \Q..\E     a character, or one of a set
    xy  x|y  (x) (?:x) (?P<n>x)                           both, either, groups
    x* x+ x? x{2,5}, each with ? behind                   repeated; lazy makes no difference
    ^ $ \A \z \b \B                                       ends, word boundaries
    (?i) (?s)                                             ignore case; dot matches all anyway

Source: RE2's syntax page; K. Thompson, "Regular Expression Search Algorithm", 1968; KIP-848.
"""

from __future__ import annotations

import string
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

from penstock.base.settings import whole_number

REGEX_CHARACTERS_MAX: Final = 10_000
STATES_MAX: Final = 1_000
"""States of one automaton; counted repetitions multiply them."""

NESTING_MAX: Final = 100
REPEATS_MAX: Final = 1_000
SETS_MAX: Final = 2_000
COMPILED_MAX: Final = 512


class InvalidRegex(ValueError):
    """Invalid or unsupported syntax, or an expression that is too large."""


_ALL: Final = (1 << 128) - 1


def _mask(characters: Iterable[str]) -> int:
    mask = 0
    for character in characters:
        if ord(character) < 128:
            mask |= 1 << ord(character)
    return mask


_WORD_CHARACTERS: Final = frozenset(string.ascii_letters + string.digits + "_")
_DIGIT: Final = _mask(string.digits)
_WORD: Final = _mask(_WORD_CHARACTERS)
_SPACE: Final = _mask("\t\n\f\r ")
_CLASSES: Final = {
    "d": _DIGIT, "D": _ALL ^ _DIGIT, "w": _WORD, "W": _ALL ^ _WORD, "s": _SPACE, "S": _ALL ^ _SPACE,
}  # fmt: skip
_POSIX: Final = {
    "alnum": _mask(string.ascii_letters + string.digits), "alpha": _mask(string.ascii_letters),
    "ascii": _ALL, "blank": _mask("\t "), "cntrl": _mask(map(chr, [*range(32), 127])),
    "digit": _DIGIT, "graph": _mask(map(chr, range(33, 127))),
    "lower": _mask(string.ascii_lowercase), "print": _mask(map(chr, range(32, 127))),
    "punct": _mask(string.punctuation),
    "space": _mask(string.whitespace), "upper": _mask(string.ascii_uppercase), "word": _WORD,
    "xdigit": _mask(string.hexdigits),
}  # fmt: skip
_CONTROLS: Final = {"a": "\a", "f": "\f", "t": "\t", "n": "\n", "r": "\r", "v": "\v"}
_BORDERS: Final = {"A": "^", "z": "$", "b": "b", "B": "B"}


class _Characters(NamedTuple):
    mask: int


class _Border(NamedTuple):
    kind: str


class _Sequence(NamedTuple):
    parts: tuple[_Node, ...]


class _Choice(NamedTuple):
    options: tuple[_Node, ...]


class _Repeat(NamedTuple):
    part: _Node
    least: int
    most: int | None


_Node = _Characters | _Border | _Sequence | _Choice | _Repeat


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._folds = False
        self._depth = 0

    def parse(self) -> _Node:
        node = self._choice()
        if self._at < len(self._text):
            raise InvalidRegex(f"unexpected ) at {self._at}")
        return node

    def _next(self, count: int = 1) -> str:
        return self._text[self._at : self._at + count]

    def _take(self, text: str) -> bool:
        if self._text.startswith(text, self._at):
            self._at += len(text)
            return True
        return False

    def _until(self, end: str, what: str) -> str:
        found = self._text.find(end, self._at)
        if found < 0:
            raise InvalidRegex(f"missing {end} of {what} at {self._at}")
        text, self._at = self._text[self._at : found], found + len(end)
        return text

    def _choice(self) -> _Node:
        folds = self._folds
        options = [self._sequence()]
        while self._take("|"):
            options.append(self._sequence())
        self._folds = folds
        return options[0] if len(options) == 1 else _Choice(tuple(options))

    def _sequence(self) -> _Node:
        parts: list[_Node] = []
        while self._at < len(self._text) and self._next() not in "|)":
            if self._take("\\Q"):
                literal = self._text[self._at :].partition("\\E")
                self._at += len(literal[0]) + len(literal[1])
                parts += [self._one(character) for character in literal[0]]
                continue
            part = self._atom()
            if part is not None:
                parts.append(self._repeated(part))
        return parts[0] if len(parts) == 1 else _Sequence(tuple(parts))

    def _atom(self) -> _Node | None:
        start, character = self._at, self._next()
        self._at += 1
        if character == "(":
            return self._group(start)
        if character == "[":
            return _Characters(self._set(start))
        if character == ".":
            return _Characters(_ALL)
        if character in "^$":
            return _Border(character)
        if character in "*+?":
            raise InvalidRegex(f"nothing to repeat at {start}")
        if character == "\\":
            kind = _BORDERS.get(self._next())
            if kind is not None:
                self._at += 1
                return _Border(kind)
            return _Characters(self._folded(self._escape()))
        return self._one(character)

    def _one(self, character: str) -> _Node:
        return _Characters(self._folded(_mask(character)))

    def _folded(self, mask: int) -> int:
        if not self._folds:
            return mask
        upper, lower = mask >> 65 & 0x3FFFFFF, mask >> 97 & 0x3FFFFFF
        return mask | upper << 97 | lower << 65

    def _group(self, start: int) -> _Node | None:
        folds = self._folds
        if self._take("?"):
            if self._take("P<") or (self._next() == "<" and self._next(2) not in ("<=", "<!")):
                self._take("<")
                name = self._until(">", "the name")
                if not name or not set(name) <= _WORD_CHARACTERS:
                    raise InvalidRegex(f"invalid name of a group at {start}")
            elif self._flags(start):
                return None
        self._depth += 1
        if self._depth > NESTING_MAX:
            raise InvalidRegex(f"more than {NESTING_MAX} groups inside of each other")
        node = self._choice()
        self._depth -= 1
        if not self._take(")"):
            raise InvalidRegex(f"missing ) of the group at {start}")
        self._folds = folds
        return node

    def _flags(self, start: int) -> bool:
        """Read flags; return whether they apply to the rest of the enclosing group."""
        value = True
        while True:
            flag = self._next()
            self._at += 1
            if flag == "i":
                self._folds = value
            elif flag == "-" and value:
                value = False
            elif flag == ")":
                return True
            elif flag == ":":
                return False
            elif not flag or flag not in "msU":
                raise InvalidRegex(f"invalid or unsupported group syntax at {start}")

    def _escape(self) -> int:
        at, character = self._at - 1, self._next()
        self._at += 1
        if character in _CLASSES:
            return _CLASSES[character]
        if character in _CONTROLS:
            return _mask(_CONTROLS[character])
        if character == "x":
            if self._take("{"):
                digits = self._until("}", "\\x{")
            else:
                digits = self._next(2)
                self._at += 2
            try:
                return _mask(chr(int(digits, 16)))
            except (ValueError, OverflowError):
                raise InvalidRegex(f"invalid escape at {at}") from None
        if not character or character.isalnum():
            raise InvalidRegex(f"invalid or unsupported escape \\{character} at {at}")
        return _mask(character)

    def _set(self, start: int) -> int:
        negated, mask, first = self._take("^"), 0, True
        while first or self._next() != "]":
            if self._at >= len(self._text):
                raise InvalidRegex(f"missing ] of the set at {start}")
            first = False
            if self._take("[:"):
                name = self._until(":]", "the class")
                found = _POSIX.get(name.removeprefix("^"))
                if found is None:
                    raise InvalidRegex(f"there is no class of characters [:{name}:]")
                mask |= _ALL ^ found if name.startswith("^") else found
            else:
                mask |= self._span()
        self._at += 1
        mask = self._folded(mask)
        return _ALL ^ mask if negated else mask

    def _span(self) -> int:
        at = self._at
        low = self._of_set()
        if self._next() != "-" or self._next(2) in ("-", "-]"):
            return low
        self._at += 1
        high = self._of_set()
        if low.bit_count() > 1 or high.bit_count() > 1 or (high and low > high):
            raise InvalidRegex(f"invalid span of characters at {at}")
        if not low:  # starts beyond ASCII
            return 0
        return (_ALL if not high else (high << 1) - 1) & ~(low - 1)

    def _of_set(self) -> int:
        character = self._next()
        self._at += 1
        if not character:
            raise InvalidRegex("missing ] at the end")
        return self._escape() if character == "\\" else _mask(character)

    def _repeated(self, part: _Node) -> _Node:
        at = self._at
        bounds = self._bounds()
        if bounds is None:
            return part
        self._take("?")
        if self._next() in ("*", "+", "?") or self._bounds() is not None:
            raise InvalidRegex(f"repetition of a repetition at {at}")
        return _Repeat(part, *bounds)

    def _bounds(self) -> tuple[int, int | None] | None:
        for sign, bounds in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self._take(sign):
                return bounds
        if self._next() != "{":
            return None
        digits, closed, _ = self._text[self._at + 1 : self._at + 12].partition("}")
        low, comma, high = digits.partition(",")
        least, most = whole_number(low), whole_number(high)
        if not closed or least is None or (high and most is None):
            return None
        most = most if comma else least
        if max(least, most or 0) > REPEATS_MAX or (most is not None and most < least):
            raise InvalidRegex(f"invalid count of repetitions {{{digits}}}, at most {REPEATS_MAX}")
        self._at += len(digits) + 2
        return least, most


class _State:
    """State that consumes a character of `mask`, requires a border, or neither, and its targets."""

    __slots__ = ("border", "mask", "targets")

    def __init__(self, mask: int | None = None, border: str = "") -> None:
        self.mask = mask
        self.border = border
        self.targets: list[int] = []


class _Builder:
    """Builds the states of an expression; state 0 accepts."""

    def __init__(self) -> None:
        self.states = [_State()]

    def build(self, node: _Node, then: int) -> int:
        if isinstance(node, _Characters):
            return self._state(then, mask=node.mask)
        if isinstance(node, _Border):
            return self._state(then, border=node.kind)
        if isinstance(node, _Sequence):
            for part in reversed(node.parts):
                then = self.build(part, then)
            return then
        if isinstance(node, _Choice):
            return self._state(*[self.build(option, then) for option in node.options])
        return self._repeat(node, then)

    def _repeat(self, node: _Repeat, then: int) -> int:
        if node.most is None:
            loop = self._state(then)
            self.states[loop].targets.append(self.build(node.part, loop))
            then = loop
        else:
            end = then
            for _ in range(node.most - node.least):
                then = self._state(self.build(node.part, then), end)
        for _ in range(node.least):
            start = self.build(node.part, then)
            if start == then:  # the part matches the empty string only
                break
            then = start
        return then

    def _state(self, *targets: int, mask: int | None = None, border: str = "") -> int:
        if len(self.states) > STATES_MAX:
            raise InvalidRegex(f"the expression needs more than {STATES_MAX} states")
        state = _State(mask, border)
        state.targets += targets
        self.states.append(state)
        return len(self.states) - 1


_START: Final = "start"
_IN_WORD: Final = "word"
_ELSEWHERE: Final = "elsewhere"


class _Met(NamedTuple):
    """Cached set of states, the kind of character before it, and its transitions."""

    states: frozenset[int]
    behind: str
    steps: dict[str, int]


class Matcher:
    """Matches names and caches sets of states; belongs to one thread."""

    def __init__(self, states: Sequence[_State], start: int) -> None:
        self._states = states
        self._start = start
        self._forget()

    def _forget(self) -> None:
        self._met: list[_Met] = []
        self._numbers: dict[tuple[frozenset[int], str], int] = {}
        self._number(frozenset([self._start]), _START)

    def matches(self, name: str) -> bool:
        if not name.isascii():
            return False
        if len(self._met) > SETS_MAX:
            self._forget()
        number = 0
        for character in name:
            met = self._met[number]
            following = met.steps.get(character)
            if following is None:
                following = met.steps[character] = self._step(met, character)
            number = following
        met = self._met[number]
        accepts = met.steps.get("")
        if accepts is None:
            accepts = met.steps[""] = int(0 in self._closure(met, ""))
        return bool(accepts)

    def _number(self, states: frozenset[int], behind: str) -> int:
        known = self._numbers.setdefault((states, behind), len(self._met))
        if known == len(self._met):
            self._met.append(_Met(states, behind, {}))
        return known

    def _step(self, met: _Met, character: str) -> int:
        bit = 1 << ord(character)
        following = [
            self._states[state].targets[0]
            for state in self._closure(met, character)
            if (self._states[state].mask or 0) & bit
        ]
        behind = _IN_WORD if character in _WORD_CHARACTERS else _ELSEWHERE
        return self._number(frozenset(following), behind)

    def _closure(self, met: _Met, ahead: str) -> set[int]:
        """Return all states reachable without a character, before `ahead` (empty: the end)."""
        at_border = (met.behind == _IN_WORD) != (ahead in _WORD_CHARACTERS)
        holds = {"^": met.behind == _START, "$": not ahead, "b": at_border, "B": not at_border}
        found, left = set(met.states), list(met.states)
        while left:
            state = self._states[left.pop()]
            if state.mask is not None or not holds.get(state.border, True):
                continue
            for target in state.targets:
                if target not in found:
                    found.add(target)
                    left.append(target)
        return found


class TopicRegex:
    def __init__(self, states: Sequence[_State], start: int) -> None:
        self._states = states
        self._start = start

    def matcher(self) -> Matcher:
        return Matcher(self._states, self._start)


@lru_cache(maxsize=COMPILED_MAX)
def compile_regex(text: str) -> TopicRegex:
    """Compile an expression.

    Raises:
        InvalidRegex: its syntax is invalid or unsupported, or it is too large.
    """
    if len(text) > REGEX_CHARACTERS_MAX:
        raise InvalidRegex(f"{len(text)} characters, the limit is {REGEX_CHARACTERS_MAX}")
    builder = _Builder()
    start = builder.build(_Parser(text).parse(), 0)
    return TopicRegex(builder.states, start)
