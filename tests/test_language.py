"""The language of the project: counts of sentences and names that break CONTRIBUTING's rules.

The counts may only fall: a change that lowers one lowers its limit here too.
"""

from __future__ import annotations

import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from tests.source_facts import Document, facts_in

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("src", "tests", "docs")
OWN_FILES = {"tests/test_language.py"}
LIMITS: Final = {
    "headless docstring": 0,
    "private word in prose": 0,
    "private word in a message": 0,
    "private identifier": 0,
    "loop over `one`": 0,
    "see the module": 0,
}
SLACK: Final = 20
"""How far a count may lie below its limit before the limit has to follow."""
BASE: Final = "0b3c2d7111771fecc4a9ae62ffcf0e6886100ac3"
"""The commit after which subjects have their form."""
SUBJECT_CHARACTERS_MAX: Final = 72

OPENINGS: Final = (
    "What", "Who", "Whom", "Whose", "Which", "Where", "How", "Those", "That", "Of", "As", "By",
    "It is", "One", "All", "Nobody", "Somebody", "Nothing", "Whatever", "There is",
    "There are", "For whom", "With what", "In what",
)  # fmt: skip
"""Words with which no docstring begins."""
_HEADLESS: Final = re.compile(rf"(?:{'|'.join(OPENINGS)})\b")
_WHETHER: Final = re.compile(r"Whether\b")
PRIVATE: Final = (
    "told", "tells?", "heard", "given up", "gives? up", "let in", "whoever", "nobody", "somebody",
    "anew", "heir", "desk", "keeper", "settled?", "settling", "cure", "in vain", "is to be had",
    "for good", "of before", "at the least", "whence", "thereof", "lies? in", "stands? in",
    "goes on", "go on", "let go",
)  # fmt: skip
"""Words that a reader of Kafka's or PostgreSQL's documentation does not expect."""
_WORDS: Final = re.compile(rf"\b(?:{'|'.join(PRIVATE)})\b", re.IGNORECASE)
NAMES: Final = (
    "Desk", "Keeper", "Holed", "MendedLog", r"Said\b", "Owed", "Asker", r"(?<!t)heir",
    r"(?<!ead_)letters",
)  # fmt: skip
"""Parts of the names of classes and functions that other words have replaced."""
_LINES: Final = {
    "loop over `one`": re.compile(r"\bfor one\sin\b"),
    "see the module": re.compile(r"[Ss]ee the\smodule'?s (text|docstring)"),
    "private identifier": re.compile(rf"(?:class|def) \w*(?:{'|'.join(NAMES)})"),
}
_QUOTED: Final = re.compile(r"""f?["']([^"']{15,})["']""")
_SUBJECT: Final = re.compile(r"[a-z_/., ]+: [A-Z]")


def findings(path: Path, text: str) -> Iterator[tuple[str, int]]:
    """The kinds of findings in a Python file or a page, with their lines."""
    if path.suffix == ".md":
        yield from _of_page(text)
        return
    for document in facts_in(text).documents:
        yield from _of_docstring(document)
    yield from _of_lines(text)


def _of_page(text: str) -> Iterator[tuple[str, int]]:
    fenced = False
    for number, line in enumerate(text.splitlines(), 1):
        fenced ^= line.startswith("```")
        if not fenced and _WORDS.search(line):
            yield "private word in prose", number


def _of_docstring(document: Document) -> Iterator[tuple[str, int]]:
    at, doc, of_boolean = document
    if _HEADLESS.match(doc) or (_WHETHER.match(doc) and not of_boolean):
        yield "headless docstring", at
    if _WORDS.search(doc):
        for number, line in enumerate(doc.splitlines()):
            if _WORDS.search(line):
                yield "private word in prose", at + number


def _of_lines(text: str) -> Iterator[tuple[str, int]]:
    """Yield findings of single lines; almost no file has any, so search its whole text first."""
    for kind, pattern in _LINES.items():
        if pattern.search(text):
            for number, line in enumerate(text.splitlines(), 1):
                if pattern.search(line):
                    yield kind, number
    if _WORDS.search(text):
        for number, line in enumerate(text.splitlines(), 1):
            quoted = _QUOTED.search(line)
            if quoted and _WORDS.search(quoted[1]) and not line.lstrip().startswith('"""'):
                yield "private word in a message", number


def counted() -> dict[str, list[str]]:
    """The places of each kind of finding in the project."""
    places: dict[str, list[str]] = {kind: [] for kind in LIMITS}
    paths = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*"))]
    for path in [*paths, *sorted(ROOT.glob("*.md"))]:
        name = str(path.relative_to(ROOT))
        if path.suffix in (".py", ".md") and not name.endswith("_pb2.py") and name not in OWN_FILES:
            for kind, line in findings(path, path.read_text(encoding="utf-8")):
                places[kind].append(f"{name}:{line}")
    return places


@pytest.fixture(scope="module")
def places() -> dict[str, list[str]]:
    return counted()


def test_no_count_rises(places: dict[str, list[str]]) -> None:
    above = {
        kind: (len(places[kind]), limit, places[kind][:20])
        for kind, limit in LIMITS.items()
        if len(places[kind]) > limit
    }
    assert above == {}, "write these sentences as CONTRIBUTING.md says"


def test_limits_follow_the_counts(places: dict[str, list[str]]) -> None:
    counts = {kind: len(found) for kind, found in places.items()}
    behind = {kind: count for kind, count in counts.items() if LIMITS[kind] > count + SLACK}
    assert behind == {}, "lower LIMITS to these counts"


SOURCE: Final = '''
"""What is kept."""
class Desk:
    """See {the} module's text."""
def f():
    """Return what is {word}."""
    for {one} in []:
        raise ValueError("the leader has {word} of it")
'''


def test_each_kind_is_found() -> None:
    source = SOURCE.format(word=PRIVATE[2], one="one", the="the")
    found = Counter(kind for kind, _ in findings(Path("a.py"), source))
    assert found == dict.fromkeys(LIMITS, 1)
    assert [*findings(Path("a.md"), f"it is {PRIVATE[2]}\n```\n{PRIVATE[2]}\n```\n")] == [
        ("private word in prose", 1)
    ]


def misformed(subjects: list[str]) -> list[str]:
    """The subjects of commits without the form `room: Verb object`, or too long."""
    return [
        subject
        for subject in subjects
        if not _SUBJECT.match(subject) or len(subject) > SUBJECT_CHARACTERS_MAX
    ]


def test_subjects_of_commits() -> None:
    """An archive without the history has no subjects to check."""
    git = ["git", "-C", str(ROOT)]
    known = subprocess.run([*git, "cat-file", "-e", BASE], capture_output=True, check=False)
    listed = [*git, "log", "--no-merges", "--format=%s", f"{BASE}..HEAD"]
    log = subprocess.run(listed, capture_output=True, text=True, check=False).stdout
    assert known.returncode or misformed(log.splitlines()) == []
    wrong = ["Measure what it costs", "storage: append", f"storage: {'A' * 70}"]
    assert misformed(["storage: Append batches", *wrong]) == wrong
