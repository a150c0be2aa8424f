"""Settings: declaration, parsing, bounds and the text form."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.base import settings
from penstock.base.errors import InvalidSetting
from penstock.base.settings import setting


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
    assert reserve.doc == "Whether. Not yet: it has no effect: it is not built."
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


def test_replace_changes_only_what_is_named() -> None:
    assert settings.replace(Sample(ratio=0.1), {"enabled": "true"}) == Sample(
        ratio=0.1, enabled=True
    )
    with pytest.raises(InvalidSetting, match="no setting of this name"):
        settings.replace(Sample(), {"other": "1"})


def test_describe_tells_type_unit_and_bounds() -> None:
    first = next(iter(settings.describe(Sample)))
    assert (first.name, first.type_name, first.unit, first.minimum, first.maximum) == (
        "retention.ms",
        "int",
        "ms",
        -1,
        100,
    )
