"""What tests of a store in PostgreSQL use."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import psycopg
import pytest

from postgres_server import PostgresServer

Role = Callable[[str], str]


@pytest.fixture
def role_url(postgres_server: PostgresServer, postgres_url: str) -> Iterator[Role]:
    """Make roles that may log in and own nothing, and give the URL as which they do; the roles go with the test."""
    made: list[str] = []
    database = psycopg.conninfo.conninfo_to_dict(postgres_url)["dbname"]

    def make(name: str) -> str:
        full = f"{name}_{database}"
        postgres_server.query(f"CREATE ROLE {full} LOGIN")
        made.append(full)
        return postgres_server.url(str(database), full)

    yield make
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        for role in made:
            connection.execute(f"DROP OWNED BY {role}".encode())
            connection.execute(f"DROP ROLE {role}".encode())


def user_of(url: str) -> str:
    """Return whom a URL logs in."""
    return str(psycopg.conninfo.conninfo_to_dict(url)["user"])
