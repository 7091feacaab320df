"""What SQLite says is told with the file's name and with what to do."""

import apsw
import pytest

from outlast.errors import StoreCorruptError, StoreUnavailableError
from outlast.store.sqlite.failure import failure_of


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (apsw.CorruptError("malformed"), StoreCorruptError, "is damaged"),
        (apsw.NotADBError("not a database"), StoreCorruptError, "is damaged"),
        (apsw.FullError("full"), StoreUnavailableError, "no space is left"),
        (apsw.BusyError("locked"), StoreUnavailableError, "held by another process"),
        (apsw.LockedError("locked"), StoreUnavailableError, "held by another process"),
        (apsw.ReadOnlyError("readonly"), StoreUnavailableError, "cannot be written"),
        (apsw.PermissionsError("perm"), StoreUnavailableError, "cannot be written"),
        (apsw.CantOpenError("unable"), StoreUnavailableError, "cannot be opened"),
        (apsw.IOError("disk I/O error"), StoreUnavailableError, "the disk refused"),
        (apsw.NoMemError("out of memory"), StoreUnavailableError, "cannot be used now"),
    ],
)
def test_every_error_names_file_and_cause(error, kind, words):
    """Each kind of trouble has its class, its words and the absolute file."""
    told = failure_of(error, "/data/agent.db")
    assert type(told) is kind
    assert words in told.message
    assert "/data/agent.db" in told.message
    if words != "cannot be used now":
        assert told.hint
