"""Settings: declaration, parsing, bounds and the text form."""

from __future__ import annotations

import json
import math
from contextlib import suppress
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import settings as runs
from hypothesis import strategies as st

from penstock.base import settings
from penstock.base.errors import InvalidSetting
from penstock.base.settings import LONG_MAX, setting, whole_number
from tests.formats.drawn import EXAMPLES


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    retention_ms: int = setting(
        10, name="retention.ms", doc="How long.", unit="ms", minimum=-1, maximum=100
    )
    ratio: float = setting(0.5, name="ratio", doc="A share.", minimum=0, maximum=1)
    enabled: bool = setting(False, name="enabled", doc="Whether.")
    policy: str = setting("group", name="policy", doc="Which.", choices=("group", "os"))
    cleanup: tuple[str, ...] = setting(
        ("delete",), name="cleanup", doc="Ways.", choices=("delete", "compact")
    )


def test_says_what_has_no_effect() -> None:
    idle = settings.NoEffect(why="it is not built")

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Idle:
        reserve: bool = setting(False, name="reserve", doc="Whether.", no_effect=idle)

    (reserve,) = settings.describe(Idle)
    said = settings.without_effect
    assert reserve.doc == "Whether. It has no effect: it is not built."
    assert said(reserve, "true") == "setting reserve = 'true': it has no effect: it is not built"
    assert said(reserve, "FALSE") == ""
    with pytest.raises(InvalidSetting, match="must be true or false"):
        said(reserve, "perhaps")


def test_names_left_out_keep_their_defaults() -> None:
    assert settings.load(Sample, {"ratio": "0.25"}) == Sample(ratio=0.25)


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("retention.ms", "-1", -1),
        ("retention.ms", 7, 7),
        ("ratio", "1", 1.0),
        ("enabled", "TRUE", True),
        ("enabled", False, False),
        ("policy", "os", "os"),
        ("cleanup", "compact, delete", ("compact", "delete")),
        ("cleanup", ["compact"], ("compact",)),
    ],
)
def test_text_and_typed_values_are_read(name: str, text: object, value: object) -> None:
    loaded = settings.load(Sample, {name: text})
    attribute = next(info.attribute for info in settings.describe(Sample) if info.name == name)
    assert getattr(loaded, attribute) == value


@pytest.mark.parametrize(
    ("name", "value", "rule"),
    [
        ("retention.ms", "101", "at most 100"),
        ("retention.ms", -2, "at least -1"),
        ("retention.ms", "soon", "whole number"),
        ("retention.ms", True, "whole number"),
        ("ratio", "x", "number"),
        ("enabled", "yes", "true or false"),
        ("policy", "never", "one of group, os"),
        ("policy", 3, "text"),
        ("cleanup", "delete,shrink", "one of delete, compact"),
        ("cleanup", 5, "list of words"),
        ("retention.m", 5, "no setting of this name"),
    ],
)
def test_a_bad_value_names_the_setting_the_value_and_the_rule(
    name: str, value: object, rule: str
) -> None:
    with pytest.raises(InvalidSetting) as caught:
        settings.load(Sample, {name: value})
    message = str(caught.value)
    assert name in message
    assert repr(value) in message
    assert rule in message


@given(
    st.builds(
        Sample,
        retention_ms=st.integers(-1, 100),
        ratio=st.floats(0, 1),
        enabled=st.booleans(),
        policy=st.sampled_from(["group", "os"]),
        cleanup=st.lists(st.sampled_from(["delete", "compact"]), unique=True).map(tuple),
    )
)
def test_the_text_form_is_read_back(value: Sample) -> None:
    assert settings.load(Sample, settings.to_mapping(value)) == value


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbers:
    whole: int = setting(0, name="whole", doc="A whole number.")
    number: float = setting(0.0, name="number", doc="A number.")


NUMERALS = st.one_of(
    st.integers(-(2**70), 2**70).map(str),
    st.floats().map(repr),
    st.text("0123456789", min_size=1, max_size=5_000),
    st.lists(st.sampled_from(["0", "7", "12", "_", "+", "-", ".", "e", " ", "٣", "²", "x", "1e400",
                              "nan", "inf", "\n", "\u2003", ""]), max_size=5).map("".join),
)  # fmt: skip


@runs(max_examples=EXAMPLES)
@given(NUMERALS)
def test_numbers_are_those_of_json_and_nothing_else(text: str) -> None:
    """JSON has the digits 0 to 9 alone; a sign, leading zeros and blanks around may be added."""
    bare = text.strip().removeprefix("+")
    sign = "-" if bare.startswith("-") and text.strip()[0] == "-" else ""
    bare = bare.removeprefix(sign).lstrip("0") or bare[-1:]
    expected: int | float | None = None
    with suppress(ValueError):
        expected = json.loads(sign + bare)
    for name in ("whole", "number"):
        try:
            found = getattr(settings.load(Numbers, {name: text}), name)
        except InvalidSetting:
            found = None
        if found is not None:
            assert math.isfinite(found)
            assert found == float(text) if name == "number" else found == expected
        elif expected is not None and len(text) < 300 and math.isfinite(expected):
            assert (name, type(expected)) == ("whole", float)


@runs(max_examples=EXAMPLES)
@given(NUMERALS)
def test_whole_numbers_have_ascii_digits_alone(text: str) -> None:
    found = whole_number(text)
    digits = len(text) <= 300 and text != "" and all(char in "0123456789" for char in text)
    assert found == (int(text) if digits and int(text) <= LONG_MAX else None)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 10**400])
def test_numbers_are_finite(value: float) -> None:
    with pytest.raises(InvalidSetting, match="must be a number"):
        settings.load(Numbers, {"number": value})


def test_replace_changes_only_what_is_named() -> None:
    assert settings.replace(Sample(ratio=0.1), {"enabled": "true"}) == Sample(
        ratio=0.1, enabled=True
    )
    with pytest.raises(InvalidSetting, match="no setting of this name"):
        settings.replace(Sample(), {"other": "1"})


def test_describe_returns_type_unit_and_bounds() -> None:
    first = next(iter(settings.describe(Sample)))
    assert (first.name, first.type_name, first.unit, first.minimum, first.maximum) == (
        "retention.ms",
        "int",
        "ms",
        -1,
        100,
    )
