"""How a request carries the key of the effect that sends it: to whom, in which header and form, and what a redirect may take along.

Invariant: a key reaches the origin that the author's code named, and others only where a target names them. Nothing is changed on the
request that the author holds, so the key is in no log, redirect or pickle of it; only the hook, which has no other way, adds it there.
Source: draft-ietf-httpapi-idempotency-key-header (the form of the header), RFC 9110 section 9.2 (classes of methods).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Awaitable, Callable, Generator, Hashable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, Literal, TypeAlias

try:
    import httpx
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "outlast.http as a client needs httpx; install the extra: in a clone of Outlast, pip install '.[http]'",
        name="httpx",
    ) from error

from outlast.errors import DefinitionError
from outlast.workflows.attempt import Attempt, current_attempt
from outlast.workflows.carry import key_for

__all__ = ["KeyHook", "Target"]

Form: TypeAlias = Literal["quoted", "raw"]

REPEATABLE = frozenset({"GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE", "QUERY"})
"""Methods whose requests mean the same however often they arrive: RFC 9110 section 9.2.2, and QUERY."""

SAFE = frozenset({"GET", "HEAD", "OPTIONS", "TRACE", "QUERY"})
"""Methods whose requests only read: RFC 9110 section 9.2.1, and QUERY."""

KEYED = frozenset({"POST", "PATCH"})
"""Methods whose requests carry a key."""

PART = "idempotency_part"
"""The request extension in which an author names one of several requests of an effect."""

_MARK = "outlast.passage"
_QUOTED = re.compile(r"[\x20-\x7e]+")
_RAW = re.compile(r"[\x21-\x7e]+")
_HEADER = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_BRACKETED = re.compile(r"\[[0-9A-Fa-f:.]+\](?::[0-9]+)?")


@dataclass(frozen=True, slots=True)
class Target:
    """How requests to some hosts carry a key.

    Args:
        host: A name, or a pattern as `*.example.com`; with a port (`localhost:8080`, `[::1]:8080`) that port only. `*` is any.
        header: The header that the receiver reads.
        form: `quoted`, a Structured Field String, as the draft has it; `raw`, as most receivers that are older take it.
        carries: False for hosts that are sent no key, such as one that gives out tokens.
        refusal: The status by which the receiver says that it knows the key with other content.
        is_reuse: Tells from an answer with that status, its body read, whether it says so; by default each stops the effect. Of a receiver
            that runs `outlast.http`, `outlast.http.transport.is_key_reused` does.

    Example:
        ```python
        from outlast.http.carry import Target

        bank = Target("api.bank.example", form="raw")
        assert bank.value("3a8d389c") == "3a8d389c"
        assert Target().value("3a8d389c") == '"3a8d389c"'
        ```
    """

    host: str = "*"
    header: str = "Idempotency-Key"
    form: Form = "quoted"
    carries: bool = True
    refusal: int = 422
    is_reuse: Callable[[httpx.Response], bool] | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot be sent."""
        if not _is_host(self.host):
            raise DefinitionError(
                f"Target: {self.host!r} is no host",
                hint="write api.example.com, *.example.com or *",
            )
        header: Any = self.header
        if not isinstance(header, str) or not _HEADER.fullmatch(header):
            raise DefinitionError(
                f"Target: {self.header!r} is no name of a header", hint="write Idempotency-Key"
            )
        form: Any = self.form
        if form not in ("quoted", "raw"):
            raise DefinitionError(f"Target: form={form!r}", hint='write form="quoted" or "raw"')
        carries: Any = self.carries
        if not isinstance(carries, bool):
            raise DefinitionError(
                f"Target: carries={carries!r} is no bool", hint="write carries=False"
            )
        refusal: Any = self.refusal
        if type(refusal) is not int or not 400 <= refusal <= 599:
            raise DefinitionError(
                f"Target: refusal={refusal!r} is no status of an error", hint="write refusal=422"
            )
        if self.is_reuse is not None and not callable(self.is_reuse):
            raise DefinitionError(
                f"Target: is_reuse={self.is_reuse!r} is no function",
                hint="give a function that takes the answer and returns a bool",
            )

    def value(self, key: str) -> str:
        """Return the header's value for a key.

        Raises:
            DefinitionError: The key holds what a header cannot carry, or is empty.
        """
        allowed = _QUOTED if self.form == "quoted" else _RAW
        if not allowed.fullmatch(key):
            raise DefinitionError(
                f"a key of {len(key)} characters cannot be sent {self.form}",
                hint="a key consists of printable ASCII; without spaces where it is sent raw",
            )
        if self.form == "raw":
            return key
        escaped = key.replace("\\", "\\\\").replace('"', '\\"')
        return f'"{escaped}"'

    def matches(self, url: httpx.URL) -> bool:
        """Whether requests to this address are meant."""
        own = self.host.lower()
        if own.startswith("["):  # an address of IPv6 as URLs write it, and no set of characters
            return own in (f"[{url.host}]", f"[{url.host}]:{_port(url)}")
        names = (url.host, f"{url.host}:{_port(url)}")
        return any(fnmatchcase(name.lower(), own) for name in names)


def _is_host(host: Any) -> bool:
    if not isinstance(host, str) or not host or host != host.strip() or "/" in host:
        return False
    return not host.startswith("[") or _BRACKETED.fullmatch(host) is not None


def checked_targets(targets: Sequence[Target]) -> tuple[Target, ...]:
    """Return the targets of a transport or hook.

    Raises:
        DefinitionError: They are none.
    """
    given: Any = targets
    found = tuple(targets) if isinstance(given, list | tuple) else None
    if found is None or not all(isinstance(one, Target) for one in found):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise DefinitionError(
            f"targets={given!r} are none", hint='write targets=[Target("api.example.com")]'
        )
    return found


def check_flag(requires_key: Any) -> None:
    """Refuse what is neither true nor false.

    Raises:
        DefinitionError: It is.
    """
    if not isinstance(requires_key, bool):
        raise DefinitionError(
            f"requires_key={requires_key!r} is no bool", hint="write requires_key=True"
        )


_ANY = Target()


def target_of(url: httpx.URL, targets: Sequence[Target]) -> Target:
    """Return the first target that matches; one of all defaults when none does."""
    return next((one for one in targets if one.matches(url)), _ANY)


@dataclass(frozen=True, slots=True)
class Passage:
    """What a request carries, and what may be done with it.

    Args:
        target: Where it goes.
        value: Of the header; empty for none.
        key: As it is before it takes the target's form; empty where the author wrote the header.
        is_known: Whether the receiver answers an equal key with the first result, as the effect declares or the author says by
            writing the header.
        attempt: In which it was sent.
        url: Where it went first.
        removes: A header that a redirect may have brought along.
    """

    target: Target
    url: httpx.URL
    attempt: Attempt | None
    value: str = ""
    key: str = field(default="", repr=False)
    is_known: bool = False
    removes: str = ""

    def headers(self, request: httpx.Request) -> httpx.Headers:
        """Return the headers of a request, with the key's."""
        headers = httpx.Headers(request.headers)
        if self.removes:
            headers.pop(self.removes, None)
        if self.value:
            headers[self.target.header] = self.value
        return headers


def passage_of(request: httpx.Request, targets: Sequence[Target]) -> Passage:
    """Say what a request carries, and note on it what its redirects may carry. Equal when it is asked again for the same request.

    Raises:
        DefinitionError: It may not be sent: see `key_for`, and `_redirected`.
    """
    attempt = current_attempt.get(None)
    known: Any = request.extensions.get(_MARK)
    found = known if isinstance(known, Passage) else None
    if found is not None and found.attempt is attempt:
        return _redirected(found, request, targets)
    passage = _first(request, target_of(request.url, targets), attempt, found)
    request.extensions[_MARK] = passage
    return passage


def refuse_keyless(request: httpx.Request, passage: Passage) -> None:
    """Refuse a request that would carry a key, and has none.

    Raises:
        DefinitionError: No effect runs where it is sent from.
    """
    if request.method in KEYED and passage.target.carries and not passage.value:
        raise DefinitionError(
            f"{describe(request)} has no key, and was not sent: no effect runs where it comes from",
            hint="send it from an effect; a thread of an executor is within one by contextvars.copy_context().run, or by asyncio.to_thread. "
            "What needs no key goes by another client, or to a Target(host, carries=False)",
        )


def body_of(request: httpx.Request) -> bytes | None:
    """Return a body that can be sent again; None for one that is streamed once."""
    stream = request.stream
    return b"".join(stream) if isinstance(stream, httpx.ByteStream) else None


def identity_of(request: httpx.Request, passage: Passage) -> Hashable:
    """Return what is equal for the requests that are one to their receiver: those under one key, or else with equal content."""
    return (passage.target.header, passage.value) if passage.value else _identity(request)


def describe(request: httpx.Request) -> str:
    """Return a request in words: its method and origin. Paths and queries hold secrets at some receivers."""
    scheme, host, port = origin_of(request.url)
    default = {"http": 80, "https": 443}.get(scheme)
    return f"{request.method} to {scheme}://{host}" + ("" if port == default else f":{port}")


def origin_of(url: httpx.URL) -> tuple[str, str, int | None]:
    """Return scheme, host and port."""
    return url.scheme, url.host, _port(url)


def _first(
    request: httpx.Request, target: Target, attempt: Attempt | None, former: Passage | None
) -> Passage:
    """Return what a request carries that this attempt sends for the first time.

    Args:
        former: What it carried for another attempt. A key that the hook has left in its header is no author's.
    """
    given = request.headers.get(target.header)
    left = former.target.header if former is not None and former.key else ""
    if given is not None and not left:
        return Passage(target, request.url, attempt, given, is_known=True)
    if not target.carries or request.method not in KEYED:
        return Passage(target, request.url, attempt, removes=left)
    part: Any = request.extensions.get(PART, "")
    key = key_for(
        _identity(request),
        _place(request),
        part=str(part),
        naming=f'client.post(…, extensions={{"{PART}": "receipt"}})',
    )
    if not key:
        return Passage(target, request.url, attempt, removes=left)
    is_known = attempt is not None and attempt.idempotent
    return Passage(target, request.url, attempt, target.value(key), key, is_known, left)


def _redirected(known: Passage, request: httpx.Request, targets: Sequence[Target]) -> Passage:
    """Return what a request carries that comes from another one by a redirect, or is sent again.

    Raises:
        DefinitionError: It changes something at another origin, which no target names: without the key nothing would protect it.
    """
    if request.url == known.url and request.method in KEYED:
        return known
    if not known.value or _is_same(known.url, request.url):
        keeps = request.method in KEYED or not known.key
        return known if keeps else _without(known)
    target = target_of(request.url, targets)
    if target.host == "*" or not target.carries:
        if request.method in KEYED:
            raise DefinitionError(
                f"{describe(request)} comes by a redirect from another origin, {known.url.scheme}://{known.url.host}, and was not "
                "sent: the key of an effect goes to no origin that the code has not named",
                hint="call the right address; or name that host by a Target, if the redirect is meant",
                step=known.attempt.name if known.attempt else None,
            )
        return _without(known)
    if request.method not in KEYED:
        return _without(known)
    value = target.value(known.key) if known.key else known.value
    return Passage(
        target, known.url, known.attempt, value, known.key, known.is_known, known.target.header
    )


def _without(known: Passage) -> Passage:
    return Passage(known.target, known.url, known.attempt, removes=known.target.header)


def _identity(request: httpx.Request) -> Hashable:
    body = body_of(request)
    if body is None:
        return object()  # nobody knows whether two streams are equal
    return request.method, str(request.url), hashlib.sha256(body).digest()


def _place(request: httpx.Request) -> str:
    """Return a request in words for whoever wrote it: method and address, without user and query."""
    path = request.url.raw_path.partition(b"?")[0].decode("ascii", "replace")
    return f"{describe(request)}{path}"


def _is_same(one: httpx.URL, other: httpx.URL) -> bool:
    """Whether two addresses have one origin, or the second is the first one's by TLS."""
    upgraded = (one.scheme, _port(one), other.scheme, _port(other)) == ("http", 80, "https", 443)
    return origin_of(one) == origin_of(other) or (upgraded and one.host == other.host)


def _port(url: httpx.URL) -> int | None:
    return url.port or {"http": 80, "https": 443}.get(url.scheme)


class KeyHook:
    """An event hook of httpx that adds the key of the running effect to a request, for clients whose transport cannot be changed.

    It adds the header, and takes it off where a redirect leads to another origin. It repeats and judges nothing. One hook serves
    `httpx.AsyncClient` and `httpx.Client`.

    Args:
        targets: Hosts that are treated otherwise than by default; the first that matches counts.
        requires_key: Refuse a POST or PATCH that has no key, since no effect runs where it comes from.

    Example:
        ```python
        import httpx
        import outlast
        from outlast.http.carry import KeyHook

        double = httpx.MockTransport(lambda request: httpx.Response(201, text=request.headers["Idempotency-Key"]))

        @outlast.effect(idempotent=True)
        def order(item: str) -> str:
            with httpx.Client(transport=double, event_hooks={"request": [KeyHook()]}) as client:
                return client.post("https://shop.example/orders", json={"item": item}).text

        @outlast.workflow
        async def shop(item: str) -> str:
            return await order(item)

        async with outlast.open("memory://") as app:
            assert len(await app.run(shop("tea"), id="shop-1")) == 34  # 32 hexadecimal digits in quotes
        ```
    """

    def __init__(self, targets: Sequence[Target] = (), *, requires_key: bool = False) -> None:
        self._targets = checked_targets(targets)
        check_flag(requires_key)
        self._requires_key = requires_key

    def __call__(self, request: httpx.Request) -> Awaitable[None]:
        """Add the header; the result may be awaited, and need not be.

        Raises:
            DefinitionError: The request may not be sent under the key: see `outlast.http.transport`.
        """
        passage = passage_of(request, self._targets)
        if self._requires_key:
            refuse_keyless(request, passage)
        request.headers = passage.headers(request)
        return _Done()


class _Done:
    """What may be awaited and takes no time."""

    def __await__(self) -> Generator[None, None, None]:
        yield from ()
