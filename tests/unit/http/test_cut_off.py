"""A request that is cut off: its client goes, its server gives up, its process dies."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest
from asgi_bench import Handler, answer, connection, policy, post, process, simulate
from requests_double import RequestsDouble

from outlast import Applied, NotApplied, Unknown
from outlast.http import Answer, IdempotencyMiddleware
from outlast.testing import Process

HOLD = timedelta(seconds=60)


def served(clock, act=None, **fields):
    """Return the store, the handler, and the handler behind the guard."""
    store, handler = RequestsDouble(clock), Handler(act)
    return store, handler, IdempotencyMiddleware(handler, store, policy(hold=HOLD, **fields))


async def slow(scope, receive, send) -> None:
    """A handler that takes ten seconds."""
    await asyncio.sleep(10)
    await answer(send, 201, b"paid")


def test_a_client_that_goes_before_it_has_said_all_has_asked_for_nothing() -> None:
    """Nothing is begun, and its key is free."""

    async def main(clock) -> None:
        store, handler, app = served(clock)
        one = connection(app, body=[])
        one.gone.set()
        await one.run()
        assert not store.calls and not handler.count

    simulate(main)


def test_the_handler_goes_on_when_its_client_has_gone(caplog) -> None:
    """To its end, and without hearing of it; the next request with the key gets its answer. It is nothing to be logged."""

    async def main(clock) -> None:
        heard = []

        async def act(scope, receive, send) -> None:
            listening = asyncio.ensure_future(receive())
            await asyncio.sleep(10)
            heard.append(listening.done())
            await answer(send, 201, b"paid")
            heard.append((await listening)["type"])

        _, handler, app = served(clock, act)
        one = connection(app)
        running = asyncio.create_task(one.run())
        await asyncio.sleep(1)
        one.gone.set()
        await running
        assert heard == [False, "http.disconnect"]
        assert one.reply.status == 0 and not caplog.records
        assert (await post(app)).body == b"paid" and handler.count == 1

    simulate(main)


def test_the_handler_goes_on_when_the_server_gives_its_task_up() -> None:
    """As some do when the client goes; it says nothing to it any more, and its answer is kept."""

    async def main(clock) -> None:
        _, handler, app = served(clock, slow)
        one = connection(app)
        running = asyncio.create_task(one.run())
        await asyncio.sleep(1)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert (await post(app)).code == "in_progress"
        await asyncio.sleep(10)
        assert one.reply.status == 0
        assert (await post(app)).body == b"paid" and handler.count == 1

    simulate(main)


def test_a_server_that_never_takes_a_piece_holds_nobody_up_after_it_gave_up() -> None:
    """A send that waits for a client that has gone ends with the server's own task."""

    async def main(clock) -> None:
        async def act(scope, receive, send) -> None:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"a", "more_body": True})
            await answer_end(send)

        async def answer_end(send) -> None:
            await send({"type": "http.response.body", "body": b"b"})

        _, handler, app = served(clock, act)
        one = connection(app)

        async def stuck(message) -> None:
            await asyncio.Event().wait()

        one.send = stuck
        running = asyncio.create_task(one.run())
        await asyncio.sleep(1)
        running.cancel()
        await asyncio.wait({running})
        await asyncio.sleep(1)
        assert (await post(app)).body == b"ab" and handler.count == 1

    simulate(main)


@pytest.mark.parametrize("pieces", [[b"a", b"b", b""], [b"whole"]])
def test_a_slow_client_gets_all_of_an_answer_whose_application_waits_for_its_going(pieces) -> None:
    """As Starlette streams: whoever hears of a disconnect stops sending. That is said only when the last piece has left."""

    async def main(clock) -> None:
        async def stream(send) -> None:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            for at, piece in enumerate(pieces, 1):
                more = at < len(pieces)
                await send({"type": "http.response.body", "body": piece, "more_body": more})

        async def act(scope, receive, send) -> None:
            sending, gone = asyncio.create_task(stream(send)), asyncio.create_task(receive())
            await asyncio.wait({sending, gone}, return_when=asyncio.FIRST_COMPLETED)
            for one in (sending, gone):
                one.cancel()
            await asyncio.wait({sending, gone})

        _, handler, app = served(clock, act)
        one = connection(app)
        take = one.send

        async def slowly(message) -> None:
            await asyncio.sleep(1)
            await take(message)

        one.send = slowly
        reply = await one.run()
        assert reply.is_whole and reply.body == b"".join(pieces)
        again = await post(app)
        assert again.body == reply.body and again.is_replayed and handler.count == 1

    simulate(main)


def test_what_fails_after_its_client_has_gone_is_in_the_log(caplog) -> None:
    """Nobody else would hear of it; and it is kept as failed."""

    async def main(clock) -> None:
        async def act(scope, receive, send) -> None:
            await asyncio.sleep(10)
            raise LookupError("too late for anybody")

        _, _, app = served(clock, act)
        running = asyncio.create_task(post(app))
        await asyncio.sleep(1)
        running.cancel()
        await asyncio.sleep(20)
        assert "too late for anybody" in caplog.text
        assert (await post(app)).code == "handler_failed"

    simulate(main)


def test_a_client_that_cannot_be_reached_is_not_the_handler_s_trouble(caplog) -> None:
    """Whatever the server raises for it."""

    async def main(clock) -> None:
        _, handler, app = served(clock)
        one = connection(app)

        async def broken(message) -> None:
            raise KeyError("the server's own")

        one.send = broken
        await one.run()
        assert "could not be sent" in caplog.text
        assert (await post(app)).body == b"paid 1" and handler.count == 1

    simulate(main)


def dies(server: Process, at: float, app) -> asyncio.Task:
    """Let a request be carried out in a process that dies."""
    loop = asyncio.get_running_loop()
    loop.call_later(at, server.kill)
    return loop.create_task(connection(app).run(), context=server.context())


def test_a_key_is_in_doubt_when_its_process_died() -> None:
    """First in progress, as far as anybody can tell; then in doubt, and not repeated, however long ago that was."""

    async def main(clock) -> None:
        store, handler, app = served(clock, slow)
        dies(process(), 5, app)
        await asyncio.sleep(6)
        assert (await post(app)).code == "in_progress"
        await asyncio.sleep(HOLD.total_seconds())
        for _ in range(2):
            refused = await post(app)
            assert (refused.status, refused.code) == (409, "in_doubt")
            assert refused.header("retry-after") is None
            ((_, row),) = store.rows.items()
            assert refused.json["request_id"] == row.request_id
            await asyncio.sleep(48 * 3600)
        assert (await post(app, body=b"other")).code == "key_reused"
        assert handler.count == 1

    simulate(main, longest=timedelta(days=7))


def test_a_handler_whose_loop_is_torn_down_is_in_doubt() -> None:
    """A shutdown cancels it: what it had done until then nobody knows."""

    async def main(clock) -> None:
        async def act(scope, receive, send) -> None:
            tasks.append(asyncio.current_task())
            await slow(scope, receive, send)

        tasks = []
        store, handler, app = served(clock, act)
        running = asyncio.create_task(post(app))
        await asyncio.sleep(1)
        tasks[0].cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        await asyncio.sleep(HOLD.total_seconds())
        assert "end" not in store.calls
        assert (await post(app)).code == "in_doubt" and handler.count == 1

    simulate(main)


@pytest.mark.parametrize("at", ["begin", "end"])
@pytest.mark.parametrize("side", ["before", "after"])
def test_a_process_that_dies_around_a_write(at: str, side: str) -> None:
    """At each write, before and after it: what was not begun is carried out, what was is never carried out twice."""

    async def main(clock) -> None:
        store, handler, app = served(clock)
        server = process()
        verb = getattr(store, at)

        async def fatal(*args, **fields):
            setattr(store, at, verb)
            if side == "before":
                server.kill()
                await asyncio.sleep(0)
            done = await verb(*args, **fields)
            server.kill()
            await asyncio.sleep(0)
            return done

        setattr(store, at, fatal)
        asyncio.get_running_loop().create_task(connection(app).run(), context=server.context())
        await asyncio.sleep(2 * HOLD.total_seconds())
        reply = await post(app)
        expected = {
            ("begin", "before"): ("", 1),
            ("begin", "after"): ("in_doubt", 0),
            ("end", "before"): ("in_doubt", 1),
            ("end", "after"): ("", 1),
        }[at, side]
        assert (reply.code, handler.count) == expected

    simulate(main)


@pytest.mark.parametrize(
    "found", [Applied(Answer(201, (), b"paid")), NotApplied(), Unknown("no idea")]
)
def test_a_probe_settles_what_is_in_doubt(found) -> None:
    """It happened: its answer is kept. It did not: it is carried out. It cannot say: in doubt."""

    async def main(clock) -> None:
        asked = []

        async def probe(request):
            asked.append(request)
            return found

        _, handler, app = served(clock, slow, on_doubt=probe)
        dies(process(), 5, app)
        await asyncio.sleep(120)
        first, second = await post(app), await post(app)
        assert (asked[0].key, asked[0].method, asked[0].path, asked[0].body) == (
            "key-1",
            "POST",
            "/pay",
            b"{}",
        )
        if isinstance(found, Unknown):
            assert first.code == second.code == "in_doubt" and "no idea" in first.json["detail"]
        else:
            assert first.body == second.body == b"paid" and second.is_replayed
            assert first.is_replayed == isinstance(found, Applied)
        assert handler.count == (2 if isinstance(found, NotApplied) else 1)
        assert len(asked) == (2 if isinstance(found, Unknown) else 1)

    simulate(main)


def test_of_several_that_ask_a_probe_one_carries_out() -> None:
    """The others find it in progress, though they were told that nothing had happened."""

    async def main(clock) -> None:
        async def probe(request):
            await asyncio.sleep(1)
            return NotApplied()

        _, handler, app = served(clock, slow, on_doubt=probe)
        dies(process(), 5, app)
        await asyncio.sleep(120)
        replies = await asyncio.gather(*(post(app) for _ in range(5)))
        assert sorted(one.code for one in replies) == ["", *["in_progress"] * 4]
        assert handler.count == 2

    simulate(main)


def test_a_probe_that_fails_has_found_nothing_out(caplog) -> None:
    """It stays in doubt; the client is not told what went wrong, the log is."""

    async def main(clock) -> None:
        async def probe(request):
            raise LookupError("a secret")

        _, handler, app = served(clock, slow, on_doubt=probe)
        dies(process(), 5, app)
        await asyncio.sleep(120)
        refused = await post(app)
        assert refused.code == "in_doubt" and b"secret" not in refused.body
        assert "a secret" in caplog.text and handler.count == 1

    simulate(main)


@pytest.mark.parametrize(
    "found",
    [
        None,
        NotApplied,
        Unknown,
        Answer(201),
        Applied({"paid": 1}),
        Applied(Answer),
        Applied(None),
        False,
    ],
)
def test_a_probe_that_answers_anything_else_has_found_nothing_out(found, caplog) -> None:
    """A forgotten `return` is no word for "not applied": nothing is carried out again, and the log says what came."""

    async def main(clock) -> None:
        async def probe(request):
            return found

        _, handler, app = served(clock, slow, on_doubt=probe)
        dies(process(), 5, app)
        await asyncio.sleep(120)
        first, second = await post(app), await post(app)
        assert first.code == second.code == "in_doubt" and handler.count == 1
        assert "instead of Applied(Answer(…)), NotApplied() or Unknown(why)" in caplog.text

    simulate(main)


@pytest.mark.parametrize(
    "found", [Applied(Answer(201, (), b"paid")), NotApplied(), Unknown("no idea")]
)
def test_a_probe_need_not_be_async(found) -> None:
    """It is asked all the same, and its word counts."""

    async def main(clock) -> None:
        _, handler, app = served(clock, slow, on_doubt=lambda request: found)
        dies(process(), 5, app)
        await asyncio.sleep(120)
        reply = await post(app)
        assert reply.code == ("in_doubt" if isinstance(found, Unknown) else "")
        assert handler.count == (2 if isinstance(found, NotApplied) else 1)

    simulate(main)


def test_a_process_that_stood_still_past_its_hold_ends_its_own_request(caplog) -> None:
    """Nobody has resolved it meanwhile: a late outcome is an outcome."""

    async def main(clock) -> None:
        _, handler, app = served(clock, slow)
        server = process()
        loop = asyncio.get_running_loop()
        running = loop.create_task(connection(app).run(), context=server.context())
        loop.call_later(5, server.freeze)
        await asyncio.sleep(120)
        assert (await post(app)).code == "in_doubt"
        server.thaw()
        await running
        assert (await post(app)).body == b"paid" and handler.count == 1

    simulate(main)


def test_whoever_is_resolved_while_it_runs_says_so(caplog) -> None:
    """Its hold is gone: an operator thought it dead. It is an error, of the policy's `hold`."""

    async def main(clock) -> None:
        async def act(scope, receive, send) -> None:
            await asyncio.sleep(1)
            store.resolve(None)
            await asyncio.sleep(100)
            await answer(send, 201, b"paid")

        store, _, app = served(clock, act)
        assert (await post(app)).body == b"paid"
        assert caplog.text.count("was resolved by somebody while it is carried out") == 1
        assert store.calls.count("hold") == 1

    simulate(main)
