"""Pages of users with passwords (SCRAM): list, create, change password, delete."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final

from msgspec import Struct

from penstock.apps.console.formats import path
from penstock.apps.console.forms import Form, InvalidField, form_of
from penstock.apps.console.pages.access import ALTER, list_acls
from penstock.apps.console.rendering import Pages
from penstock.apps.console.requests import CallerRequests, check_rows, refused
from penstock.apps.console.tables import Column, Table
from penstock.base.errors import InvalidError, PenstockError
from penstock.base.http_listener import client_address, is_loopback
from penstock.base.http_routes import Routes
from penstock.broker.admin.access import DESCRIBE, Caller, Needs, caller_of
from penstock.broker.admin_app import status_of
from penstock.broker.assembly import Assembly
from penstock.security import CLUSTER
from penstock.security.acls import AclFilter
from penstock.security.credentials import (
    BY_NUMBER,
    HASHES,
    ITERATIONS,
    ITERATIONS_MAX,
    NUMBERS,
    SCRAM_SHA_512,
    new_salt,
    salted_password,
)

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response


class UnknownUser(InvalidError):
    """User that has no password in the cluster."""

    code: ClassVar[str] = "resource_not_found"


class ListedUser(Struct, frozen=True, kw_only=True):
    """User with the iterations of its password by mechanism."""

    name: str
    mechanisms: Mapping[str, int]


USERS: Final[Table[ListedUser]] = Table(
    Column(name="name", title="User", key=lambda row: row.name),
    Column(name="mechanisms", title="Mechanisms", key=lambda row: sorted(row.mechanisms)),
    Column(name="act", title=""),
    sort="name",
    text=lambda row: row.name,
    search="Search users",
)


class UserPages(Struct, frozen=True, kw_only=True):
    broker: Assembly
    pages: Pages
    requests: CallerRequests

    routes: ClassVar[Routes[Any, Needs]] = Routes()

    @routes.add("GET /console/users", DESCRIBE, USERS.parameters)
    async def users(self, request: Request) -> Response:
        caller = caller_of(request)
        return self.pages.show(
            request,
            "users.html",
            title="Users",
            table=USERS.view(request, await self._listed(caller)),
            may_alter=caller.rights.allows("alter", "cluster", CLUSTER),
        )

    async def _listed(self, caller: Caller) -> list[ListedUser]:
        answer = await self.requests.call(caller, "DescribeUserScramCredentials", {"users": None})
        if answer.error_code:
            raise refused(answer.error_code, answer.error_message, "users")
        return [
            ListedUser(
                name=row.user,
                mechanisms={
                    BY_NUMBER[info.mechanism]: info.iterations for info in row.credential_infos
                },
            )
            for row in answer.results
        ]

    @routes.add("GET /console/user-password", ALTER, ("user",))
    async def form(self, request: Request) -> Response:
        """Show the form for a new user, or for another password of the user in the parameter."""
        return self._form(request, Form({"user": [request.query_params.get("user", "")]}))

    @routes.add("POST /console/user-password", ALTER)
    async def set_password(self, request: Request) -> Response:
        """Create a user, or change the password of one mechanism."""
        form = form_of(request)
        name, mechanism = form.text("user"), form.text("mechanism", SCRAM_SHA_512)
        try:
            password = _password(form)
            if mechanism not in HASHES:
                raise InvalidField(
                    f"mechanism {mechanism[:64]!r} must be one of {', '.join(HASHES)}"
                )
            given = form.text("iterations", str(ITERATIONS))
            iterations = Form({"n": [given]}).number("n", "Iterations", ITERATIONS_MAX)
            salt = new_salt(self.broker.randomness)
            salted = await asyncio.to_thread(salted_password, mechanism, password, salt, iterations)
            upsertion = {
                "name": name,
                "mechanism": NUMBERS[mechanism],
                "iterations": iterations,
                "salt": salt,
                "salted_password": salted,
            }
            await self._alter(request, {"deletions": [], "upsertions": [upsertion]})
        except PenstockError as error:
            return self._form(request, form, error)
        return self.pages.done(path("users"), f"User {name} has a new password for {mechanism}.")

    async def _alter(self, request: Request, body: Mapping[str, Any]) -> None:
        answer = await self.requests.call(caller_of(request), "AlterUserScramCredentials", body)
        check_rows(answer.results, "user")

    def _form(self, request: Request, form: Form, error: PenstockError | None = None) -> Response:
        known = request.query_params.get("user", "")
        return self.pages.show(
            request,
            "user_password.html",
            title="Change a password" if known else "Create a user",
            status=200 if error is None else status_of(error),
            form=form,
            known=known,
            mechanisms={name: name for name in reversed(HASHES)},
            iterations=ITERATIONS,
            iterations_max=ITERATIONS_MAX,
            exposed=request.url.scheme != "https" and not is_loopback(client_address(request)),
            error=error,
        )

    @routes.add("GET /console/user-delete/{user:path}", ALTER)
    async def preview_delete(self, request: Request) -> Response:
        return await self._delete_page(request)

    @routes.add("POST /console/user-delete/{user:path}", ALTER)
    async def delete(self, request: Request) -> Response:
        """Delete all passwords of a user."""
        name = request.path_params["user"]
        try:
            form_of(request).check_confirmed(name)
            user = await self._user(request)
            for mechanism in user.mechanisms:  # a request may name each user once
                deletion = {"name": name, "mechanism": NUMBERS[mechanism]}
                await self._alter(request, {"deletions": [deletion], "upsertions": []})
        except PenstockError as error:
            return await self._delete_page(request, error)
        return self.pages.done(path("users"), f"User {name} was deleted.")

    async def _user(self, request: Request) -> ListedUser:
        name = request.path_params["user"]
        for user in await self._listed(caller_of(request)):
            if user.name == name:
                return user
        raise UnknownUser(f"user {name!r} has no password in this cluster")

    async def _delete_page(self, request: Request, error: PenstockError | None = None) -> Response:
        user = await self._user(request)
        principal = f"User:{user.name}"
        acls = []
        if self.broker.authoriser.refuses:
            chosen = AclFilter(principal=principal)
            acls = await list_acls(self.requests, caller_of(request), chosen)
        return self.pages.show(
            request,
            "user_delete.html",
            title=f"Delete user {user.name}",
            status=200 if error is None else status_of(error),
            account=user,
            principal=principal,
            acls=len(acls),
            error=error,
        )


def _password(form: Form) -> str:
    """Return the password, which is typed twice, as it is; raises InvalidField."""
    typed = [(*form.texts(name), "")[0] for name in ("password", "again")]
    if typed[0] != typed[1]:
        raise InvalidField("the two passwords differ")
    return typed[0]
