"""Settings: frozen, validated, and documented where they are declared.

A settings class is a frozen dataclass whose fields are declared by `setting`. The metadata of a
field has the dotted name (Kafka's name if Kafka has the setting), the unit, the bounds and the
documentation. `load` constructs an object from a mapping of dotted names to text or TOML values.
`describe` returns the declarations, for the generated configuration reference and DescribeConfigs.

Source: slatedb's RFC-0010 (settings are not components); Kafka's `ConfigDef`.
"""

from __future__ import annotations

import dataclasses
import math
import re
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, fields
from typing import Any, Final, TypeVar

from penstock.base.errors import InvalidSetting

_KEY: Final = "penstock.setting"
_UNITS: Final = frozenset({"bytes", "ms", "minutes", "hours"})

LONG_MAX: Final = 2**63 - 1
INT_MAX: Final = 2**31 - 1
_DIGITS_MAX: Final = 300
"""Largest number of digits of a number, including leading zeros."""
_WHOLE: Final = re.compile(rf"[+-]?[0-9]{{1,{_DIGITS_MAX}}}")
_DECIMAL: Final = re.compile(
    rf"[+-]?(?=[.]?[0-9])[0-9]{{0,{_DIGITS_MAX}}}(?:[.][0-9]{{0,{_DIGITS_MAX}}})?(?:[eE][+-]?[0-9]{{1,3}})?"
)

HIDDEN: Final = "[hidden]"
"""Text shown in place of a secret."""

S = TypeVar("S")
Value = int | float | bool | str | tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class NoEffect:
    """Reason why a setting has no effect; it is accepted with a warning."""

    why: str

    def __str__(self) -> str:
        return f"it has no effect: {self.why}"


@dataclass(frozen=True, slots=True)
class Kind:
    """Type of setting values that is no Python type.

    `words` is its name in the reference. `convert` parses a value, and raises a `ValueError` that
    explains why the value is invalid.
    """

    words: str
    convert: Callable[[Any], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingInfo:
    """Declaration of a setting.

    `unit` is empty for words and counts. `like` is the name of the setting of another class for
    which this one is the default, or empty. `shown` is the text for the default in the reference
    if the value alone is not enough.
    """

    name: str
    doc: str
    unit: str
    default: Value
    minimum: float | None
    maximum: float | None
    choices: tuple[str, ...]
    pattern: str
    no_effect: NoEffect | None
    like: str
    kind: Kind | None
    shown: str
    secret: bool
    type_name: str
    attribute: str


def setting(
    default: Any,
    doc: str,
    minimum: float | None = None,
    maximum: float | None = None,
    *,
    name: str = "",
    unit: str | None = None,
    choices: tuple[str, ...] = (),
    pattern: str = "",
    no_effect: NoEffect | None = None,
    kind: Kind | None = None,
    shown: str = "",
    secret: bool = False,
) -> Any:
    """Declare one field of a settings class.

    The type of the setting is `kind`, or the field's annotation: `int`, `float`, `bool`, `str` or
    `tuple[str, ...]` (a comma-separated list in text form). A default of `MISSING` means that the
    setting is required. Bounds are inclusive. `choices` are the allowed words, `pattern` is a
    regular expression for the text form. The reason in `no_effect` becomes part of the
    documentation. A `secret` value is never shown.

    The default of `name` is the class's `PREFIX` and the name of the attribute, with dots or the
    class's `SEPARATOR` instead of underscores. The default of `unit` is the last unit in the name
    (`retention.ms`).
    """
    metadata = {
        "name": name,
        "doc": doc if no_effect is None else f"{doc} It has no effect: {no_effect.why}.",
        "unit": unit,
        "minimum": minimum,
        "maximum": maximum,
        "choices": choices,
        "pattern": pattern,
        "no_effect": no_effect,
        "like": "",
        "kind": kind,
        "shown": shown,
        "secret": secret,
    }
    return field(default=default, repr=not secret, metadata={_KEY: metadata})


def like(info: SettingInfo, *, name: str = "", **changes: Any) -> Any:
    """Declare a field that is the default for `info`, a setting of another class.

    The declaration is that of `info` with `changes`.
    """
    metadata = {item.name: getattr(info, item.name) for item in fields(SettingInfo)}
    metadata |= {"like": info.name, "name": name, "unit": None, **changes}
    del metadata["type_name"], metadata["attribute"]
    return field(default=metadata.pop("default"), metadata={_KEY: metadata})


def describe(settings_type: type[Any]) -> Iterable[SettingInfo]:
    return by_name(settings_type).values()


def by_name(settings_type: type[Any]) -> Mapping[str, SettingInfo]:
    if settings_type not in _BY_NAME:
        _BY_NAME[settings_type] = {info.name: info for info in _declared(settings_type)}
    return _BY_NAME[settings_type]


_BY_NAME: Final[dict[type[Any], Mapping[str, SettingInfo]]] = {}
"""Cache of the declarations by settings class. There are a few dozen classes."""


def _declared(settings_type: type[Any]) -> Iterator[SettingInfo]:
    hints = typing.get_type_hints(settings_type)
    for item in fields(settings_type):
        meta = item.metadata.get(_KEY)
        if meta is None:
            continue
        hint = hints[item.name]
        type_name = hint.__name__ if isinstance(hint, type) and hint in _SCALARS else "list"
        separator = getattr(settings_type, "SEPARATOR", ".")
        prefix = getattr(settings_type, "PREFIX", "")
        name = meta["name"] or prefix + item.name.replace("_", separator)
        units = [word for word in name.split(".") if word in _UNITS]
        own = {"name": name, "unit": (units or [""])[-1] if meta["unit"] is None else meta["unit"]}
        yield SettingInfo(
            default=typing.cast("Value", item.default),
            type_name=type_name,
            attribute=item.name,
            **{**meta, **own},
        )


def load(settings_type: type[S], values: Mapping[str, object]) -> S:
    """Construct a settings object from values by dotted name; missing names keep their defaults.

    Raises:
        InvalidSetting: an unknown name, a wrong type, or a value out of bounds. The message names
            the setting, the value and the rule. For a rule between two settings, it names the one
            that is in `values`.
    """
    known = by_name(settings_type)
    arguments: dict[str, Value] = {}
    for name, value in values.items():
        info = known.get(name)
        if info is None:
            raise InvalidSetting(name, value, unknown(name, known))
        arguments[info.attribute] = parse(info, value)
    try:
        return settings_type(**arguments)
    except InvalidSetting as error:
        others = [name for name in values if error.name not in values and name in error.reason]
        if not others:
            raise
        other = max(others, key=len)  # a name may be a prefix of another
        rule = f"{error.name} is {error.value!r}, which {error.reason}"
        raise InvalidSetting(other, values[other], rule) from None


def unknown(name: str, known: Iterable[str]) -> str:
    """Return the error message for an unknown setting, with the most similar known name."""
    import difflib

    close = difflib.get_close_matches(name, known, n=1)
    return "there is no setting of this name" + (f"; did you mean {close[0]}?" if close else "")


def parse(
    info: SettingInfo, value: object, refusal: type[InvalidSetting] = InvalidSetting
) -> Value:
    """Return a value in the setting's type, after checks against the declaration.

    `value` is text, or already has the type.

    Raises:
        InvalidSetting: wrong type, out of bounds, or not one of the choices. `refusal` is the class
            of the error.
    """
    try:
        return _parsed(info, value)
    except ValueError as error:
        shown = HIDDEN if info.secret else value
        raise refusal(info.name, shown, str(error)) from error


def _parsed(info: SettingInfo, value: object) -> Value:
    parsed: Value = info.kind.convert(value) if info.kind else _PARSERS[info.type_name](value)
    if isinstance(parsed, (int, float)) and not isinstance(parsed, bool):
        if info.minimum is not None and parsed < info.minimum:
            raise ValueError(f"must be at least {_number(info.minimum)}")
        if info.maximum is not None and parsed > info.maximum:
            raise ValueError(f"must be at most {_number(info.maximum)}")
    if info.choices:
        words = parsed if isinstance(parsed, tuple) else (parsed,)
        if any(str(word) not in info.choices for word in words):
            raise ValueError(f"must be one of {', '.join(info.choices)}")
    if info.pattern and not re.fullmatch(info.pattern, render(parsed)):
        raise ValueError(f"must have the form {info.pattern}")
    return parsed


def check(settings: Any) -> None:
    """Check a settings object that was constructed directly, by the rules of `load`.

    Raises:
        InvalidSetting: wrong type, out of bounds, or not one of the choices.
    """
    for info in describe(type(settings)):
        parse(info, getattr(settings, info.attribute))


def without_effect(info: SettingInfo, value: object) -> str:
    """Return a warning if a setting has no effect and `value` is not its default, else empty text.

    Raises:
        InvalidSetting: as `parse`.
    """
    rule, parsed = info.no_effect, parse(info, value)
    if rule is None or parsed == info.default:
        return ""
    return f"setting {info.name} = {render(parsed)!r}: {rule}"


def render(value: Value) -> str:
    """Return the text form of a value, which `parse` accepts and Kafka's tools show."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return ",".join(value)
    return str(value)


def to_mapping(settings: Any) -> dict[str, str]:
    """Return the text values of a settings object by dotted name; secrets are hidden."""
    return {
        info.name: HIDDEN if info.secret else render(getattr(settings, info.attribute))
        for info in describe(type(settings))
    }


def replace(settings: S, changes: Mapping[str, object]) -> S:
    """Return a copy of `settings` with the values in `changes`, by dotted name.

    Raises:
        InvalidSetting: as `load` does.
    """
    known = by_name(type(settings))
    parsed: dict[str, Any] = {}
    for name, value in changes.items():
        if name not in known:
            raise InvalidSetting(name, value, unknown(name, known))
        parsed[known[name].attribute] = parse(known[name], value)
    return typing.cast("S", dataclasses.replace(typing.cast("Any", settings), **parsed))


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() else str(value)


def whole_number(text: str, maximum: int = LONG_MAX) -> int | None:
    """Return the number in `text`; None unless it has only digits 0 to 9 and is at most `maximum`.

    Unlike Python's `int`, this rejects underscores, white space and digits of other scripts, and
    never raises an error.
    """
    if not (text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX):
        return None
    number = int(text)
    return number if number <= maximum else None


def _parse_int(value: object) -> int:
    if isinstance(value, str) and _WHOLE.fullmatch(value.strip()):
        value = int(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise ValueError("must be a whole number")


def _parse_float(value: object) -> float:
    if isinstance(value, str) and _DECIMAL.fullmatch(value.strip()):
        value = float(value)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        with suppress(OverflowError):
            if math.isfinite(value):
                return float(value)
    raise ValueError("must be a number")


def _parse_bool(value: object) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.strip().lower() in {"true", "false"}:
        return value.strip().lower() == "true"
    raise ValueError("must be true or false")


def _parse_str(value: object) -> str:
    if isinstance(value, str):
        return value.strip()
    raise ValueError("must be text")


def parse_list(value: object) -> tuple[str, ...]:
    """Return the words of a list, or of a comma-separated text; raises ValueError."""
    if isinstance(value, str):
        return tuple(word.strip() for word in value.split(",") if word.strip())
    if isinstance(value, (list, tuple)) and all(isinstance(word, str) for word in value):
        return tuple(value)
    raise ValueError("must be a list of words, separated by commas")


_SCALARS: Final = (int, float, bool, str)
_PARSERS: Final[Mapping[str, Callable[[object], Value]]] = {
    "int": _parse_int,
    "float": _parse_float,
    "bool": _parse_bool,
    "str": _parse_str,
    "list": parse_list,
}
