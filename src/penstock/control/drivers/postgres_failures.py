"""Classification of PostgreSQL failures: is the transaction repeated, and the connection kept?

| SQLSTATE            | cause                                  | transaction     | connection     |
|---------------------|----------------------------------------|-----------------|----------------|
| 40…                 | deadlock, serialisation failure        | repeated        | kept           |
| 08…, 57P…, none     | lost connection, restart, fail-over    | repeated¹       | closed         |
| 25006               | the server became a read-only standby  | repeated¹       | closed         |
| 53300               | too many connections                   | repeated        | closed         |
| 55P03               | lock timeout                           | fails           | kept           |
| 57014               | statement timeout, or cancelled        | fails           | kept           |
| 53100               | the disk is full                       | fails           | kept           |
| 22…                 | a value cannot be stored               | rejected        | kept           |
| 23…, 42…            | constraint or syntax: Penstock's fault | bug             | kept           |
| PK001               | Penstock's fence: a new cluster epoch  | rejected        | kept           |

¹ unless COMMIT was sent: then the outcome is unknown, and the error says so. A transaction that
PostgreSQL ended because it was idle (25P03) did not take effect, so it is repeated.

Source: PostgreSQL's appendix A, "PostgreSQL Error Codes".
"""

from __future__ import annotations

from typing import Final, NamedTuple

import asyncpg

from penstock.base.errors import BugError, PenstockError
from penstock.control.errors import (
    ControlUnavailable,
    DatabaseDamaged,
    DatabaseFull,
    DatabaseLocked,
    DatabaseRefused,
    DatabaseSlow,
    StaleClusterEpoch,
    UnstorableText,
)

FENCED: Final = "PK001"
_REPEATED_CLASS: Final = "40"
_LOST_CLASSES: Final = ("08", "57P")
_IDLE: Final = "25P03"
_LOST_STATES: Final = frozenset({"25006", "53300", _IDLE})
_UNAVAILABLE: Final[dict[str, type[ControlUnavailable]]] = {
    "55P03": DatabaseLocked,
    "57014": DatabaseSlow,
    "53100": DatabaseFull,
    "58030": DatabaseDamaged,
    "XX001": DatabaseDamaged,
    "XX002": DatabaseDamaged,
    "42P01": DatabaseDamaged,
    "42883": DatabaseDamaged,
    "42501": DatabaseRefused,
}

DATABASE_ERRORS: Final = (
    asyncpg.PostgresError,
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    OSError,  # TimeoutError is one
)


class Failure(NamedTuple):
    """The outcome of a failed transaction.

    `error` is raised to the caller. A `lost` connection must not be reused. `repeat` means that the
    work had no effect and may be retried.
    """

    error: PenstockError
    lost: bool
    repeat: bool


def classify(cause: BaseException, *, where: str, in_doubt: bool) -> Failure:
    """Classify a failure of work on a connection.

    `in_doubt` means that the work may have taken effect. `where` names the database in messages,
    without its password.
    """
    state = getattr(cause, "sqlstate", None) or ""
    if isinstance(cause, asyncpg.PostgresError) and not _is_loss(cause, state):
        return _of_statement(cause, state, where)
    if isinstance(cause, (asyncpg.DataError, UnicodeEncodeError)):
        return Failure(
            UnstorableText(f"{where} cannot store a value: {_text(cause)}"), False, False
        )
    reason = _text(cause) or type(cause).__name__
    # The driver reports a lost connection and keeps PostgreSQL's reason as the cause.
    in_doubt = in_doubt and _IDLE not in (state, getattr(cause.__cause__, "sqlstate", None))
    doubt = "; whether the change took effect is not known" if in_doubt else ""
    error = ControlUnavailable(f"{where} cannot be used now: {reason}{doubt}")
    error.__cause__ = cause
    return Failure(error, True, not in_doubt)


def of_connecting(cause: BaseException, *, where: str) -> Failure:
    """Classify a failure to connect. A failure that needs an administrator is not retried."""
    state = getattr(cause, "sqlstate", None) or ""
    reason = _text(cause) or type(cause).__name__
    final = state.startswith("28") or state == "3D000"
    kind = DatabaseRefused if final else ControlUnavailable
    error = kind(f"cannot connect to {where}: {reason}")
    error.__cause__ = cause
    return Failure(error, True, not final)


def _is_loss(cause: asyncpg.PostgresError, state: str) -> bool:
    if state.startswith(_LOST_CLASSES) or state in _LOST_STATES:
        return True
    # Plans from before a migration; a new connection makes new ones.
    return isinstance(cause, asyncpg.InvalidCachedStatementError)


def _of_statement(cause: asyncpg.PostgresError, state: str, where: str) -> Failure:
    text = f"{where}: {_text(cause)}"
    error: PenstockError
    if state.startswith(_REPEATED_CLASS):
        return Failure(_caused(ControlUnavailable(text), cause), False, True)
    if state in _UNAVAILABLE:
        error = _UNAVAILABLE[state](text)
    elif state.startswith("22"):
        error = UnstorableText(f"{where} cannot store a value: {_text(cause)}")
    elif state == FENCED:
        expected, found = (int(number) for number in str(cause.detail).split())
        error = StaleClusterEpoch(expected, found)
    elif state.startswith(("23", "42")):
        error = BugError(text)
    else:
        error = ControlUnavailable(text)
    return Failure(_caused(error, cause), False, False)


def _caused(error: PenstockError, cause: BaseException) -> PenstockError:
    error.__cause__ = cause
    return error


def _text(cause: BaseException) -> str:
    return str(cause).split("\n", 1)[0]
