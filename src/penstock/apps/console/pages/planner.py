"""Pages of the planner: forms with results and plots, saved plans, comparison of plans.

Every plan is an address: all fields are query parameters.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, ClassVar, Final

import msgspec
from msgspec import Struct

from penstock.apps.console.formats import path, query
from penstock.apps.console.forms import InvalidField, form_of
from penstock.apps.console.pages.plan_keys import keys_plan
from penstock.apps.console.pages.plan_kinds import KEYS, KINDS, PRESET, PlanKind
from penstock.apps.console.plans import NAME_CHARS_MAX, PlanStore, SavedPlan, UnknownPlan
from penstock.apps.console.rendering import Pages
from penstock.apps.console.requests import CallerRequests
from penstock.apps.console.tables import Column, Filter, Table
from penstock.base.errors import InvalidError, PenstockError
from penstock.base.http_routes import Routes
from penstock.broker.admin.access import DESCRIBE, Needs, caller_of
from penstock.broker.admin_app import status_of
from penstock.broker.assembly import Assembly
from penstock.planner.results import Figure, Plan, changed_rows
from penstock.security import CLUSTER, AuthorisationFailed

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from penstock.apps.console.messages.rules import Masking

SAVE: Final = Needs(operation="alter", audited=True)
COMPARED: Final = ("a", "b")
"""Parameters with the names of the plans to compare."""
INPUT_PREFIX: Final = "input-"
COMPUTED_MAX: Final = 1
"""Plans that are computed at the same time; further ones wait."""


class FigureGroup(Struct, frozen=True, kw_only=True):
    title: str
    figures: Sequence[Figure]
    has_minimum: bool
    has_setting: bool
    has_texts: bool


SAVED: Final[Table[SavedPlan]] = Table(
    Column(name="name", title="Plan", key=lambda row: row.name),
    Column(name="kind", title="Kind", key=lambda row: row.kind),
    Column(name="by", title="Saved by", key=lambda row: row.saved_by),
    Column(name="at", title="Saved at (UTC)", key=lambda row: row.saved_ms),
    Column(name="act", title=""),
    sort="name",
    text=lambda row: f"{row.name} {row.saved_by}",
    search="Search plans",
    filters=(
        Filter(
            name="kind",
            title="Kind",
            choices={"": "Any kind", **{kind.name: kind.title for kind in KINDS.values()}},
            test=lambda row, value: row.kind == value,
        ),
    ),
)


class PlannerPages(Struct, frozen=True, kw_only=True):
    broker: Assembly
    pages: Pages
    requests: CallerRequests
    store: PlanStore
    computing: asyncio.Semaphore
    masking: Masking | None

    routes: ClassVar[Routes[Any, Needs]] = Routes()

    @routes.add("GET /console/planner", DESCRIBE, SAVED.parameters)
    async def plans(self, request: Request) -> Response:
        """Show the kinds of plans, and the saved plans."""
        saved = await asyncio.to_thread(self.store.all)
        return self.pages.show(
            request,
            "planner.html",
            title="Planner",
            kinds=KINDS.values(),
            table=SAVED.view(request, saved),
            address=address,
            names={plan.name: f"{plan.name} ({plan.kind})" for plan in saved},
            may_save=_may_save(request),
        )

    @routes.add("GET /console/planner/capacity", DESCRIBE, KINDS["capacity"].parameters)
    @routes.add("GET /console/planner/cost", DESCRIBE, KINDS["cost"].parameters)
    @routes.add("GET /console/planner/receive-path", DESCRIBE, KINDS["receive-path"].parameters)
    @routes.add("GET /console/planner/choose", DESCRIBE, KINDS["choose"].parameters)
    @routes.add("GET /console/planner/keys", DESCRIBE, KINDS[KEYS].parameters)
    async def plan(self, request: Request) -> Response:
        """Show the plan of the kind with which the path ends."""
        return await self._plan_page(request, KINDS[request.url.path.rpartition("/")[2]])

    async def _plan_page(
        self,
        request: Request,
        kind: PlanKind,
        texts: Mapping[str, str] | None = None,
        error: PenstockError | None = None,
    ) -> Response:
        """Show the form of a kind and the plan of the given texts, or why there is none."""
        given = request.query_params if texts is None else texts
        given = {name: text for name, text in given.items() if text}
        plan, problem = await self._computed(request, kind, given)
        return self.pages.show(
            request,
            "plan.html",
            title=kind.title,
            status=200 if error is None else status_of(error),
            kind=kind,
            fields=kind.fields(given),
            given=given,
            preset=given.get(PRESET, ""),
            problem=problem,
            plan=plan,
            groups=[] if plan is None else _groups(plan),
            charts=[] if plan is None else _charts(plan),
            name_chars_max=NAME_CHARS_MAX,
            input_prefix=INPUT_PREFIX,
            may_save=_may_save(request),
            error=error,
        )

    async def _computed(
        self, request: Request, kind: PlanKind, given: Mapping[str, str]
    ) -> tuple[Plan | None, str]:
        """Return the plan, or None and the reason; raises AuthorisationFailed."""
        async with self.computing:
            try:
                if kind.name == KEYS:
                    caller = caller_of(request)
                    return await keys_plan(
                        self.broker, self.requests, caller, given, self.masking
                    ), ""
                return await asyncio.to_thread(kind.plan, given), ""
            except AuthorisationFailed:
                raise
            except InvalidError as error:
                return None, str(error)

    # -- saved plans ------------------------------------------------------------------------------

    @routes.add("POST /console/planner/save/{kind}", SAVE)
    async def save(self, request: Request) -> Response:
        """Save the inputs of a plan under a name, in place of an earlier plan of this name."""
        form, kind = form_of(request), _kind(request.path_params["kind"])
        inputs = {name: text for name, text in form.named(INPUT_PREFIX).items() if text}
        try:
            unknown = [name for name in inputs if name not in kind.parameters]
            if unknown:
                raise InvalidField(f"{kind.name} has no input {unknown[0][:64]!r}")
            plan, problem = await self._computed(request, kind, inputs)
            if plan is None:
                raise InvalidField(problem)
            saved = SavedPlan(
                name=form.text("name"),
                kind=kind.name,
                inputs=inputs,
                saved_by=str(caller_of(request).known.principal),
                saved_ms=self.broker.clock.now_ms(),
            )
            await asyncio.to_thread(self.store.save, saved)
        except PenstockError as error:
            return await self._plan_page(request, kind, inputs, error)
        return self.pages.done(address(saved), f"The plan was saved as {saved.name}.")

    @routes.add("GET /console/planner/delete/{plan:path}", Needs(operation="alter"))
    async def preview_delete(self, request: Request) -> Response:
        return await self._delete_page(request)

    @routes.add("POST /console/planner/delete/{plan:path}", SAVE)
    async def delete(self, request: Request) -> Response:
        name = request.path_params["plan"]
        try:
            form_of(request).check_confirmed(name)
            await asyncio.to_thread(self.store.delete, name)
        except PenstockError as error:
            return await self._delete_page(request, error)
        return self.pages.done(path("planner"), f"The plan {name} was deleted.")

    async def _delete_page(self, request: Request, error: PenstockError | None = None) -> Response:
        saved = await asyncio.to_thread(self.store.read, request.path_params["plan"])
        return self.pages.show(
            request,
            "plan_delete.html",
            title=f"Delete the plan {saved.name}",
            status=200 if error is None else status_of(error),
            saved=saved,
            error=error,
        )

    @routes.add("GET /console/planner/compare", DESCRIBE, COMPARED)
    async def compare(self, request: Request) -> Response:
        """Show the inputs and answers of two saved plans side by side."""
        names = [name for key in COMPARED if (name := request.query_params.get(key))]
        saved = [await asyncio.to_thread(self.store.read, name) for name in dict.fromkeys(names)]
        if len(saved) < 2:
            raise InvalidField("choose two different plans")
        if len({plan.kind for plan in saved}) > 1:
            kinds = ", ".join(f"{plan.name} is a plan of {plan.kind}" for plan in saved)
            raise InvalidField(f"only plans of one kind can be compared: {kinds}")
        kind = _kind(saved[0].kind)
        computed = [await self._computed(request, kind, plan.inputs) for plan in saved]
        plans = [plan for plan, _ in computed]
        return self.pages.show(
            request,
            "plan_compare.html",
            title="Compare plans",
            kind=kind,
            saved=saved,
            problems=[problem for _, problem in computed],
            inputs=_side_by_side([_inputs(plan) for plan in plans]),
            figures=_side_by_side([_answers(plan) for plan in plans]),
            address=address,
        )


def address(saved: SavedPlan) -> str:
    """Return the address of a saved plan."""
    return path("planner", saved.kind) + query(saved.inputs)


def _kind(name: str) -> PlanKind:
    if name not in KINDS:
        raise UnknownPlan(f"plan {name[:64]!r} must be one of {', '.join(KINDS)}")
    return KINDS[name]


def _may_save(request: Request) -> bool:
    return caller_of(request).rights.allows("alter", "cluster", CLUSTER)


def _groups(plan: Plan) -> list[FigureGroup]:
    """Return all figures by their groups, in order."""
    found: dict[str, list[Figure]] = {}
    for figure in plan.figures:
        found.setdefault(figure.group, []).append(figure)
    return [
        FigureGroup(
            title=title,
            figures=figures,
            has_minimum=any(figure.minimum is not None for figure in figures),
            has_setting=any(figure.setting for figure in figures),
            has_texts=any(isinstance(figure.value, str) for figure in figures),
        )
        for title, figures in found.items()
    ]


def _charts(plan: Plan) -> list[tuple[str, str]]:
    """Return the charts as titles and JSON; numbers that JSON does not have become null."""
    return [(chart.title, msgspec.json.encode(asdict(chart)).decode()) for chart in plan.charts]


def _inputs(plan: Plan | None) -> dict[str, str]:
    rows = [] if plan is None else changed_rows(plan.inputs)
    return {name: Figure(name, name, value, unit, "", "").text for name, value, unit, _ in rows}


def _answers(plan: Plan | None) -> dict[str, str]:
    return {} if plan is None else {figure.label: figure.text for figure in plan.answered}


def _side_by_side(columns: Sequence[Mapping[str, str]]) -> list[tuple[str, list[str], bool]]:
    """Return rows of label, texts, and whether the texts differ, for all labels of the columns."""
    labels = dict.fromkeys(label for column in columns for label in column)
    rows = [(label, [column.get(label, "") for column in columns]) for label in labels]
    return [(label, texts, len(set(texts)) > 1) for label, texts in rows]
