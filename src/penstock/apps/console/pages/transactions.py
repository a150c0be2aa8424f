"""Pages of transactions: list, detail, abort."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final

from msgspec import Struct

from penstock.apps.console.formats import path
from penstock.apps.console.forms import form_of
from penstock.apps.console.pages.groups import call_all
from penstock.apps.console.rendering import Pages
from penstock.apps.console.requests import CallerRequests, refused
from penstock.apps.console.tables import Column, Filter, Table
from penstock.base.errors import InvalidError, PenstockError
from penstock.base.http_routes import Routes
from penstock.broker.admin.access import OPEN, Needs, caller_of
from penstock.broker.admin_app import status_of
from penstock.broker.assembly import Assembly
from penstock.broker.groups.runtime.saving import owner_of
from penstock.client.transactions import ABORT_TIMEOUT_MS, STATES, milliseconds

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

ONGOING: Final = "Ongoing"
DESCRIBE: Final = Needs(operation="describe", resource_type="transactional_id", named="id")
WRITE: Final = Needs(operation="write", resource_type="transactional_id", named="id")


class NotOpen(InvalidError):
    """Abort of a transactional id without an open transaction."""

    code: ClassVar[str] = "invalid_txn_state"


class ListedTransaction(Struct, frozen=True, kw_only=True):
    """Transactional id of the list; `broker` coordinates it."""

    name: str
    state: str
    producer_id: int
    broker: int


class Transaction(Struct, frozen=True, kw_only=True):
    """Transactional id with its newest transaction; `age_ms` is None if there was none."""

    name: str
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    start_ms: int | None
    age_ms: int | None
    broker: int
    partitions: Sequence[tuple[str, int]]


TRANSACTIONS: Final[Table[ListedTransaction]] = Table(
    Column(name="name", title="Transactional id", key=lambda row: row.name),
    Column(name="state", title="State", key=lambda row: row.state),
    Column(name="producer", title="Producer id", key=lambda row: row.producer_id, number=True),
    Column(name="broker", title="Coordinator", key=lambda row: row.broker, number=True),
    sort="name",
    text=lambda row: f"{row.name} {row.producer_id}",
    search="Search transactional ids",
    filters=(
        Filter(
            name="state",
            title="State",
            choices={"": "Any state", **{state: state for state in STATES}},
            test=lambda row, value: row.state == value,
        ),
    ),
)


class TransactionPages(Struct, frozen=True, kw_only=True):
    broker: Assembly
    pages: Pages
    requests: CallerRequests

    routes: ClassVar[Routes[Any, Needs]] = Routes()

    @routes.add("GET /console/transactions", OPEN, TRANSACTIONS.parameters)
    async def transactions(self, request: Request) -> Response:
        """Show the transactional ids that the caller may describe, of all reachable brokers."""
        caller = caller_of(request)
        body = {"state_filters": (), "producer_id_filters": (), "duration_filter": -1}
        answers, silent = await call_all(
            self.broker, self.requests, caller, "ListTransactions", body
        )
        found = [
            ListedTransaction(
                name=row.transactional_id,
                state=row.transaction_state,
                producer_id=int(row.producer_id),
                broker=broker_id,
            )
            for broker_id, answer in answers.items()
            for row in answer.transaction_states
            if caller.rights.allows("describe", "transactional_id", row.transactional_id)
        ]
        return self.pages.show(
            request,
            "transactions.html",
            title="Transactions",
            table=TRANSACTIONS.view(request, found),
            silent=silent,
        )

    @routes.add("GET /console/transactions/{id:path}", DESCRIBE)
    async def transaction(self, request: Request) -> Response:
        found = await self._described(request)
        allows = caller_of(request).rights.allows
        return self.pages.show(
            request,
            "transaction.html",
            title=found.name,
            transaction=found,
            may_abort=found.state == ONGOING and allows("write", "transactional_id", found.name),
        )

    async def _described(self, request: Request) -> Transaction:
        """Return the transactional id of a path; raises RequestRefused if it does not exist."""
        await self.broker.cluster.look()
        caller, name = caller_of(request), request.path_params["id"]
        broker_id = owner_of(self.broker.cluster.image, name).broker_id
        body = {"transactional_ids": [name]}
        answer = await self.requests.call(caller, "DescribeTransactions", body, broker_id)
        [row] = answer.transaction_states
        if row.error_code:
            raise refused(row.error_code, None, f"transactional id {name}")
        start_ms = milliseconds(row.transaction_start_time)
        return Transaction(
            name=name,
            state=row.transaction_state,
            producer_id=int(row.producer_id),
            producer_epoch=int(row.producer_epoch),
            timeout_ms=milliseconds(row.transaction_timeout) or 0,
            start_ms=start_ms,
            age_ms=None if start_ms is None else max(0, self.broker.clock.now_ms() - start_ms),
            broker=broker_id,
            partitions=[
                (topic.topic, int(index))
                for topic in row.topics
                for index in topic.partitions
                if caller.sees(topic.topic)
            ],
        )

    @routes.add("GET /console/transaction-abort/{id:path}", WRITE)
    async def preview_abort(self, request: Request) -> Response:
        return await self._abort_page(request)

    @routes.add("POST /console/transaction-abort/{id:path}", WRITE)
    async def abort(self, request: Request) -> Response:
        """Abort the open transaction of an id, and fence its producer."""
        name = request.path_params["id"]
        try:
            form_of(request).check_confirmed(name)
            found = await self._described(request)
            if found.state != ONGOING:
                raise NotOpen(f"{name} has no open transaction: its state is {found.state}")
            await self._fence(request, found)
        except PenstockError as error:
            return await self._abort_page(request, error)
        message = f"The transaction of {name} was aborted, and its producer is fenced."
        return self.pages.done(path("transactions", name), message)

    async def _fence(self, request: Request, found: Transaction) -> None:
        """Send InitProducerId, which aborts the transaction, to the coordinator."""
        caller = caller_of(request)
        body = {
            "transactional_id": found.name,
            "transaction_timeout": ABORT_TIMEOUT_MS,
            "producer_id": -1,
            "producer_epoch": -1,
        }
        if found.broker == self.broker.node_id:
            answer = await self.requests.call(caller, "InitProducerId", body)
        else:  # the route has checked the permission
            answer = await self.broker.peers.call(found.broker, "InitProducerId", body)
            caller.log.changed(200)
        if answer.error_code:
            raise refused(answer.error_code, None, f"transactional id {found.name}")

    async def _abort_page(self, request: Request, error: PenstockError | None = None) -> Response:
        found = await self._described(request)
        return self.pages.show(
            request,
            "transaction_abort.html",
            title=f"Abort the transaction of {found.name}",
            status=200 if error is None else status_of(error),
            transaction=found,
            ongoing=found.state == ONGOING,
            error=error,
        )
