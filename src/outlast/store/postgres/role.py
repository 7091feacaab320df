"""What a user of the database needs who works on a store and does not own it: for each table what the code does there, and no more.

Law: the conformance suite passes as such a user.
"""

from __future__ import annotations

from collections.abc import Iterator

from outlast.errors import StoreUnavailableError
from outlast.store.postgres.session import Session
from outlast.store.postgres.setting import PostgresSetting

RIGHTS = {
    "store": "SELECT, UPDATE (timeline, history)",
    "migration": "SELECT",
    "worker": "SELECT, INSERT, UPDATE, DELETE",
    "run": "SELECT, INSERT, UPDATE, DELETE",
    # Written once: nobody but the owner can change or remove what a run remembers.
    "entry": "SELECT, INSERT",
    "operation": "SELECT, INSERT, UPDATE, DELETE",
    "message": "SELECT, INSERT, UPDATE, DELETE",
    "outbox": "SELECT, INSERT, DELETE",
    "watch": "SELECT, INSERT, DELETE",
    "approval": "SELECT, INSERT, UPDATE",
    "notice": "SELECT, INSERT, UPDATE, DELETE",
    "task": "SELECT, INSERT, UPDATE, DELETE",
    "control": "SELECT, INSERT, UPDATE",
    "sticky": "SELECT, INSERT, UPDATE",
    "request": "SELECT, INSERT, UPDATE, DELETE",
}
"""Of a user who runs workers and clients. Workers see the runs of every tenant."""


def grants(schema: str, role: str, *, read_only: bool = False) -> Iterator[str]:
    """Yield the statements that give a role exactly what it needs: what it had in the schema before is taken back.

    Args:
        read_only: It may look at everything, as for lists and reports, and write nothing.
    """
    who = '"' + role.replace('"', '""') + '"'
    place = f'"{schema}"'
    yield f"REVOKE ALL ON ALL TABLES IN SCHEMA {place} FROM {who};"
    yield f"REVOKE ALL ON SCHEMA {place} FROM {who};"
    yield f"GRANT USAGE ON SCHEMA {place} TO {who};"
    yield f"REVOKE ALL ON ALL FUNCTIONS IN SCHEMA {place} FROM PUBLIC, {who};"
    yield f"GRANT EXECUTE ON {'FUNCTION ' + place + '.micros()' if read_only else 'ALL FUNCTIONS IN SCHEMA ' + place} TO {who};"
    for table, rights in RIGHTS.items():
        yield f"GRANT {'SELECT' if read_only else rights} ON {place}.{table} TO {who};"


def grant(
    session: Session, setting: PostgresSetting, role: str, *, read_only: bool = False
) -> list[str]:
    """Give a role what it needs, and return the statements that did.

    Raises:
        StoreUnavailableError: There is no such role, or it owns the store, or this user does not.
        psycopg.Error: This user may not do that.
    """
    found = session.rows("SELECT 1 FROM pg_roles WHERE rolname = %b", (role,))
    if not found:
        raise StoreUnavailableError(
            f"{setting.place}: there is no role {role!r}",
            hint=f'CREATE ROLE "{role}" LOGIN; the store never makes one',
        )
    owner = session.rows(
        "SELECT pg_get_userbyid(nspowner), pg_has_role(nspowner, 'USAGE') FROM pg_namespace WHERE nspname = %b",
        (setting.schema,),
    )
    if owner and not owner[0][1]:
        # The server would only warn of it.
        raise StoreUnavailableError(
            f"{setting.place}: only {owner[0][0]!r}, who owns the store, can give rights in it; nothing was granted",
            hint=f"do it as {owner[0][0]}, by a URL of that user",
        )
    if owner and owner[0][0] == role:
        raise StoreUnavailableError(
            f"{setting.place}: {role!r} owns the store and has every right in it",
            hint="grant to the role that workers log in as",
        )
    statements = list(grants(setting.schema, role, read_only=read_only))
    with session.guarded(), session.connection.transaction():
        session.connection.execute("\n".join(statements).encode())
    return statements
