"""Every state of a key, and what the caller gets."""

from __future__ import annotations

import asyncio
import json
from datetime import timedelta

import pytest
from asgi_bench import KEY, Handler, answer, connection, policy, post, simulate
from requests_double import RequestsDouble

from outlast.errors import DefinitionError
from outlast.http import Answer, IdempotencyMiddleware, guarded, keeps_status
from outlast.http.answer import Unkept, encode


def served(clock, act=None, **fields):
    """Return the store, the handler, and the handler behind the guard."""
    store, handler = RequestsDouble(clock), Handler(act)
    return store, handler, IdempotencyMiddleware(handler, store, policy(**fields))


def test_the_first_answer_is_given_again() -> None:
    """Whole: status, headers, body; marked as a replay, and not carried out again."""

    async def act(scope, receive, send) -> None:
        headers = [(b"Location", b"/pay/1"), (b"Set-Cookie", b"a=1"), (b"Content-Length", b"4")]
        await answer(send, 201, b"paid", headers)

    async def main(clock) -> None:
        _, handler, app = served(clock, act)
        first, second = await post(app), await post(app)
        assert (first.status, first.body, first.is_replayed) == (201, b"paid", False)
        assert first.header("set-cookie") == "a=1"
        assert (second.status, second.body, second.is_replayed) == (201, b"paid", True)
        assert dict(second.headers) == {
            "location": "/pay/1",
            "content-length": "4",
            "idempotent-replayed": "true",
        }
        assert handler.count == 1

    simulate(main)


def test_another_key_principal_or_tenant_is_another_request() -> None:
    """Nobody gets an answer under somebody else's name, also where names would run into each other."""

    async def main(clock) -> None:
        of = {"principal": lambda s: s["who"][0], "tenant": lambda s: s["who"][1]}
        _, handler, app = served(clock, **of)
        asked = [
            await post(app, key=key, who=who)
            for key in ('"a"', '"b"')
            for who in (("x", "y"), ("y", "x"), ('x", "y', ""), ("z", 'x", "y'), ("z", ""))
        ]
        assert not any(one.is_replayed for one in asked)
        assert handler.count == 10
        again = await post(app, key='"a"', who=("y", "x"))
        assert again.body == asked[1].body and again.is_replayed

    simulate(main)


def test_an_asynchronous_principal_is_awaited_and_one_that_is_none_refused() -> None:
    """What is not known to be somebody's is carried out for nobody; empty text is no name, as many frameworks give it to strangers."""

    async def who(scope):
        return scope["who"]

    async def main(clock) -> None:
        _, handler, app = served(clock, principal=who)
        assert (await post(app, who="a")).status == 201
        for nobody in (None, ""):
            with pytest.raises(DefinitionError, match="belongs to nobody") as refused:
                await post(app, who=nobody)
            assert "not authenticated" in refused.value.hint
        assert handler.count == 1

    simulate(main)


@pytest.mark.parametrize(
    "other", [{"body": b"{ }"}, {"path": "/other"}, {"query_string": b"a=1"}, {"method": "PATCH"}]
)
def test_a_key_with_another_payload_is_refused(other: dict) -> None:
    """Method, path, query and body are what a key stands for: 422, whatever the first one's state."""

    async def main(clock) -> None:
        store, handler, app = served(clock)
        await post(app)
        refused = await post(app, **other)
        assert (refused.status, refused.code) == (422, "key_reused")
        store.rows = {
            k: v.__class__(**{**v.__dict__, "state": "running"}) for k, v in store.rows.items()
        }
        assert (await post(app, **other)).code == "key_reused"
        assert handler.count == 1

    simulate(main)


def test_the_fingerprint_is_the_policy_s() -> None:
    """One that looks at the amount alone takes what differs in a remark for the same."""

    async def main(clock) -> None:
        _, handler, app = served(clock, fingerprint=lambda _, body: str(json.loads(body)["amount"]))
        await post(app, body=b'{"amount": 1, "remark": "a"}')
        assert (await post(app, body=b'{"remark": "b", "amount": 1}')).is_replayed
        assert (await post(app, body=b'{"amount": 2}')).code == "key_reused"
        assert handler.count == 1

    simulate(main)


def test_a_missing_or_malformed_key_is_refused() -> None:
    """400 each, as problem details with a link to the policy; the handler is not called."""

    async def main(clock) -> None:
        store, handler, app = served(clock, link="https://api.example.com/idempotency")
        missing, malformed = await post(app, key=None), await post(app, key="abc")
        assert missing.json == {
            "type": "https://api.example.com/idempotency#key-missing",
            "title": "Idempotency-Key is missing",
            "status": 400,
            "detail": missing.json["detail"],
            "code": "key_missing",
        }
        assert missing.header("link") == '<https://api.example.com/idempotency>; rel="describedby"'
        assert (malformed.status, malformed.code) == (400, "key_malformed")
        twice = await post(app, headers=[("idempotency-key", KEY)])
        assert (twice.status, twice.code) == (400, "key_malformed")
        assert not handler.count and not store.calls

    simulate(main)


def test_a_key_may_be_left_out_where_it_is_optional() -> None:
    """Such a request goes through unguarded; a malformed key is refused all the same."""

    async def main(clock) -> None:
        store, handler, app = served(clock, required=False)
        assert (await post(app, key=None)).body == b"paid 1"
        assert (await post(app, key=None)).body == b"paid 2"
        assert not store.calls
        assert (await post(app, key="abc")).code == "key_malformed"
        assert handler.count == 2

    simulate(main)


@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE", "OPTIONS"])
def test_other_methods_go_through_untouched(method: str) -> None:
    """With a key or without: scope, receive and send are the server's own."""

    async def main(clock) -> None:
        seen = []

        async def app(*args) -> None:
            seen.append(args)

        store = RequestsDouble(clock)
        one = connection(IdempotencyMiddleware(app, store, policy()), method=method)
        await one.run()
        assert seen == [(one.scope, one.receive, one.send)]
        assert not store.calls

    simulate(main)


@pytest.mark.parametrize("kind", ["websocket", "lifespan"])
def test_other_connections_go_through_untouched(kind: str) -> None:
    """A websocket has no method, a lifespan no headers."""

    async def main(clock) -> None:
        seen = []

        async def app(*args) -> None:
            seen.append(args)

        args = ({"type": kind}, object(), object())
        await IdempotencyMiddleware(app, RequestsDouble(clock), policy())(*args)
        assert seen == [args]

    simulate(main)


def test_one_in_progress_is_not_run_twice() -> None:
    """Whoever asks meanwhile is told to come again; whoever comes after it gets the answer."""

    async def main(clock) -> None:
        async def act(scope, receive, send) -> None:
            await handler.may_go_on.wait()
            await answer(send, 201, b"paid")

        _, handler, app = served(clock, act, retry_after=timedelta(seconds=2.5))
        first = asyncio.create_task(post(app))
        await asyncio.sleep(1)
        busy = await post(app)
        assert (busy.status, busy.code, busy.header("retry-after")) == (409, "in_progress", "3")
        handler.may_go_on.set()
        assert (await first).body == b"paid" == (await post(app)).body
        assert handler.count == 1

    simulate(main)


@pytest.mark.parametrize(("takes", "status"), [(4, 201), (6, 409)])
def test_waiting_for_the_first_answer_has_a_bound(takes: int, status: int) -> None:
    """`wait` long a repetition waits, and then it is told that the first is in progress."""

    async def main(clock) -> None:
        async def act(scope, receive, send) -> None:
            await asyncio.sleep(takes)
            await answer(send, 201, b"paid")

        _, handler, app = served(clock, act, wait=timedelta(seconds=5))
        first, second = await asyncio.gather(post(app), post(app))
        assert (first.status, second.status) == (201, status)
        assert second.is_replayed == (status == 201)
        assert handler.count == 1

    simulate(main)


def test_whoever_waited_for_a_refusal_is_carried_out() -> None:
    """When the first came to nothing, its key is free for the second."""

    async def main(clock) -> None:
        async def act(scope, receive, send) -> None:
            count = handler.count
            await asyncio.sleep(1)
            await answer(send, 429 if count == 1 else 201)

        _, handler, app = served(clock, act, wait=timedelta(seconds=5))
        replies = await asyncio.gather(post(app), post(app))
        assert sorted((one.status, one.is_replayed) for one in replies) == [
            (201, False),
            (429, False),
        ]

    simulate(main)


@pytest.mark.parametrize("status", [200, 201, 202, 204, 302, 402, 410, 500, 502, 503])
def test_answers_are_kept_once_something_may_have_happened(status: int) -> None:
    """Failures among them."""
    _check_kept(status, keep=True)


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 412, 413, 415, 422, 429])
def test_refusals_are_not_kept(status: int) -> None:
    """The key is free again, also for a corrected payload."""
    _check_kept(status, keep=False)


def _check_kept(status: int, *, keep: bool) -> None:
    async def act(scope, receive, send) -> None:
        await answer(send, status)

    async def main(clock) -> None:
        store, handler, app = served(clock, act)
        first, second = await post(app), await post(app)
        assert (first.status, second.status) == (status, status)
        assert second.is_replayed == keep
        assert handler.count == (1 if keep else 2)
        assert bool(store.rows) == keep
        assert keeps_status(status) == keep
        assert (await post(app, body=b"other")).status == (422 if keep else status)

    simulate(main)


@pytest.mark.parametrize(("status", "keep"), [(503, False), (409, True)])
def test_a_handler_s_word_counts_before_the_policy(status: int, keep: bool) -> None:
    """It alone knows whether something has happened."""

    async def act(scope, receive, send) -> None:
        request = guarded(scope)
        assert request is not None and request.key == "key-1" and len(request.request_id) == 64
        request.keep_answer(keep)
        await answer(send, status)

    async def main(clock) -> None:
        _, handler, app = served(clock, act)
        await post(app)
        assert (await post(app)).is_replayed == keep
        assert handler.count == (1 if keep else 2)

    simulate(main)


def test_an_answer_expires() -> None:
    """At the end of `keep`, by the store's clock, and not before."""

    async def main(clock) -> None:
        _, handler, app = served(clock, keep=timedelta(hours=1))
        await post(app)
        clock.advance(timedelta(minutes=59))
        assert (await post(app)).is_replayed
        clock.advance(timedelta(minutes=1))
        assert not (await post(app)).is_replayed
        assert handler.count == 2

    simulate(main)


def test_the_hold_is_renewed_while_the_handler_runs() -> None:
    """A handler may take longer than `hold`; it is in progress, and not in doubt."""

    async def main(clock) -> None:
        async def act(scope, receive, send) -> None:
            await asyncio.sleep(1000)
            await answer(send, 201)

        store, handler, app = served(clock, act, hold=timedelta(seconds=30))
        first = asyncio.create_task(post(app))
        for _ in range(99):
            await asyncio.sleep(10)
            assert (await post(app)).code == "in_progress"
        assert (await first).status == 201
        renewals = store.calls.count("hold")
        await asyncio.sleep(1000)
        assert store.calls.count("hold") == renewals <= 101, "renewed after its end"

    simulate(main)


def test_a_streamed_request_reaches_the_handler_whole() -> None:
    """However many pieces it came in, the handler and the fingerprint see one."""

    async def main(clock) -> None:
        _, handler, app = served(clock)
        await post(app, body=[b"a", b"", b"bc"])
        assert handler.bodies == [b"abc"]
        assert (await post(app, body=[b"abc"])).is_replayed

    simulate(main)


@pytest.mark.parametrize(
    "request_", [{"body": [b"123", b"456"]}, {"body": b"", "headers": [("content-length", "6")]}]
)
def test_a_body_beyond_the_bound_is_refused(request_: dict) -> None:
    """By its length when it says it, and otherwise when it comes; nothing is begun."""

    async def main(clock) -> None:
        store, handler, app = served(clock, largest_body_bytes=5)
        refused = await post(app, **request_)
        assert (refused.status, refused.code) == (413, "body_too_large")
        assert not store.calls and not handler.count
        assert (await post(app, body=b"12345")).status == 201

    simulate(main)


def test_a_streamed_answer_is_recorded_while_it_is_sent() -> None:
    """The client gets each piece as it comes, but the last, which waits until all are kept."""

    async def main(clock) -> None:
        seen = []

        async def act(scope, receive, send) -> None:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            for part in (b"a", b"b", b"c"):
                await send({"type": "http.response.body", "body": part, "more_body": True})
                seen.append((one.reply.body, store.calls.count("end")))
            await send({"type": "http.response.body", "body": b"d"})
            seen.append((one.reply.body, store.calls.count("end")))

        store, handler, app = served(clock, act)
        one = connection(app)
        await one.run()
        assert seen == [(b"a", 0), (b"ab", 0), (b"abc", 0), (b"abcd", 1)]
        again = await post(app)
        assert (again.body, again.is_replayed, handler.count) == (b"abcd", True, 1)

    simulate(main)


def test_an_answer_is_kept_before_it_is_seen() -> None:
    """Nobody has seen an answer that could be given otherwise again."""

    async def main(clock) -> None:
        store, _, app = served(clock)
        one = connection(app)
        end = store.end

        async def watched(*args):
            assert one.reply.status == 0
            return await end(*args)

        store.end = watched
        assert (await one.run()).status == 201
        assert store.calls == ["begin", "end"]

    simulate(main)


def test_an_answer_beyond_the_bound_is_sent_and_not_kept() -> None:
    """It is not repeated either: whoever asks again is told that it was carried out."""

    async def act(scope, receive, send) -> None:
        await send({"type": "http.response.start", "status": 201, "headers": []})
        for _ in range(10):
            await send({"type": "http.response.body", "body": b"12345", "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    async def main(clock) -> None:
        store, handler, app = served(clock, act, largest_answer_bytes=9)
        assert (await post(app)).body == b"12345" * 10
        again = await post(app)
        assert (again.status, again.code) == (409, "answer_not_kept")
        assert again.json["original_status"] == 201 and again.header("retry-after") is None
        assert handler.count == 1
        assert all(len(row.answer) < 200 for row in store.rows.values())

    simulate(main)


def test_a_handler_that_raises_has_failed_once() -> None:
    """500 is an outcome: it is sent, kept and given again; the server hears of the exception."""

    async def act(scope, receive, send) -> None:
        raise LookupError("no such account")

    async def main(clock) -> None:
        _, handler, app = served(clock, act)
        one = connection(app)
        with pytest.raises(LookupError):
            await one.run()
        assert (one.reply.status, one.reply.code, one.reply.is_whole) == (
            500,
            "handler_failed",
            True,
        )
        again = await post(app)
        assert (again.body, again.is_replayed, handler.count) == (one.reply.body, True, 1)

    simulate(main)


def test_a_handler_that_raises_is_repeated_where_failures_are_not_kept() -> None:
    """Then whoever is further out answers, as without the guard."""

    async def act(scope, receive, send) -> None:
        raise LookupError("no such account")

    async def main(clock) -> None:
        store, handler, app = served(clock, act, keeps=lambda status: status < 500)
        for count in (1, 2):
            one = connection(app)
            with pytest.raises(LookupError):
                await one.run()
            assert one.reply.status == 0 and handler.count == count and not store.rows

    simulate(main)


@pytest.mark.parametrize("raises", [True, False])
def test_an_answer_that_breaks_off_is_a_failure(raises: bool) -> None:
    """By an exception, or by an application that just returns: what was seen of it cannot be given again."""

    async def act(scope, receive, send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"half", "more_body": True})
        if raises:
            raise LookupError

    async def main(clock) -> None:
        _, handler, app = served(clock, act)
        one = connection(app)
        with pytest.raises(LookupError if raises else RuntimeError):
            await one.run()
        assert (one.reply.body, one.reply.is_whole) == (b"half", False)
        again = await post(app)
        assert (again.status, again.code, again.is_replayed) == (500, "handler_failed", True)
        assert again.json["original_status"] == 200 and handler.count == 1

    simulate(main)


def test_a_handler_that_never_answers_has_failed() -> None:
    """It returned, and nothing can be given again."""

    async def act(scope, receive, send) -> None:
        return

    async def main(clock) -> None:
        _, _, app = served(clock, act)
        one = connection(app)
        with pytest.raises(RuntimeError, match="before its answer"):
            await one.run()
        assert one.reply.code == "handler_failed"
        assert (await post(app)).is_replayed

    simulate(main)


@pytest.mark.parametrize(
    "messages",
    [
        [{"type": "http.response.body", "body": b""}],
        [{"type": "http.response.start", "status": 200, "headers": []}] * 2,
    ],
)
def test_messages_out_of_turn_are_the_application_s_fault(messages: list) -> None:
    """It is told so, as by a server."""

    async def act(scope, receive, send) -> None:
        for one in messages:
            await send(one)

    async def main(clock) -> None:
        _, _, app = served(clock, act)
        with pytest.raises(RuntimeError, match="answer"):
            await post(app)

    simulate(main)


def test_work_after_the_answer_is_not_part_of_it() -> None:
    """A background task that raises changes nothing of what was kept."""

    async def act(scope, receive, send) -> None:
        await answer(send, 201, b"paid")
        assert (await receive())["type"] == "http.disconnect"
        raise LookupError("in the background")

    async def main(clock) -> None:
        _, _, app = served(clock, act)
        one = connection(app)
        with pytest.raises(LookupError):
            await one.run()
        assert (await post(app)).body == one.reply.body == b"paid"

    simulate(main)


def test_nothing_is_carried_out_without_the_store() -> None:
    """503 with Retry-After; when the store is back the key is free."""

    async def main(clock) -> None:
        store, handler, app = served(clock)
        store.down = {"begin", "end"}
        refused = await post(app)
        assert (refused.status, refused.code, refused.header("retry-after")) == (
            503,
            "store_unavailable",
            "1",
        )
        assert not handler.count
        store.down = set()
        assert (await post(app)).status == 201

    simulate(main)


def test_a_beginning_whose_answer_was_lost_is_taken_back() -> None:
    """The record stands, and nobody carries it out: it goes, and is not in doubt."""

    async def main(clock) -> None:
        store, handler, app = served(clock)
        store.deaf, store.down = {"begin"}, {"end"}
        assert (await post(app)).status == 503
        store.deaf, store.down = set(), set()
        assert len(store.rows) == 1
        await asyncio.sleep(10)
        assert not store.rows and not handler.count
        assert (await post(app)).status == 201

    simulate(main)


@pytest.mark.parametrize("trouble", ["down", "deaf"])
def test_an_answer_that_could_not_be_kept_is_kept_later(trouble: str) -> None:
    """The client has it, since it is true; until it is kept the key is in progress, however long that takes."""

    async def main(clock) -> None:
        store, handler, app = served(clock, hold=timedelta(seconds=10))
        setattr(store, trouble, {"end"})
        assert (await post(app)).body == b"paid 1"
        if trouble == "down":
            await asyncio.sleep(100)
            assert (await post(app)).code == "in_progress"
        setattr(store, trouble, set())
        await asyncio.sleep(10)
        again = await post(app)
        assert (again.body, again.is_replayed, handler.count) == (b"paid 1", True, 1)

    simulate(main)


def test_a_hold_that_could_not_be_renewed_is_renewed_later() -> None:
    """A store that is away for a moment puts nothing in doubt."""

    async def main(clock) -> None:
        async def act(scope, receive, send) -> None:
            await asyncio.sleep(60)
            await answer(send, 201)

        store, _, app = served(clock, act, hold=timedelta(seconds=30))
        first = asyncio.create_task(post(app))
        await asyncio.sleep(5)
        store.down = {"hold"}
        await asyncio.sleep(12)
        store.down = set()
        await asyncio.sleep(20)
        assert (await post(app)).code == "in_progress"
        assert (await first).status == 201

    simulate(main)


def test_the_client_may_be_found_from_the_scope() -> None:
    """An application opens it when it starts, and its middleware is made before."""

    async def main(clock) -> None:
        store, handler = RequestsDouble(clock), Handler()
        app = IdempotencyMiddleware(handler, lambda scope: scope["state"]["client"], policy())
        await post(app, state={"client": store})
        assert (await post(app, state={"client": store})).is_replayed

    simulate(main)


def test_a_guard_within_a_guard_lets_through() -> None:
    """A route's own, in an application that is guarded as a whole."""

    async def main(clock) -> None:
        store, handler, app = served(clock)
        outer = IdempotencyMiddleware(app, store, policy())
        assert (await post(outer)).status == 201
        assert (await post(outer)).is_replayed
        assert store.calls == ["begin", "end", "begin"]

    simulate(main)


def test_ways_to_answer_that_cannot_be_recorded_are_not_offered() -> None:
    """An application that would send a file by its path sends its content; other extensions stay."""

    async def main(clock) -> None:
        seen = []

        async def act(scope, receive, send) -> None:
            seen.append(scope["extensions"])
            await answer(send)

        _, _, app = served(clock, act)
        offered = {"http.response.pathsend": {}, "http.response.early_hint": {}, "tls": {"a": 1}}
        await post(app, extensions=offered)
        assert seen == [{"http.response.early_hint": {}, "tls": {"a": 1}}]
        assert len(offered) == 3

    simulate(main)


def test_the_note_is_for_operators_and_holds_no_secrets() -> None:
    """Method, path, principal, tenant; neither body nor query nor key."""

    async def main(clock) -> None:
        store, _, app = served(clock, principal=lambda _: "ann", tenant=lambda _: "acme")
        await post(app, key='"the-key"', body=b"card=4711", query_string=b"token=s3cret")
        ((key, row),) = store.rows.items()
        assert json.loads(row.note) == {
            "method": "POST",
            "path": "/pay",
            "principal": "ann",
            "tenant": "acme",
        }
        assert json.loads(key) == ["1", "acme", "ann", "the-key"]

    simulate(main)


@pytest.mark.parametrize(
    ("kept", "code"),
    [(encode(Unkept(0, "was not kept")), "answer_not_kept"), (b"damaged", "answer_not_kept")],
)
def test_what_cannot_be_given_again_is_not_carried_out_again(kept: bytes, code: str) -> None:
    """Whoever has written it: a record that is done stays done."""

    async def main(clock) -> None:
        store, handler, app = served(clock)
        await post(app)
        store.resolve(kept)
        assert (await post(app)).code == code
        assert handler.count == 1

    simulate(main)


def test_an_empty_answer_is_given_again_without_a_length() -> None:
    """204 has no body, and says nothing about one."""

    async def act(scope, receive, send) -> None:
        await answer(send, 204)

    async def main(clock) -> None:
        _, _, app = served(clock, act)
        await post(app)
        assert dict((await post(app)).headers) == {"idempotent-replayed": "true"}

    simulate(main)


def test_an_operator_s_word_stands_before_a_late_answer() -> None:
    """Equal requests get equal answers, also the one that was thought dead."""

    async def main(clock) -> None:
        async def act(scope, receive, send) -> None:
            store.resolve(encode(Answer(202, (), b"by hand")))
            await answer(send, 201, b"late")

        store, _, app = served(clock, act)
        first = await post(app)
        assert (first.status, first.body) == (202, b"by hand")
        assert (await post(app)).body == b"by hand"

    simulate(main)
