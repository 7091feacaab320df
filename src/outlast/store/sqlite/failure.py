"""What SQLite says, told as what happened to which file and what to do about it."""

from __future__ import annotations

import apsw

from outlast.errors import StoreCorruptError, StoreError, StoreUnavailableError
from outlast.store.bound import CORRUPT, UNSTORABLE
from outlast.store.change import Refused

NETWORK_VARIABLE = "OUTLAST_ALLOW_NETWORK_FILESYSTEM"


def failure_of(error: apsw.Error, path: str) -> StoreError:
    """Return the error of Outlast that tells `error`, which concerned the database at `path`."""
    told = f"{type(error).__name__}: {error}"
    match error:
        case apsw.CorruptError() | apsw.NotADBError():
            return StoreCorruptError(
                f"{path} is damaged or is no SQLite database ({told})",
                hint="stop every worker, keep the file with its -wal, and restore a backup; `outlast doctor` checks it",
            )
        case apsw.FullError():
            return StoreUnavailableError(
                f"no space is left to write {path}; nothing of this was written",
                hint="free space on that disk; work goes on by itself then",
            )
        case apsw.BusyError() | apsw.LockedError():
            return StoreUnavailableError(
                f"{path} was held by another process for longer than the busy timeout; nothing was written",
                hint="find out who holds it (a shell with an open transaction, a backup tool) with `lsof`",
            )
        case apsw.ReadOnlyError() | apsw.PermissionsError() | apsw.AuthError():
            return read_only(path, told)
        case apsw.CantOpenError():
            return StoreUnavailableError(
                f"{path} cannot be opened ({told})",
                hint="the folder must exist, and this user must be allowed to write the file and its folder",
            )
        case apsw.IOError():
            return StoreUnavailableError(
                f"the disk refused to read or write {path} ({told}); nothing of this was written",
                hint="check the disk, its quota and the process's file size limit; work goes on by itself then",
            )
        case _:
            return StoreUnavailableError(f"{path} cannot be used now ({told})")


_EVERYBODYS = (
    apsw.AuthError,
    apsw.BusyError,
    apsw.CantOpenError,
    apsw.CorruptError,
    apsw.FullError,
    apsw.IOError,
    apsw.InterruptError,
    apsw.LockedError,
    apsw.NoMemError,
    apsw.NotADBError,
    apsw.PermissionsError,
    apsw.ProtocolError,
    apsw.ReadOnlyError,
    MemoryError,
)
_UNSTORABLE = (apsw.RangeError, apsw.TooBigError, TypeError)
"""What the values of a change itself lead to, although `unstorable_part` has found none that cannot be kept."""


def concerns_all(error: Exception) -> bool:
    """Whether `error` is about the file, the disk or the process, and not about the rows and values at hand."""
    return isinstance(error, _EVERYBODYS)


def refusal_of(error: Exception) -> Refused:
    """Return the verdict on a change whose values or rows led to `error`: it cannot be stored, or meets a damaged row."""
    reason = UNSTORABLE if isinstance(error, _UNSTORABLE) else CORRUPT
    return Refused(reason, type(error).__name__)


def read_only(path: str, told: str) -> StoreUnavailableError:
    """Return the error of a file that this process may not write."""
    return StoreUnavailableError(
        f"{path} cannot be written ({told})",
        hint="this user must own the file, its -wal and -shm and its folder, on a file system that is not mounted read-only",
    )


def foreign(path: str, application_id: int) -> StoreUnavailableError:
    """Return the error of a database that belongs to something else."""
    return StoreUnavailableError(
        f"{path} is a SQLite database, but not one of Outlast (application id {application_id:#x})",
        hint="give another file name; this file was not changed",
    )


def network(path: str, kind: str) -> StoreUnavailableError:
    """Return the error of a file on a file system that several machines share."""
    return StoreUnavailableError(
        f"{path} lies on a network file system ({kind}), where SQLite's locks and shared memory do not hold",
        hint=f"use a local disk, or PostgreSQL for several machines; {NETWORK_VARIABLE}=1 opens it at your own risk",
    )
