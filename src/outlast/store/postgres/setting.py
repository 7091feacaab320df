"""Where a PostgreSQL store is and how it is used, read from its URL."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any
from urllib.parse import SplitResult, parse_qsl, urlencode, urlsplit, urlunsplit

import psycopg
from msgspec import Struct
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.pq import Conninfo

from outlast.errors import StoreUnavailableError

DEFAULT_SCHEMA = "outlast"
_SCHEMA = re.compile(r"[a-z_][a-z0-9_]{0,62}")
_OURS = {"schema", "listen", "pooler", "migrate", "durability", "failover"}
_HINT = "write postgresql://user@host:5432/database?schema=outlast; all other options are libpq's"
_DEFAULTS = {
    "connect_timeout": "10",
    "application_name": "outlast",
    # A server, or a way to it, that has gone without a word is noticed in less time than a lease lasts.
    "keepalives_idle": "5",
    "keepalives_interval": "2",
    "keepalives_count": "3",
    "tcp_user_timeout": "10000",
}
_OF_RENEWALS = {"connect_timeout": "3", "tcp_user_timeout": "4000"}
"""A lease of 15 s is renewed while two hosts of three do not answer."""


class PostgresSetting(Struct, frozen=True):
    """How a store is reached and used.

    Args:
        conninfo: For libpq, with several hosts where there are standbys: the one that takes writes is found.
        place: Where it is, fit to be printed.
        renewing: For libpq, too: the connection that renews leases gives up sooner.
        schema: That holds all of the store.
        listen: For the connection that waits for notifications; empty for the same, None for none: then looks alone find what is new.
        pooled: A pooler in transaction mode stands between: no statement is prepared, nothing is set for a session, and nobody listens through it.
        proxied: A pooler stands between, and keeps a session for each connection.
        check_only: Apply no migration; fail when one is missing.
        risk: Use a server whose durability is switched off.
        synchronous: Whoever operates says that only a synchronous standby is ever promoted: nothing is forgotten by that.
    """

    conninfo: str
    place: str
    renewing: str
    schema: str = DEFAULT_SCHEMA
    listen: str | None = ""
    pooled: bool = False
    proxied: bool = False
    check_only: bool = False
    risk: bool = False
    synchronous: bool = False

    def __repr__(self) -> str:
        """Say where the store is, and not by which password."""
        return f"PostgresSetting({self.place!r})"


def read_setting(url: str) -> PostgresSetting:
    """Return what a URL says: in libpq's own options, and in ours.

    Ours are `schema`, `listen` (a URL, or `off`), `pooler` (`transaction` or `session`), `migrate=check` and `durability=risk`. Behind a pooler in
    transaction mode nobody listens, unless `listen` leads past it.

    Raises:
        StoreUnavailableError: It says what nobody understands.
    """
    parts = _parts(url)
    given = parse_qsl(parts.query, keep_blank_values=True)
    ours = {name: value for name, value in given if name in _OURS}
    if "@" not in parts.query:  # else it may be the end of a password
        _check_names(name for name, _ in given)
    rest = urlencode([(name, value) for name, value in given if name not in _OURS])
    plain = urlunsplit(parts._replace(query=rest, fragment=""))
    schema = ours.get("schema", DEFAULT_SCHEMA)
    if not _SCHEMA.fullmatch(schema) or schema.startswith("pg_"):
        raise StoreUnavailableError(
            f"{schema[:80]!r} is no name of a schema",
            hint="use lower-case letters, digits and _: ?schema=outlast",
        )
    conninfo = _conninfo(plain)
    pooler = _one_of(ours, "pooler", "transaction", "session")
    listen = ours.get("listen", "off" if pooler == "transaction" else "")
    return PostgresSetting(
        conninfo=conninfo,
        place=place_of(conninfo, schema),
        renewing=_conninfo(plain, _OF_RENEWALS),
        schema=schema,
        listen=None if listen == "off" else _conninfo(listen) if listen else "",
        pooled=pooler == "transaction",
        proxied=pooler == "session",
        check_only=bool(_one_of(ours, "migrate", "check")),
        risk=bool(_one_of(ours, "durability", "risk")),
        synchronous=bool(_one_of(ours, "failover", "synchronous")),
    )


def _check_names(names: Iterable[str]) -> None:
    """Return when each option is libpq's or ours."""
    known = {one.keyword.decode() for one in Conninfo.get_defaults()} | _OURS | {"ssl"}
    for name in names:
        if name not in known:
            raise StoreUnavailableError(
                f"the store's URL has an option {name[:80]!r}, which nobody understands",
                hint=f"ours are {', '.join(sorted(_OURS))}; all others are libpq's",
            )


def place_of(conninfo: str, schema: str) -> str:
    """Return where a store is, without password."""
    known = conninfo_to_dict(conninfo)
    hosts = str(known.get("host") or known.get("hostaddr") or "").split(",")
    ports = str(known.get("port") or "").split(",")
    if len(ports) < len(hosts):
        ports = [ports[0]] * len(hosts)
    where = ",".join(
        f"{host}:{port}" if port and not host.startswith("/") else host
        for host, port in zip(hosts, ports, strict=False)
    )
    return f"postgresql://{where}/{known.get('dbname') or ''} (schema {schema})"


def _conninfo(url: str, defaults: Mapping[str, str] = MappingProxyType({})) -> str:
    try:
        known = conninfo_to_dict(url)
        conninfo = make_conninfo("", **{**_DEFAULTS, **defaults, **_standbys(known), **known})
    except (psycopg.Error, ValueError):  # its text may hold the password
        raise StoreUnavailableError("the store's URL is none of PostgreSQL", hint=_HINT) from None
    ports = str(known.get("port") or "").split(",")
    if "@" in _parts(url).path or not all(port.isdigit() for port in ports if port):
        # libpq takes the beginning of such a password for a port, and would tell it.
        raise StoreUnavailableError(
            "the store's URL has a port that is no number, or an @ behind its first slash",
            hint="in user and password write @, /, ?, # and % as %40, %2F, %3F, %23 and %25",
        )
    return conninfo


def _parts(url: str) -> SplitResult:
    try:
        url.encode()
        return urlsplit(url)
    except ValueError:  # as above
        raise StoreUnavailableError("the store's URL is no URL", hint=_HINT) from None


def _standbys(known: dict[str, Any]) -> dict[str, str]:
    """Return what several hosts need: the one that takes writes is found."""
    hosts = str(known.get("host") or known.get("hostaddr") or "")
    return {"target_session_attrs": "read-write"} if "," in hosts else {}


def _one_of(ours: dict[str, str], name: str, *values: str) -> str:
    given = ours.get(name)
    if given is not None and given not in values:
        raise StoreUnavailableError(
            f"{name}={given[:40]} in the store's URL means nothing",
            hint=f"write {' or '.join(f'{name}={value}' for value in values)}, or leave it out",
        )
    return given or ""
