"""What is sent again, when, and what is raised in the end; for both transports alike."""

# ruff: noqa: D102, D103 - the doubles of a test say what they do by their names
from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import httpx
import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import outlast
from outlast.errors import (
    FinalAnswerError,
    KeyReusedError,
    ReceiverBusyError,
    ReceiverInDoubtError,
)
from outlast.http.carry import KeyHook
from outlast.http.course import Course, Rules
from outlast.http.problem import Code, Problem
from outlast.http.reply import retry_after
from outlast.http.transport import IdempotentTransport, SyncIdempotentTransport, Target
from outlast.journal.failure import capture
from outlast.testing import attempt
from outlast.worker.series import asked_for
from outlast.workflows.attempt import current_attempt
from outlast.workflows.carry import Errand, current_errand
from outlast.workflows.heartbeat import Beats

KEY = "3a8d389ced457a52325a5e6632713d51"
FAST = outlast.RetryPolicy(initial_interval=timedelta(microseconds=1), maximum_attempts=3)
SAFE = ("GET", "HEAD", "OPTIONS", "TRACE", "QUERY")
IDEMPOTENT = ("GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE", "QUERY")
ERRORS = {
    kind.__name__: kind
    for kind in (
        httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout, httpx.ReadTimeout, httpx.WriteTimeout,
        httpx.ReadError, httpx.WriteError, httpx.CloseError, httpx.RemoteProtocolError, httpx.ProxyError,
    )
}  # fmt: skip
UNSENT = ("ConnectError", "ConnectTimeout", "PoolTimeout")


class Body(httpx.SyncByteStream, httpx.AsyncByteStream):
    """A body that notes whether it was closed."""

    def __init__(self, content: bytes = b"") -> None:
        self.content = content
        self.closed = False

    def __iter__(self) -> Iterator[bytes]:
        yield self.content

    async def __aiter__(self):
        yield self.content

    def close(self) -> None:
        self.closed = True

    async def aclose(self) -> None:
        self.closed = True


class Script(httpx.BaseTransport, httpx.AsyncBaseTransport):
    """Does one thing after the other: an error by its name, a status, or a status with headers; then 200."""

    def __init__(self, *outcomes: Any) -> None:
        self.outcomes = list(outcomes)
        self.sent: list[httpx.Request] = []
        self.bodies: list[Body] = []

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        self.sent.append(request)
        outcome = self.outcomes.pop(0) if self.outcomes else 200
        if isinstance(outcome, str):
            raise ERRORS[outcome](outcome)
        status, headers, content = (outcome, {}, b"") if isinstance(outcome, int) else outcome
        body = Body(content)
        self.bodies.append(body)
        return httpx.Response(status, headers=headers, stream=body)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        return self.handle_request(request)


Send = Callable[..., httpx.Response]


def by_async(script: Script, request: httpx.Request, **options: Any) -> httpx.Response:
    async def main() -> httpx.Response:
        async with IdempotentTransport(script, **options) as transport:
            async with httpx.AsyncClient(transport=transport) as client:
                return await client.send(request)

    return asyncio.run(main())


def by_sync(script: Script, request: httpx.Request, **options: Any) -> httpx.Response:
    with SyncIdempotentTransport(script, **options) as transport:
        with httpx.Client(transport=transport) as client:
            return client.send(request)


EACH = pytest.mark.parametrize("send", [by_async, by_sync])


def post(content: Any = b"x", **options: Any) -> httpx.Request:
    return httpx.Request("POST", "https://a.example/orders?secret=1", content=content, **options)


@contextmanager
def running(kind: str) -> Iterator[None]:
    """Who sends: an effect of either declaration, a step, or nobody."""
    if kind == "nobody":
        yield
        return
    with attempt(key="" if kind == "step" else KEY) as made:
        told = msgspec.structs.replace(made, idempotent=kind == "idempotent effect")
        token = current_attempt.set(told)
        yield
        current_attempt.reset(token)


# The law


def modelled(method: str, who: str, given: bool, streamed: bool, outcomes: list[Any]) -> Any:
    """What is to happen: how often it is sent, and how it ends."""
    carries = method in ("POST", "PATCH")
    known = given or (carries and who == "idempotent effect")
    repeats = (method in IDEMPOTENT or known) and not streamed
    may_have_happened = None
    for number, outcome in enumerate([*outcomes, 200, 200, 200], 1):
        is_last = not repeats or number == 3
        if isinstance(outcome, str):
            if may_have_happened is None and outcome not in UNSENT:
                may_have_happened = outcome
            if is_last:
                return (
                    number,
                    may_have_happened if outcome in UNSENT and may_have_happened else outcome,
                )
            continue
        if outcome == 422 and known:
            return number, "KeyReusedError"
        if outcome in (401, 403, 407) and may_have_happened and method not in SAFE:
            return number, may_have_happened
        is_later = outcome in (429, 503) or (outcome == 409 and known)
        if not is_later or not repeats:
            return number, outcome
        if is_last:
            return number, may_have_happened or outcome
    raise AssertionError


@given(
    method=st.sampled_from([*IDEMPOTENT, "POST", "PATCH", "CONNECT"]),
    who=st.sampled_from(["nobody", "step", "effect", "idempotent effect"]),
    given=st.booleans(),
    streamed=st.booleans(),
    outcomes=st.lists(
        st.sampled_from([*ERRORS, 200, 201, 400, 401, 403, 404, 407, 409, 422, 429, 500, 502, 503]),
        max_size=3,
    ),
)
@example("POST", "effect", False, False, ["ReadTimeout"])
@example("POST", "effect", False, False, [422])
@example("POST", "effect", False, False, [409])
@example("PATCH", "idempotent effect", False, False, [409, 503, 422])
@example("PUT", "idempotent effect", False, False, [409])
@example("POST", "nobody", True, False, ["ReadError", 429, 422])
@example("POST", "idempotent effect", False, False, ["ReadTimeout", "ConnectError", "ConnectError"])
def test_what_is_not_safe_is_sent_once(method, who, given, streamed, outcomes) -> None:
    """By method, key, body and outcomes: how often a request is sent, and what comes of it. Both transports do the same."""
    expected = modelled(method, who, given, streamed, outcomes)
    for send in (by_async, by_sync):
        script = Script(*outcomes)
        headers = {"Idempotency-Key": "mine"} if given else {}
        with running(who):
            request = httpx.Request(
                method,
                "https://a.example/",
                content=None if not streamed else _stream(send),
                headers=headers,
            )
            try:
                end: Any = send(script, request, retry=FAST).status_code
            except (httpx.TransportError, outlast.OutlastError) as error:
                end = type(error).__name__
        assert (len(script.sent), end) == expected
        assert all(body.closed for body in script.bodies)
        assert len({one.headers.get("idempotency-key") for one in script.sent}) == 1


def _stream(send: Send) -> Any:
    async def later():
        yield b"x"

    return iter([b"x"]) if send is by_sync else later()


# Waiting

DATE = "Mon, 30 Nov 2026 12:00:00 GMT"


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"Retry-After": "7"}, 7.0),
        ({"Retry-After": " 0 "}, 0.0),
        ({"Retry-After": "Mon, 30 Nov 2026 12:00:09 GMT", "Date": DATE}, 9.0),
        ({"Retry-After": "Mon, 30 Nov 2026 11:00:00 GMT", "Date": DATE}, 0.0),
        ({"Retry-After": "Monday, 30-Nov-26 12:00:09 GMT", "Date": DATE}, 9.0),
        ({"Retry-After": "Thu, 01 Jan 1970 00:00:12 GMT"}, 2.0),
        ({"Retry-After": "Thu, 01 Jan 1970 00:00:12 GMT", "Date": "nonsense"}, 2.0),
        ({}, None),
        ({"Retry-After": ""}, None),
        ({"Retry-After": "-1"}, None),
        ({"Retry-After": "1.5"}, None),
        ({"Retry-After": "٣"}, None),
        ({"Retry-After": "9" * 400}, None),
        ({"Retry-After": "soon"}, None),
    ],
)
def test_retry_after_is_seconds_or_a_date(headers, seconds) -> None:
    """A date by the clock of the answer, by ours where it shows none; what is no such thing is ignored."""
    encoded = [(name, value.encode()) for name, value in headers.items()]
    assert retry_after(httpx.Response(503, headers=encoded), now=10.0) == seconds


@given(text=st.text(max_size=40))
def test_any_retry_after_is_read_or_ignored(text: str) -> None:
    """Nothing that a receiver writes there raises."""
    headers = [(b"Retry-After", text.encode()), (b"Date", text.encode())]
    found = retry_after(httpx.Response(503, headers=headers), now=0.0)
    assert found is None or found >= 0


def course(rules: Rules | None = None, request: httpx.Request | None = None) -> Course:
    own = request or httpx.Request("POST", "https://a.example/", content=b"x")
    return Course(own, rules or Rules(), lambda: 0.0)


def later(status: int, after: str) -> httpx.Response:
    return httpx.Response(status, headers={"Retry-After": after} if after else {})


@pytest.mark.parametrize("status", [409, 429, 503])
@pytest.mark.parametrize(("after", "wait"), [("7", 7.0), ("0", 0.5), ("", 0.5), ("30", 30.0)])
def test_it_waits_as_long_as_it_is_asked_to_and_no_shorter_than_the_policy_says(
    status, after, wait
) -> None:
    """In progress, too many, unavailable."""
    with attempt(key=KEY):
        own = course()
        own.next()
        assert own.answered(later(status, after)) == wait


def test_the_waits_grow_and_the_tries_end() -> None:
    """0.5, 1 and 2 seconds by default; after the fourth try the answer is given back."""
    with attempt(key=KEY):
        own, waits = course(), list[float | None]()
        for _ in range(4):
            own.next()
            waits.append(own.answered(later(503, "")))
    assert waits == [0.5, 1.0, 2.0, None]


@EACH
def test_more_than_an_attempt_waits_is_left_to_the_next_attempt(send: Send) -> None:
    """It raises what makes the engine wait that long, at once."""
    script = Script((429, {"Retry-After": "3600"}, b""))
    with attempt(key=KEY), pytest.raises(ReceiverBusyError) as busy:
        send(script, post())
    assert len(script.sent) == 1 and script.bodies[0].closed
    assert (busy.value.status, busy.value.retry_after) == (429, 3600.0)
    assert asked_for(capture(busy.value)) == timedelta(hours=1)


@pytest.mark.parametrize("seconds", [86_400, 172_800, 1e300])
def test_no_receiver_puts_the_next_attempt_off_for_more_than_a_day(seconds: float) -> None:
    """It is asked again then, and not at once."""
    error = OSError("busy")
    vars(error)["retry_after"] = seconds
    assert asked_for(msgspec.structs.replace(capture(error), details={"retry_after": seconds})) == (
        timedelta(days=1)
    )


@EACH
def test_outside_of_steps_and_effects_the_answer_is_given_back(send: Send) -> None:
    """No engine is there that would come again."""
    script = Script((429, {"Retry-After": "3600"}, b"too many"))
    response = send(script, httpx.Request("GET", "https://a.example/"))
    assert (response.status_code, response.content) == (429, b"too many")


# The time of the attempt


@contextmanager
def time_left(seconds: Callable[[], float]) -> Iterator[Beats]:
    beats = Beats(lambda: 0.0)
    with attempt(key=KEY):
        token = current_errand.set(Errand(seconds, beats))
        yield beats
        current_errand.reset(token)


def test_nothing_is_waited_for_that_the_attempt_has_no_time_for() -> None:
    """A wait that would end with the time of the attempt, or after it, is none."""
    with time_left(lambda: 7.0):
        own = course()
        own.next()
        assert own.answered(later(503, "6")) == 6.0
        own.next()
        with pytest.raises(ReceiverBusyError) as busy:
            own.answered(later(503, "7"))
        assert busy.value.retry_after == 7.0


def test_a_failed_try_is_the_last_one_when_no_time_is_left_for_another() -> None:
    """The error goes to the engine, which makes the next attempt."""
    with time_left(lambda: 0.4):
        own = course()
        own.next()
        with pytest.raises(httpx.ReadError):
            own.failed(httpx.ReadError("lost"))


def test_no_try_takes_longer_than_the_attempt_has_left() -> None:
    """Assumption A: no attempt acts later than its timeout. A thread cannot be stopped, so its request gets no more time."""
    left = [3.0, 2.0]
    request = httpx.Request(
        "POST",
        "https://a.example/",
        content=b"x",
        extensions={"timeout": {"read": 2.5, "pool": None}},
    )
    with time_left(lambda: left[0]):
        own = course(request=request)
        first = own.next().extensions["timeout"]
        left.pop(0)
        second = own.next().extensions["timeout"]
    assert first == {"connect": 3.0, "read": 2.5, "write": 3.0, "pool": 3.0}
    assert second == dict.fromkeys(("connect", "read", "write", "pool"), 2.0)


@EACH
def test_after_the_time_of_the_attempt_nothing_is_sent(send: Send) -> None:
    """A body that goes on after its timeout sends nothing any more."""
    script = Script()
    with time_left(lambda: 0.0), pytest.raises(httpx.PoolTimeout, match="was not sent"):
        send(script, post())
    assert script.sent == []


@EACH
def test_a_body_that_was_told_to_stop_sends_nothing(send: Send) -> None:
    """Nobody waits for it: its run goes on elsewhere."""
    script = Script()
    with time_left(lambda: 10.0) as beats:
        beats.stop("the attempt was cancelled")
        with pytest.raises(httpx.PoolTimeout):
            send(script, post())
    assert script.sent == []


def test_what_may_have_been_carried_out_is_not_told_as_unsent() -> None:
    """The time is over before the second try: the first one's error is raised, not that of a request that was not sent."""
    left = [10.0]
    with time_left(lambda: left[0]):
        own = course()
        own.next()
        own.failed(httpx.ReadTimeout("no answer"))
        left[0] = 0.0
        with pytest.raises(httpx.ReadTimeout):
            own.next()


# What is raised in the end


@EACH
@pytest.mark.parametrize("later", ["ConnectError", 401, 403, 407, 429])
def test_what_is_open_belongs_to_the_attempt(send: Send, later: Any) -> None:
    """An author who sends again hears of the lost answer, not of a later one that says nothing, until the receiver has told what it did."""
    once = outlast.RetryPolicy(maximum_attempts=1)
    with time_left(lambda: 60.0):
        errand = current_errand.get()
        with pytest.raises(httpx.ReadTimeout):
            send(Script("ReadTimeout"), post(), retry=once)
        assert errand.sent.may_have_acted
        with pytest.raises(httpx.ReadTimeout):
            send(Script(later), post(), retry=once)
        assert errand.sent.may_have_acted
        assert send(Script(402), post(), retry=once).status_code == 402
        assert not errand.sent.may_have_acted
        if later == "ConnectError":
            with pytest.raises(httpx.ConnectError):
                send(Script(later), post(), retry=once)
        else:
            assert send(Script(later), post(), retry=once).status_code == later
        assert not errand.sent.may_have_acted


@EACH
def test_an_open_try_is_not_settled_by_an_answer_that_says_come_later(send: Send) -> None:
    """An author may take 429 for a proof that nothing happened. It is none of the try before; the engine still hears how long to wait."""
    script = Script("ReadTimeout", *[(429, {"Retry-After": "0"}, b"")] * 2)
    with attempt(key=KEY), pytest.raises(httpx.ReadTimeout) as told:
        send(script, post(), retry=FAST)
    assert any("429" in note for note in told.value.__notes__)
    assert vars(told.value)["retry_after"] == 0.0
    assert all(body.closed for body in script.bodies)


@EACH
def test_a_refused_key_is_an_error_that_no_policy_repeats(send: Send) -> None:
    """It tells what the receiver said, and neither the key nor the query."""
    problem = b'{"title": "Key %s is used", "detail": ["x"], "status": "?"}' % KEY.encode()
    script = Script((422, {"Content-Type": "application/problem+json"}, problem))
    with attempt(key=KEY, name="pay", run_id="r-1"), pytest.raises(KeyReusedError) as refused:
        send(script, post())
    text = str(refused.value)
    assert not refused.value.certain and "is not said in words that are known" in text
    assert "Key … is used" in text and "POST to https://a.example" in text
    assert KEY not in repr(capture(refused.value)) and "secret" not in text
    assert (refused.value.status, refused.value.step, refused.value.run) == (422, "pay", "r-1")


@pytest.mark.parametrize(
    "body",
    [b"", b"no json", b"[1]", b'{"title": 7}', b'{"title": "' + b"x" * 9000 + b'"}', b"\xff"],
)
def test_whatever_is_said_with_a_refusal_the_error_is_short(body: bytes) -> None:
    """A receiver may write anything."""
    with attempt(key=KEY), pytest.raises(KeyReusedError) as refused:
        by_sync(Script((422, {}, body)), post())
    assert len(refused.value.message) < 700


def test_a_refusal_in_other_words_is_shown_as_it_begins() -> None:
    """200 characters of whatever it is, without the key; nothing is claimed of the key."""
    body = f"<p>{KEY}</p>".encode() + b"y" * 400
    with attempt(key=KEY), pytest.raises(KeyReusedError) as refused:
        by_sync(Script((422, {}, body)), post())
    assert f"(<p>…</p>{'y' * 192} …)" in refused.value.message
    assert not refused.value.certain


PROBLEM = {"Content-Type": "application/problem+json; charset=utf-8"}


def refused(code: Code, /, **members: Any) -> tuple[int, dict[str, str], bytes]:
    """What the server side of this package sends, perhaps changed."""
    link = members.pop("link", "")
    answer = Problem(members.pop("status", 409), code, "T", "why it is so", members=members).answer(
        link
    )
    return answer.status, PROBLEM, answer.body


@EACH
@pytest.mark.parametrize("link", ["", "https://pay.example/docs"])
def test_the_refusals_of_our_own_server_are_understood(send: Send, link: str) -> None:
    """By type and code. What no repetition mends is not repeated, and says what the receiver said."""
    ends = {
        Code.IN_DOUBT: ReceiverInDoubtError,
        Code.ANSWER_NOT_KEPT: FinalAnswerError,
        Code.KEY_REUSED: KeyReusedError,
    }
    for code, kind in ends.items():
        script = Script(refused(code, link=link))
        with attempt(key=KEY, name="pay", run_id="r-1"), pytest.raises(kind) as told:
            send(script, post(), retry=FAST)
        assert len(script.sent) == 1 and script.bodies[0].closed
        assert "why it is so" in str(told.value) and told.value.hint
        assert (told.value.run, told.value.step, told.value.status) == ("r-1", "pay", 409)
    script = Script(refused(Code.IN_PROGRESS, link=link))
    with attempt(key=KEY):
        assert send(script, post(), retry=FAST).status_code == 200
    assert len(script.sent) == 2


@pytest.mark.parametrize(
    "members",
    [
        {"type": "https://other.example/errors/in-doubt"},
        {"type": 7},
        {"type": "about:blank"},
        {"code": "in_trouble"},
        {"code": ["in_doubt"]},
    ],
)
def test_another_api_s_conflict_is_one_in_progress(members: dict[str, Any]) -> None:
    """Whatever words it has of its own, it is asked again, as the draft says of 409."""
    script = Script(refused(Code.IN_DOUBT, **members))
    with attempt(key=KEY):
        assert by_sync(script, post(), retry=FAST).status_code == 200
    assert len(script.sent) == 2


@EACH
@pytest.mark.parametrize("status", [500, 503, 599])
def test_a_failure_that_is_given_again_is_final(send: Send, status: int) -> None:
    """It is not sent again within the attempt, and no attempt follows; the lost try before is told as its cause."""
    kept = (status, {"Idempotent-Replayed": "True"}, b"out of paper")
    script = Script("ReadTimeout", kept)
    with attempt(key=KEY), pytest.raises(FinalAnswerError) as final:
        send(script, post(), retry=FAST)
    assert len(script.sent) == 2 and all(body.closed for body in script.bodies)
    assert (final.value.status, final.value.detail) == (status, "out of paper")
    assert isinstance(final.value.__cause__, httpx.ReadTimeout)


@EACH
@pytest.mark.parametrize(
    "kept",
    [
        (503, {"Idempotent-Replayed": "true"}, b"x"),
        (429, {"Idempotent-Replayed": "true", "Retry-After": "0"}, b"x"),
        refused(Code.IN_DOUBT),
        refused(Code.ANSWER_NOT_KEPT),
    ],
)
def test_outside_of_steps_and_effects_what_is_final_is_given_back_at_once(
    send: Send, kept: Any
) -> None:
    """Whoever called reads it, and nobody comes again."""
    script = Script(kept)
    response = send(script, post(headers={"Idempotency-Key": '"k"'}), retry=FAST)
    assert (response.status_code, response.content) == (kept[0], kept[2])
    assert len(script.sent) == 1


@EACH
def test_a_failure_that_is_given_again_to_nobody_s_key_is_an_answer(send: Send) -> None:
    """Without a key that the receiver is said to know, the header means nothing."""
    script = Script((503, {"Idempotent-Replayed": "true"}, b""))
    request = httpx.Request("GET", "https://a.example/")
    assert send(script, request, retry=FAST).status_code == 200


@EACH
def test_a_target_tells_a_reused_key_from_content_that_is_not_accepted(send: Send) -> None:
    """Another status, and a look at the body, where a receiver uses one status for both."""
    targets = [Target(refusal=400, is_reuse=lambda answer: answer.json() == "reused")]
    with attempt(key=KEY):
        assert send(Script(422), post(), targets=targets).status_code == 422
    with attempt(key=KEY):
        answer = send(Script((400, {}, b'"no such item"')), post(), targets=targets)
        assert answer.json() == "no such item"
    with attempt(key=KEY), pytest.raises(KeyReusedError):
        send(Script((400, {}, b'"reused"')), post(), targets=targets)


@EACH
def test_a_client_of_effects_sends_nothing_without_a_key(send: Send) -> None:
    """A thread that was begun without the effect's context sends none, and would be carried out anew with each attempt."""
    options = {"requires_key": True, "targets": [Target("login.example", carries=False)]}
    for who in ("nobody", "step"):
        script = Script()
        with running(who), pytest.raises(outlast.DefinitionError, match="has no key"):
            send(script, post(), **options)
        with running(who), pytest.raises(outlast.DefinitionError, match="has no key"):
            KeyHook(requires_key=True)(post())
        assert script.sent == []
        with running(who):
            assert send(script, httpx.Request("GET", "https://a.example/"), **options)
            assert send(script, httpx.Request("POST", "https://login.example/"), **options)
            assert send(script, post(headers={"Idempotency-Key": "mine"}), **options)
    with running("effect"):
        assert send(Script(), post(), **options).status_code == 200


def test_a_thread_takes_the_key_along_by_its_context() -> None:
    """As the documentation says: without, the request is refused."""
    script = Script()

    async def main() -> None:
        client = httpx.Client(transport=SyncIdempotentTransport(script, requires_key=True))
        loop = asyncio.get_running_loop()
        with running("effect"):
            with pytest.raises(outlast.DefinitionError, match="copy_context"):
                await loop.run_in_executor(None, client.send, post())
            context = contextvars.copy_context()
            await loop.run_in_executor(None, context.run, client.send, post())
        client.close()

    asyncio.run(main())
    assert [one.headers["Idempotency-Key"] for one in script.sent] == [f'"{KEY}"']


# Declarations


@pytest.mark.parametrize(
    "make",
    [
        lambda: SyncIdempotentTransport(Script(), retry=outlast.RetryPolicy()),
        lambda: IdempotentTransport(Script(), retry=outlast.RetryPolicy()),
        lambda: IdempotentTransport(Script(), targets=["a.example"]),  # type: ignore[list-item]
        lambda: IdempotentTransport(Script(), targets=Target("a.example")),  # type: ignore[arg-type]
        lambda: IdempotentTransport(httpx.HTTPTransport()),  # type: ignore[arg-type]
        lambda: SyncIdempotentTransport(httpx.AsyncHTTPTransport()),  # type: ignore[arg-type]
        lambda: IdempotentTransport(Script(), longest_wait=3),  # type: ignore[arg-type]
        lambda: IdempotentTransport(Script(), longest_wait=timedelta(-1)),
        lambda: IdempotentTransport(Script(), retry=3),  # type: ignore[arg-type]
        lambda: IdempotentTransport(Script(), requires_key="yes"),  # type: ignore[arg-type]
        lambda: KeyHook("a.example"),  # type: ignore[arg-type]
        lambda: KeyHook(requires_key=1),  # type: ignore[arg-type]
    ],
)
def test_a_transport_without_end_or_with_strange_targets_is_refused(make) -> None:
    """Where it is made."""
    with pytest.raises(outlast.DefinitionError):
        make()


def test_types_that_the_policy_names_are_not_repeated() -> None:
    """As everywhere a RetryPolicy is given."""
    policy = outlast.RetryPolicy(maximum_attempts=3, non_retryable_error_types=("ReadTimeout",))
    script = Script("ReadTimeout")
    with attempt(key=KEY), pytest.raises(httpx.ReadTimeout):
        by_sync(script, post(), retry=policy)
    assert len(script.sent) == 1


def test_the_default_sends_by_httpx() -> None:
    """Without a transport of one's own; closing it closes that."""
    with SyncIdempotentTransport() as transport:
        assert isinstance(transport._transport, httpx.HTTPTransport)

    async def main() -> None:
        async with IdempotentTransport() as transport:
            assert isinstance(transport._transport, httpx.AsyncHTTPTransport)

    asyncio.run(main())
