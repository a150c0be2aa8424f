"""Checks of column protection that need only the file; `analysis.py` checks columns and types."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from penstock.security.data.masks import KEPT_MAX
from penstock.security.data.tokens import InvalidTokenForm, TokenForm
from penstock.spark.pipeline.draft import Draft, Section

_OWN: Final[Mapping[str, tuple[str, ...]]] = {
    "mask": ("kind", "first", "last", "text"),
    "tokenize": ("field", "form", "length"),
    "encrypt": ("subject",),
    "decrypt": ("subject", "gives"),
}
_COMPARED: Final = ("keys", "order_by", "partition_by")
"""Keys of table sinks whose columns are compared for equality."""


def check(draft: Draft) -> None:
    for view in draft.views():
        for protection in draft.protections.get(view.key, ()):
            by = protection.get("by")
            if by is not None:
                _parameters(draft, protection, by)
                _place(draft, view, protection, by)
    _needs_keys(draft)
    _equal_no_more(draft)
    if draft.run.given("master_key") and not draft.run.given("keys"):
        draft.refuse(
            ("run", "master_key"), "has no keyring that it is of", 'add keys = "…" to [run]'
        )


def _parameters(draft: Draft, one: Section, by: str) -> None:
    for other, names in _OWN.items():
        for name in one.which(*names):
            if name not in _OWN[by]:
                draft.refuse(
                    (*one.key, name), f"is only for {other}, and this is {by}", f"take {name} away"
                )
    if by in {"encrypt", "decrypt"} and not one.given("subject"):
        draft.refuse(one.key, f"{by} needs subject", 'add subject = "customer", whose key it is')
    if by == "mask":
        _mask(draft, one)
    if by == "tokenize":
        given = {name: one.get(name) for name in ("form", "length") if one.get(name) is not None}
        try:
            TokenForm(**given)
        except InvalidTokenForm as error:
            fix = "choose another length, or another form"
            draft.refuse((*one.key, *one.which("length", "form")[:1]), str(error), fix)


def _mask(draft: Draft, one: Section) -> None:
    kind = one.get("kind") or ("all" if not one.given("kind") else None)
    if kind is None:
        return
    if kind == "keep" and not one.which("first", "last"):
        draft.refuse(one.key, "keep needs first or last", "add last = 4")
    for name in one.which("text") if kind == "keep" else one.which("first", "last"):
        whose = "masks but keep" if name == "text" else "the mask keep"
        said = f"is only for {whose}, and this is {kind}"
        draft.refuse((*one.key, name), said, f"take {name} away")
    for name in ("first", "last"):
        shown = one.get(name) or 0
        if shown > KEPT_MAX:
            said = f"is {shown}, must be from 0 to {KEPT_MAX}"
            draft.refuse((*one.key, name), said, "show fewer")


def _place(draft: Draft, view: Section, one: Section, by: str) -> None:
    if by == "decrypt" and view.key[0] == "step":
        draft.refuse(
            one.key, "decrypt is for sources of topics, and this is a step",
            "decrypt it in the source",
        )  # fmt: skip


def _needs_keys(draft: Draft) -> None:
    if draft.run.given("keys"):
        return
    for protection in _all(draft):
        by = protection.get("by")
        if by is not None and by != "mask":
            draft.refuse(
                ("run", "keys"), f"names no keyring, and {by} needs one",
                'make one with `penstock keys init`, and add keys = "…" to [run]',
                under=protection.key,
            )  # fmt: skip
            return


def _all(draft: Draft) -> Iterator[Section]:
    for view in draft.views():
        yield from draft.protections.get(view.key, ())


def _equal_no_more(draft: Draft) -> None:
    """Reject comparisons of encrypted columns, whose values differ each time."""
    sealed = {
        view.name.lower(): {
            protection.name
            for protection in draft.protections.get(view.key, ())
            if protection.get("by") == "encrypt"
        }
        for view in draft.views()
    }
    fix = "tokenize it: equal values are equal tokens"
    for view in draft.views():
        for column in view.get("deduplicate") or ():
            if column in sealed[view.name.lower()]:
                said = f"{column} is encrypted, and equal values are not equal any more"
                draft.refuse((*view.key, "deduplicate"), said, fix)
    for sink in draft.sinks.values():
        for name in sink.which(*_COMPARED):
            given = sink.get(name) or ()
            for column in (given,) if isinstance(given, str) else given:
                if column in sealed.get((sink.get("from") or "").lower(), ()):
                    said = f"{column} is encrypted, and equal values are not equal any more"
                    draft.refuse((*sink.key, name), said, fix)
