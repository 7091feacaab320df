"""What PostgreSQL says, told as what happened and what to do about it."""

from __future__ import annotations

import psycopg
from psycopg import errors

from outlast.errors import StoreCorruptError, StoreError, StoreUnavailableError
from outlast.store.bound import CORRUPT, UNSTORABLE
from outlast.store.change import Refused


class UnreplicatedError(psycopg.OperationalError):
    """Somebody has ended a commit's wait for its standby: it is written on this server, and perhaps on no other."""


AGAIN = (
    errors.SerializationFailure,
    errors.DeadlockDetected,
    errors.LockNotAvailable,
    errors.UniqueViolation,
    errors.CheckViolation,
    errors.InvalidSqlStatementName,
)
"""Another transaction came between: nothing was written, and the same is tried again on what it has left."""

SAY_POOLER = "write ?pooler=transaction into the store's URL, and listen=URL past the pooler, or go past it altogether"

STALE = "OL001"
"""The state in which `must` leaves a transaction that was prepared on rows which are not so any more."""

ELSEWHERE = "OL002"
"""The state in which `must_go_on` leaves a transaction on a server that is not the one which was looked at: nothing was written."""

_READ_ONLY = "a standby can only be read: name the primary in the URL, or all servers, of which the one that takes writes is found"

NOTHING_WRITTEN = frozenset({ELSEWHERE, "25006"})
"""States that a transaction never has when it was written; 25006: it is read only."""

_NOW = (
    errors.QueryCanceled,
    errors.ReadOnlySqlTransaction,
    errors.InFailedSqlTransaction,
    errors.IdleInTransactionSessionTimeout,
    errors.OutOfMemory,
    errors.DiskFull,
    errors.TooManyConnections,
    errors.ConfigurationLimitExceeded,
    # Rights, and tables of another version: no run is to blame for them.
    errors.InsufficientPrivilege,
    errors.UndefinedTable,
    errors.UndefinedColumn,
    errors.UndefinedFunction,
    errors.InvalidSchemaName,
)
"""What has nothing to do with the values of a statement."""


def failure_of(error: psycopg.Error, place: str) -> StoreError:
    """Return the error of Outlast that tells `error`, which concerned the store at `place`."""
    told = _told(error)
    match error:
        case (
            errors.UndefinedTable()
            | errors.UndefinedColumn()
            | errors.UndefinedFunction()
            | errors.InvalidSchemaName()
        ):
            return StoreUnavailableError(
                f"{place} has not the tables of this version ({told})",
                hint="bring it up to date with `outlast migrate`",
            )
        case errors.InsufficientPrivilege():
            return StoreUnavailableError(
                f"this user may not use {place} ({told})",
                hint="`outlast migrate --grant ROLE` gives a role what it needs, once whoever owns the store types it",
            )
        case errors.InvalidSqlStatementName() | errors.DuplicatePreparedStatement():
            return StoreUnavailableError(
                f"{place} takes this process's statements for another's ({told}); nothing was written",
                hint=f"a pooler that lends sessions for one transaction stands between: {SAY_POOLER}",
            )
        case errors.TooManyConnections():
            return StoreUnavailableError(
                f"{place} takes no more connections ({told}); nothing was written",
                hint="each process of Outlast holds up to seven: raise max_connections, or put a pooler before it",
            )
        case errors.QueryCanceled():
            return StoreUnavailableError(
                f"{place} has cancelled a statement ({told}); nothing was written",
                hint="it took longer than statement_timeout: raise that for this user, or find what holds the rows",
            )
        case UnreplicatedError():
            return StoreUnavailableError(
                f"{place} has not waited for its standby ({told}); what was written may be on one server alone",
                hint="somebody has cancelled that wait; the same again waits anew: see to the standby",
            )
        case errors.DiskFull() | errors.OutOfMemory():
            return StoreUnavailableError(
                f"{place} has no room left ({told}); nothing was written",
                hint="free space there; work goes on by itself then",
            )
        case errors.DataCorrupted() | errors.IndexCorrupted():
            return StoreCorruptError(
                f"{place} is damaged ({told})",
                hint="stop every worker, and fail over to a standby or restore a backup",
            )
        case errors.InvalidPassword() | errors.InvalidAuthorizationSpecification():
            return StoreUnavailableError(
                f"{place} does not let this user in ({told})", hint="check user and password"
            )
        case _:
            return StoreUnavailableError(
                f"{place} cannot be used now ({told})",
                hint=_READ_ONLY
                if isinstance(error, errors.ReadOnlySqlTransaction)
                else "check that it runs and can be reached; work goes on by itself then",
            )


def is_lost(error: psycopg.Error) -> bool:
    """Whether the connection is of no more use."""
    if error.sqlstate == ELSEWHERE:
        # Another server at the other end of the same connection: as a new one it is looked at.
        return True
    return isinstance(
        error,
        psycopg.InterfaceError
        | errors.AdminShutdown
        | errors.CrashShutdown
        | errors.CannotConnectNow
        | errors.IdleInTransactionSessionTimeout
        | errors.ReadOnlySqlTransaction
        # What was prepared within a transaction that was stopped is not known to the server.
        | errors.InvalidSqlStatementName,
    ) or (isinstance(error, psycopg.OperationalError) and error.sqlstate is None)


def concerns_all(error: psycopg.Error) -> bool:
    """Whether `error` is about the server or the connection, and not about the values at hand."""
    is_of_values = isinstance(
        error,
        psycopg.DataError
        | psycopg.IntegrityError
        | psycopg.ProgrammingError
        | errors.ProgramLimitExceeded
        | errors.StatementTooComplex,
    )
    return is_lost(error) or isinstance(error, _NOW) or not is_of_values


def refusal_of(error: Exception) -> Refused:
    """Return the verdict on a change whose values led to `error`."""
    is_value = isinstance(error, psycopg.DataError | errors.ProgramLimitExceeded)
    return Refused(UNSTORABLE if is_value else CORRUPT, type(error).__name__)


def _told(error: psycopg.Error) -> str:
    text = str(error).strip().splitlines()
    return f"{type(error).__name__}: {text[0]}" if text else type(error).__name__
