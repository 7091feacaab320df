"""Which request carries the key, in which header and form, and what a redirect takes along."""

# ruff: noqa: D102, D103 - the doubles of a test say what they do by their names
from __future__ import annotations

import asyncio
from collections.abc import Callable

import http_sf
import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

import outlast
from outlast.http.carry import KeyHook, Target
from outlast.http.transport import IdempotentTransport, SyncIdempotentTransport
from outlast.testing import attempt
from outlast.workflows.attempt import Attempt, current_attempt

KEY = "3a8d389ced457a52325a5e6632713d51"
QUOTED = f'"{KEY}"'
Receiver = Callable[[httpx.Request], httpx.Response]


class Receivers:
    """Notes each request; answers by path, else 200."""

    def __init__(self, **answers: httpx.Response) -> None:
        self.answers = answers
        self.seen: list[tuple[str, str, str | None]] = []

    def __call__(self, request: httpx.Request) -> httpx.Response:
        key = request.headers.get("idempotency-key")
        self.seen.append((request.method, str(request.url), key))
        return self.answers.get(request.url.path.strip("/"), httpx.Response(200))

    @property
    def keys(self) -> list[str | None]:
        return [key for _, _, key in self.seen]


def by_transport(receivers: Receiver, targets: tuple[Target, ...] = ()) -> httpx.Client:
    transport = SyncIdempotentTransport(httpx.MockTransport(receivers), targets=targets)
    return httpx.Client(transport=transport, follow_redirects=True)


def by_hook(receivers: Receiver, targets: tuple[Target, ...] = ()) -> httpx.Client:
    hooks = {"request": [KeyHook(targets)]}
    transport = httpx.MockTransport(receivers)
    return httpx.Client(transport=transport, event_hooks=hooks, follow_redirects=True)


def by_both(receivers: Receiver, targets: tuple[Target, ...] = ()) -> httpx.Client:
    hooks = {"request": [KeyHook(targets)]}
    transport = SyncIdempotentTransport(httpx.MockTransport(receivers), targets=targets)
    return httpx.Client(transport=transport, event_hooks=hooks, follow_redirects=True)


EACH = pytest.mark.parametrize("client_of", [by_transport, by_hook, by_both])


@given(key=st.text(st.characters(min_codepoint=0x20, max_codepoint=0x7E), min_size=1))
def test_a_quoted_key_is_a_structured_field_string(key: str) -> None:
    """A strict parser reads the key back, whatever printable ASCII it holds."""
    value, parameters = http_sf.parse(Target().value(key).encode(), tltype="item")
    assert (value, parameters, type(value)) == (key, {}, str)


@given(key=st.text(min_size=1))
def test_a_raw_key_is_sent_as_it_is_or_not_at_all(key: str) -> None:
    """Nothing that could end the header, or begin another one, is sent."""
    if all("!" <= one <= "~" for one in key):
        assert Target(form="raw").value(key) == key
    else:
        with pytest.raises(outlast.DefinitionError):
            Target(form="raw").value(key)


@pytest.mark.parametrize("form", ["quoted", "raw"])
def test_an_empty_key_is_none(form: str) -> None:
    """A receiver could not tell it from others."""
    with pytest.raises(outlast.DefinitionError):
        Target(form=form).value("")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("pattern", "url", "matches"),
    [
        ("*", "https://a.example/", True),
        ("a.example", "https://a.example/x", True),
        ("A.Example", "https://a.example/x", True),
        ("a.example", "https://b.a.example/", False),
        ("*.a.example", "https://b.a.example/", True),
        ("*.a.example", "https://a.example/", False),
        ("*.a.example", "https://a.example.evil.example/", False),
        ("a.example:443", "https://a.example/", True),
        ("a.example:8443", "https://a.example/", False),
        ("127.0.0.1:8000", "http://127.0.0.1:8000/", True),
        ("::1", "http://[::1]:8000/", True),
        ("[::1]", "http://[::1]:8000/", True),
        ("[::1]:8000", "http://[::1]:8000/", True),
        ("[::1]:8001", "http://[::1]:8000/", False),
        ("[FE80::A]:80", "http://[fe80::a]/", True),
        ("[::1]", "http://1/", False),
    ],
)
def test_a_target_is_a_host_or_a_pattern_of_hosts(pattern: str, url: str, matches: bool) -> None:
    """Names regardless of case; a port where one is given."""
    assert Target(pattern).matches(httpx.URL(url)) is matches


@pytest.mark.parametrize(
    "make",
    [
        lambda: Target(""),
        lambda: Target("https://a.example"),
        lambda: Target(header="a b"),
        lambda: Target(header="a\r\nb"),
        lambda: Target(form="bare"),  # type: ignore[arg-type]
        lambda: Target(carries="no"),  # type: ignore[arg-type]
        lambda: Target(refusal="422"),  # type: ignore[arg-type]
        lambda: Target(refusal=200),
        lambda: Target(is_reuse="x"),  # type: ignore[arg-type]
        lambda: Target(header=None),  # type: ignore[arg-type]
        lambda: Target(443),  # type: ignore[arg-type]
        lambda: Target("[::1"),
        lambda: Target("[ab].example"),
    ],
)
def test_a_target_that_cannot_work_is_refused(make: Callable[[], Target]) -> None:
    """Where it is written, and not at the first request."""
    with pytest.raises(outlast.DefinitionError):
        make()


@EACH
def test_post_and_patch_carry_the_key_and_others_none(client_of) -> None:
    """It says of a request what its method does not say already."""
    receivers = Receivers()
    for method in ("POST", "PATCH", "GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE", "QUERY"):
        with attempt(key=KEY), client_of(receivers) as client:
            client.request(method, "https://a.example/")
    assert receivers.keys == [QUOTED] * 2 + [None] * 7


@EACH
def test_outside_an_effect_nothing_is_added(client_of) -> None:
    """Neither where nothing runs, nor in a step, nor in a probe, which only looks."""
    receivers = Receivers()
    with client_of(receivers) as client:
        client.post("https://a.example/")
        with attempt(key=""):
            client.post("https://a.example/")
        probe = Attempt("default", "r", "r:1", "e", 1, KEY, probing=True)
        token = current_attempt.set(probe)
        client.post("https://a.example/")
        current_attempt.reset(token)
    assert receivers.keys == [None] * 3


@EACH
def test_a_key_that_the_author_writes_stays(client_of) -> None:
    """In an effect and outside of one."""
    receivers = Receivers()
    mine = {"Idempotency-Key": "mine"}
    with client_of(receivers) as client:
        client.post("https://a.example/", headers=mine)
        with attempt(key=KEY):
            client.post("https://a.example/", headers=mine)
    assert receivers.keys == ["mine", "mine"]


@EACH
def test_the_first_target_that_matches_says_how(client_of) -> None:
    """Another header, unquoted; none at all; and the default for the rest."""
    targets = (
        Target("raw.example", form="raw", header="X-Request-Key"),
        Target("tokens.example", carries=False),
        Target("*.example"),
    )
    seen: dict[str, httpx.Headers] = {}

    def receiver(request: httpx.Request) -> httpx.Response:
        seen[request.url.host] = request.headers
        return httpx.Response(200)

    for host in ("raw.example", "tokens.example", "a.example", "b.test"):
        with attempt(key=KEY), client_of(receiver, targets) as client:
            client.post(f"https://{host}/")
    assert seen["raw.example"]["x-request-key"] == KEY
    assert "idempotency-key" not in seen["raw.example"]
    assert "idempotency-key" not in seen["tokens.example"]
    assert seen["a.example"]["idempotency-key"] == seen["b.test"]["idempotency-key"] == QUOTED


def test_the_key_is_not_on_the_request_that_the_author_holds() -> None:
    """What is logged of a request, or kept with an error, does not hold it."""
    receivers = Receivers()
    with attempt(key=KEY), by_transport(receivers) as client:
        response = client.post("https://a.example/")
    assert receivers.keys == [QUOTED]
    assert KEY not in repr(response.request.headers)


# One key, one request


@EACH
def test_an_equal_request_may_be_sent_again(client_of) -> None:
    """The loop of an author, or of an SDK."""
    receivers = Receivers()
    with attempt(key=KEY), client_of(receivers) as client:
        for _ in range(3):
            client.post("https://a.example/x", json={"a": 1})
    assert receivers.keys == [QUOTED] * 3


@EACH
@pytest.mark.parametrize(
    "other",
    [
        ("PATCH", "https://a.example/x", b"1"),
        ("POST", "https://a.example/y", b"1"),
        ("POST", "https://b.example/x", b"1"),
        ("POST", "https://a.example/x?q=1", b"1"),
        ("POST", "https://a.example/x", b"2"),
    ],
)
def test_a_second_request_is_refused_before_it_is_sent(client_of, other) -> None:
    """Under one key it would be the first one to its receiver, or be refused; and which of them is first may change."""
    receivers = Receivers()
    method, url, content = other
    with attempt(key=KEY), client_of(receivers) as client:
        client.post("https://a.example/x", content=b"1")
        with pytest.raises(outlast.DefinitionError, match="second request") as refused:
            client.request(method, url, content=content)
    assert len(receivers.seen) == 1
    text = str(refused.value)
    assert f"{method} to {url.partition('?')[0]}" in text and "q=1" not in text
    assert "with POST to https://a.example/x." in text or "looks the same" in text
    assert 'extensions={"idempotency_part": "receipt"}' in text
    assert KEY not in text


@EACH
def test_named_parts_have_keys_of_their_own(client_of) -> None:
    """Independent of their order, which may change from one attempt to the next."""
    receivers = Receivers()
    parts = ("", "receipt", "mail.2")
    for order in (parts, tuple(reversed(parts))):
        with attempt(key=KEY), client_of(receivers) as client:
            for part in order:
                extensions = {"idempotency_part": part} if part else {}
                client.post(f"https://a.example/{part}", extensions=extensions)
    by_url = {(url, key) for _, url, key in receivers.seen}
    assert by_url == {
        ("https://a.example/", QUOTED),
        ("https://a.example/receipt", f'"{KEY}-receipt"'),
        ("https://a.example/mail.2", f'"{KEY}-mail.2"'),
    }


@pytest.mark.parametrize("part", ["a b", 'x"', "-", "a\n", "é", "x" * 65, 7.5, b"a"])
def test_a_part_that_is_no_name_is_refused(part: object) -> None:
    """It would become part of a header."""
    receivers = Receivers()
    with attempt(key=KEY), by_transport(receivers) as client:
        if part == 7.5:
            client.post("https://a.example/", extensions={"idempotency_part": part})
            assert receivers.keys == [f'"{KEY}-7.5"']
            return
        with pytest.raises(outlast.DefinitionError):
            client.post("https://a.example/", extensions={"idempotency_part": part})
    assert receivers.seen == []


def test_two_streams_are_never_taken_for_equal() -> None:
    """Nobody has read them."""
    receivers = Receivers()
    with attempt(key=KEY), by_transport(receivers) as client:
        client.post("https://a.example/", content=iter([b"a"]))
        with pytest.raises(outlast.DefinitionError, match="second request"):
            client.post("https://a.example/", content=iter([b"a"]))


def test_a_request_for_a_token_does_not_take_the_key() -> None:
    """Sometimes it is made first and sometimes not at all: the key stays with the order, whatever the target gives out tokens."""
    receivers = Receivers()
    targets = (Target("tokens.example", carries=False),)

    class Auth(httpx.Auth):
        def auth_flow(self, request):
            yield httpx.Request("POST", "https://tokens.example/")
            yield request

    for auth in (Auth(), None):
        with attempt(key=KEY), by_transport(receivers, targets) as client:
            client.post("https://shop.example/", auth=auth)
    assert receivers.seen == [
        ("POST", "https://tokens.example/", None),
        ("POST", "https://shop.example/", QUOTED),
        ("POST", "https://shop.example/", QUOTED),
    ]


# Redirects


def redirects(to: str, status: int = 307) -> Receivers:
    return Receivers(go=httpx.Response(status, headers={"Location": to}))


@EACH
@pytest.mark.parametrize("headers", [{}, {"Idempotency-Key": QUOTED}])
@pytest.mark.parametrize(
    "to", ["https://evil.example/", "https://a.example:8443/", "http://a.example/"]
)
def test_a_redirect_takes_no_key_to_another_origin(client_of, headers, to) -> None:
    """Nor does it change anything there without one."""
    receivers = redirects(to)
    with attempt(key=KEY), client_of(receivers) as client:
        with pytest.raises(outlast.DefinitionError, match="redirect"):
            client.post("https://a.example/go", headers=headers)
    assert len(receivers.seen) == 1


@EACH
@pytest.mark.parametrize("headers", [{}, {"Idempotency-Key": QUOTED}])
def test_a_redirect_that_only_reads_goes_on_without_the_key(client_of, headers) -> None:
    """303: the answer is to be read elsewhere."""
    receivers = redirects("https://evil.example/", 303)
    with attempt(key=KEY), client_of(receivers) as client:
        client.post("https://a.example/go", headers=headers)
    assert receivers.seen == [
        ("POST", "https://a.example/go", QUOTED),
        ("GET", "https://evil.example/", None),
    ]


@EACH
@pytest.mark.parametrize("to", ["https://a.example/new", "/new"])
def test_a_redirect_within_the_origin_takes_the_key_along(client_of, to) -> None:
    """It is the same request, and no second one."""
    receivers = redirects(to)
    with attempt(key=KEY), client_of(receivers) as client:
        client.post("https://a.example/go", json=1)
    assert receivers.seen[1] == ("POST", "https://a.example/new", QUOTED)


@EACH
def test_a_redirect_to_tls_takes_the_key_along(client_of) -> None:
    """The same host at the standard ports."""
    receivers = redirects("https://a.example/new")
    with attempt(key=KEY), client_of(receivers) as client:
        client.post("http://a.example/go")
    assert receivers.seen[1] == ("POST", "https://a.example/new", QUOTED)


@EACH
def test_a_redirect_to_a_named_target_takes_the_key_along(client_of) -> None:
    """The author has named it; in its own header and form."""
    targets = (Target("*.b.example", form="raw"),)
    receivers = redirects("https://eu.b.example/")
    with attempt(key=KEY), client_of(receivers, targets) as client:
        client.post("https://a.example/go")
    assert receivers.seen[1] == ("POST", "https://eu.b.example/", KEY)


@EACH
def test_an_unkeyed_request_gets_no_key_by_a_redirect(client_of) -> None:
    """A host that is sent no key cannot have it sent elsewhere."""
    targets = (Target("a.example", carries=False),)
    receivers = redirects("https://evil.example/")
    with attempt(key=KEY), client_of(receivers, targets) as client:
        client.post("https://a.example/go")
    assert receivers.keys == [None, None]


def test_the_hook_serves_both_clients() -> None:
    """Its result may be awaited."""
    receivers = Receivers()

    async def main() -> None:
        hooks = {"request": [KeyHook()]}
        transport = httpx.MockTransport(receivers)
        async with httpx.AsyncClient(transport=transport, event_hooks=hooks) as client:
            with attempt(key=KEY):
                await client.post("https://a.example/")

    asyncio.run(main())
    assert receivers.keys == [QUOTED]


def test_attempts_that_share_a_client_do_not_share_keys() -> None:
    """Two effects at once, and one after the other, over one transport."""
    receivers = Receivers()

    async def send(client: httpx.AsyncClient, key: str) -> None:
        with attempt(key=key):
            await asyncio.gather(*[client.post(f"https://a.example/{key}") for _ in range(3)])

    async def main() -> None:
        transport = IdempotentTransport(httpx.MockTransport(receivers))
        async with httpx.AsyncClient(transport=transport) as client:
            tasks = [asyncio.create_task(send(client, key)) for key in "abc"]
            await asyncio.gather(*tasks)

    asyncio.run(main())
    assert sorted(receivers.seen) == sorted(
        ("POST", f"https://a.example/{key}", f'"{key}"') for key in "aaabbbccc"
    )


@EACH
def test_a_request_that_two_effects_send_carries_the_key_of_each(client_of) -> None:
    """What was noted on it for the first one is not the second one's."""
    receivers = Receivers()
    request = httpx.Request("POST", "https://a.example/", content=b"x")
    plain = httpx.Request("POST", "https://a.example/", content=b"x")
    with client_of(receivers) as client:
        client.send(plain)
        for key in ("k1", "k2"):
            with attempt(key=key):
                client.send(request)
                client.send(plain)
        client.send(request)
    assert receivers.keys == [None, '"k1"', '"k1"', '"k2"', '"k2"', None]
