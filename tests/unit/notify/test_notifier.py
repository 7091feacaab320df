"""Who is asked is told once, by every channel, as long as he can decide; what fails is tried again."""

from __future__ import annotations

import asyncio
import logging
import math
from datetime import timedelta

import pytest

import outlast
from outlast.errors import StoreUnavailableError
from outlast.journal.asking import Terms
from outlast.notify import Notifier, Notify
from outlast.notify import notifier as module
from outlast.store.change import Unknown
from outlast.store.notice import EndNotice

from .notify_bench import HOUR, Office, Post

pytestmark = pytest.mark.filterwarnings("error")


async def test_who_is_asked_is_told_once() -> None:
    """And the next look finds nothing; the message says the same id each time, and another one for another run."""
    office, post = Office(), Post()
    run, other = await office.ask("a"), await office.ask("b")
    notifier = office.notifier(post)
    assert await notifier.look() == math.inf
    assert await notifier.look() == math.inf
    assert [title for title, _, _ in post.sent] == [
        "maintainer: an approval waits in run a",
        "maintainer: an approval waits in run b",
    ]
    assert len({its_id for _, _, its_id in post.sent}) == 2
    assert await office.states(run) == [("asked", "sent", 1)]
    assert await office.states(other) == [("asked", "sent", 1)]


async def test_each_role_has_its_channels() -> None:
    """A role that has none of its own is reached by those of everybody."""
    office, own, every = Office(), Post("own"), Post("every")
    await office.ask("a")
    await office.ask("b", terms=Terms("boss", HOUR))
    setting = Notify({"maintainer": [own], "*": [every]})
    await Notifier(office.store, setting).look()
    assert [title[:10] for title, _, _ in own.sent] == ["maintainer"]
    assert [title[:4] for title, _, _ in every.sent] == ["boss"]


async def test_a_role_without_a_channel_waits_for_one(caplog: pytest.LogCaptureFixture) -> None:
    """A deploy brings it: it is said once, as an error, however often somebody looks, and sent when there is one."""
    office, post = Office(), Post()
    run = await office.ask()
    without = Notifier(office.store, Notify({"boss": [Post()]}))
    for wait in (1, 2, 4, 8):
        assert await without.look() == wait
        (notice,) = await office.store.notices(run)
        assert notice.state == "open"
        assert notice.trouble == b"no channel is set for the role maintainer"
        office.clock.advance(timedelta(seconds=wait))
    assert [one.levelname for one in caplog.records if one.levelno > logging.DEBUG] == ["ERROR"]
    assert await office.notifier(post).look() == math.inf
    assert [title for title, _, _ in post.sent] == ["maintainer: an approval waits in run run"]
    assert await office.states(run) == [("asked", "sent", 5)]


async def test_a_role_that_never_has_a_channel_is_given_up_with_its_request() -> None:
    """Not before its end, and not after it."""
    office = Office()
    run = await office.ask()
    without, begun = Notifier(office.store, Notify({"boss": [Post()]})), office.clock.now()
    while (wait := await without.look()) < math.inf:
        office.clock.advance(timedelta(seconds=wait))
    assert HOUR / 2 < office.clock.now() - begun < HOUR
    (notice,) = await office.store.notices(run)
    assert notice.state == "failed"


async def test_a_channel_that_was_taken_away_is_said_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """What is said of it is not what was said of the tries before."""
    office = Office()
    await office.ask()
    await office.notifier(Post(fails=1)).look()
    office.clock.advance(timedelta(seconds=1))
    await Notifier(office.store, Notify({"boss": [Post()]})).look()
    assert [one.levelname for one in caplog.records if one.levelno > logging.DEBUG] == [
        "WARNING",
        "ERROR",
    ]


async def test_gaps_between_tries_grow() -> None:
    """From a second, twice as long each time, up to fifteen minutes, and not beyond the end of the request."""
    office, post = Office(), Post(fails=1000)
    run = await office.ask(terms=Terms("maintainer", timedelta(hours=1)))
    notifier, gaps = office.notifier(post), []
    begun = office.clock.now()
    while (wait := await notifier.look()) < math.inf:
        gaps.append(wait)
        office.clock.advance(timedelta(seconds=wait))
    assert gaps[:11] == [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 900]
    assert set(gaps[10:]) == {900}
    assert office.clock.now() < begun + HOUR
    assert await office.states(run) == [("asked", "failed", len(gaps) + 1)]
    assert not post.sent


async def test_what_a_channel_has_it_does_not_get_again(caplog: pytest.LogCaptureFixture) -> None:
    """Only those that failed are tried again; what is said of them holds nothing of their own errors, which may hold secrets."""
    office, good, bad = Office(), Post("good"), Post("bad", fails=1)
    run = await office.ask()
    notifier = office.notifier(good, bad)
    assert await notifier.look() == 1
    (notice,) = await office.store.notices(run)
    assert (notice.state, notice.reached, notice.trouble) == (
        "open",
        ("good",),
        b"bad: ConnectionError",
    )
    assert "secret" not in caplog.text
    office.clock.advance(timedelta(seconds=1))
    await notifier.look()
    assert (len(good.sent), len(bad.sent)) == (1, 1)
    (notice,) = await office.store.notices(run)
    assert (notice.state, notice.reached, notice.trouble) == ("sent", ("good", "bad"), b"")


async def test_nobody_is_told_of_what_was_decided_meanwhile() -> None:
    """Between the failed try and the next one somebody said no."""
    office, post = Office(), Post(fails=1)
    run = await office.ask()
    notifier = office.notifier(post)
    await notifier.look()
    await office.deny(run)
    office.clock.advance(timedelta(seconds=1))
    assert await notifier.look() == math.inf
    assert not post.sent


async def test_a_death_between_sending_and_marking_sends_again() -> None:
    """Once the time is over for which the dead one had it, under the same id; not before."""
    office, post = Office(), Post()
    post.hangs = True
    run = await office.ask()
    dying = asyncio.ensure_future(office.notifier(post).look())
    while not post.sent:
        await asyncio.sleep(0)
    dying.cancel()
    await asyncio.gather(dying, return_exceptions=True)
    post.hangs = False
    survivor = office.notifier(post)
    wait = await survivor.look()
    assert wait == module.HOLD.total_seconds()
    assert len(post.sent) == 1
    office.clock.advance(timedelta(seconds=wait))
    await survivor.look()
    first, second = post.sent
    assert first[2] == second[2]
    assert await office.states(run) == [("asked", "sent", 2)]


async def test_two_notifiers_do_not_send_at_once() -> None:
    """While one sends, the other finds nothing due."""
    office, post = Office(), Post()
    post.hangs = True
    for number in range(3):
        await office.ask(f"run-{number}")
    first = asyncio.ensure_future(office.notifier(post).look())
    while len(post.sent) < 3:
        await asyncio.sleep(0)
    other = Post("other")
    assert await office.notifier(other).look() > 0
    assert not other.sent
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)


async def test_reminders_come_in_their_time() -> None:
    """As long as nobody has decided; not the one behind the end."""
    office, post = Office(), Post()
    minutes = timedelta(minutes=1)
    terms = Terms("maintainer", HOUR, remind=(20 * minutes, 40 * minutes, 90 * minutes))
    run = await office.ask(terms=terms)
    notifier, times = office.notifier(post), []
    while (wait := await notifier.look()) < math.inf:
        times.append(wait)
        office.clock.advance(timedelta(seconds=wait))
        if len(times) == 2:
            break
    assert times == [1200, 1200]
    await office.deny(run)
    assert await notifier.look() == math.inf
    assert [title.partition("maintainer")[0] for title, _, _ in post.sent] == ["", "Reminder: "]


async def test_a_channel_that_hangs_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    """It keeps no other channel from being told, and no other run."""
    monkeypatch.setattr(module, "SEND_SECONDS", 0.01)
    office, stuck, post = Office(), Post("stuck"), Post()
    stuck.hangs = True
    run = await office.ask()
    assert await office.notifier(stuck, post).look() == 1
    (notice,) = await office.store.notices(run)
    assert (notice.reached, notice.trouble) == (("post",), b"stuck: TimeoutError")


async def test_a_late_answer_of_the_store_sends_nothing() -> None:
    """What was taken long ago is nearly somebody else's: it is left to him."""
    office, post = Office(), Post()
    await office.ask()
    take = office.store.commit

    async def slow(changes):
        verdicts = await take(changes)
        office.clock.advance(timedelta(seconds=60))
        return verdicts

    office.store.commit = slow
    assert await office.notifier(post).look() == 30
    assert not post.sent


async def test_a_store_that_does_not_hear_is_told_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was away, then it did not know: the notice is marked all the same, and sent once."""
    monkeypatch.setattr(module, "_RETRY_SECONDS", 0)
    office, post = Office(), Post()
    run = await office.ask()
    commit, faults = office.store.commit, [StoreUnavailableError("away", hint="wait"), Unknown("?")]

    async def faulty(changes):
        if faults and isinstance(changes[0], EndNotice):
            fault = faults.pop()
            if isinstance(fault, Unknown):
                return [fault]
            raise fault
        return await commit(changes)

    office.store.commit = faulty
    await office.notifier(post).look()
    assert await office.states(run) == [("asked", "sent", 1)]
    assert len(post.sent) == 1


async def test_a_message_that_cannot_be_made_keeps_no_other_from_being_sent(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged with its trace, and tried again."""
    office, post = Office(), Post()
    await office.ask("a")
    await office.ask("b")
    make = module.message_of

    def broken(due, *rest):
        if due.asked.run.run_id == "a":
            raise LookupError
        return make(due, *rest)

    monkeypatch.setattr(module, "message_of", broken)
    await office.notifier(post).look()
    assert [title[-1] for title, _, _ in post.sent] == ["b"]
    assert "cannot be told" in caplog.text


async def test_it_looks_by_itself_and_stops(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is woken by a commit, goes on when the store or it was broken, and ends."""
    monkeypatch.setattr(module, "_RETRY_SECONDS", 0)
    monkeypatch.setattr(module, "_PAUSE_SECONDS", 0)
    office, post = Office(), Post()
    look = office.store.next_notice
    faults: list[Exception] = [StoreUnavailableError("away", hint="wait"), LookupError("bug")]

    async def faulty(tenant=""):
        if faults:
            raise faults.pop()
        return await look(tenant)

    office.store.next_notice = faulty
    notifier = office.notifier(post)
    notifier.start()
    with caplog.at_level(logging.WARNING):
        while faults:
            await asyncio.sleep(0)
    await office.ask()
    while not post.sent:
        await asyncio.sleep(0)
    await notifier.stop()
    await notifier.stop()
    assert "trying again" in caplog.text and "broke inside" in caplog.text


async def test_a_row_that_nobody_can_read_is_no_storm() -> None:
    """It stays due; the store is not asked again and again for it."""
    office = Office()
    asked = 0

    async def always(_=""):
        nonlocal asked
        asked += 1
        return office.clock.now()

    office.store.next_notice = always
    assert await office.notifier(Post()).look() == module.POLL_SECONDS
    assert asked == 2


async def test_a_notifier_tells_of_its_own_tenant() -> None:
    """What another tenant asks is for the channels of that one; `"*"` is for all of them."""
    office, own, other, every = Office(), Post("own"), Post("other"), Post("every")
    mine = await office.ask("a")
    theirs = await office.ask("b", tenant="acme")
    assert await office.notifier(own).look() == math.inf
    assert [title[-5:] for title, _, _ in own.sent] == ["run a"]
    assert await office.states(mine) == [("asked", "sent", 1)]
    assert await office.states(theirs) == [("asked", "open", 0)]
    await Notifier(office.store, Notify({"*": [other]}), "acme").look()
    assert [title[-5:] for title, _, _ in other.sent] == ["run b"]
    await office.ask("c")
    await office.ask("d", tenant="acme")
    await office.notifier(every, tenant="acme").look()
    assert [title[-5:] for title, _, _ in every.sent] == ["run d"]
    await office.ask("e", tenant="globex")
    await office.notifier(every, tenant="*").look()
    assert [title[-5:] for title, _, _ in every.sent] == ["run d", "run c", "run e"]


async def test_an_app_tells_of_its_tenant() -> None:
    """What the notifier of an app is bound to is the tenant of the app."""
    post = Post()
    opened = outlast.open("memory://", workflows=[], tenant="acme", notify=Notify({"*": [post]}))
    async with opened as app:
        assert app._notifier is not None and app._notifier._tenant == "acme"
