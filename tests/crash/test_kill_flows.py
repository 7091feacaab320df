"""A run killed with SIGKILL before and after each of its writes and calls: one workflow for each declaration, and one of everything.

The receiver never takes two requests for one. See `kill_point` for how many points are tried.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import kill_flow
import pytest
from crash_bench import Bench
from kill_point import ALL, SOAK, Play, Point, chosen, recoveries

from outlast.app import local_principal
from outlast.store.change import Status
from outlast.store.protocol import RunImage

OPENED = ("PutControl", "register")
"""The first process writes who is local, before its worker is known."""


def around(*effect: str) -> tuple[str, ...]:
    """Return every write and call of an undisturbed run: a step, an effect, a step."""
    return (
        *(*OPENED, "start", "step:read", "step_completed:read"),
        *effect,
        *("step:read", "step_completed:read", "completed", "retire"),
    )


def one_of(name: str) -> tuple[str, ...]:
    """Return the writes and calls of one effect."""
    return (f"effect_intended:{name}", f"effect:{name}", f"effect_completed:{name}")


FLOWS = {
    "charged": around(*one_of("charge")),
    "booked": around(*one_of("book")),
    "wired": around(*one_of("wire")),
    "errand": (
        *(*OPENED, "start", "PutMessage"),
        *("step:read", "step:flaky", "step:crunch"),
        *("step_completed:read", "failure:flaky", "step_completed:crunch", "message_received:go"),
        *("step:flaky", "step_completed:flaky", "timer_fired"),
        *("approval_requested", "decide", "approval_decided"),
        *("effect_intended:charge", "effect_intended:book", "effect:charge", "effect:book"),
        *("effect_completed:charge", "effect_completed:book"),
        *one_of("wire"),
        *("completed", "retire"),
    ),
}
"""Every write and call of an undisturbed run. In `errand` parallel branches may come in another order, and be written together."""

RESULTS = {
    "charged": "1 charge x 2",
    "booked": "1 book x 2",
    "wired": "1 wire x 2",
    "errand": f"[1, 2, 1] hello {local_principal()} ['charge x', 'book x'] wire x",
}
DECLARED = {"charge": "charged", "book": "booked", "wire": "wired"}


@pytest.fixture(autouse=True)
def _receiver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTLAST_CRASH_DIRECTORY", str(tmp_path))


def acted(bench: Bench) -> Counter[str]:
    """Return how often each effect was applied at the receiver."""
    return Counter(one["body"] for one in bench.received())


def finish(play: Play) -> bool:
    """Play to the end, as often as it takes an operator who tells the truth; whether one was needed."""
    play.finish()
    needed = False
    while in_doubt := [
        one for one in play.bench.detail(play.run_id).operations if one.state == "in doubt"
    ]:
        needed = True
        (doubtful,) = in_doubt
        assert doubtful.name == "wire", "only an effect with neither may be in doubt"
        check_blocked(play)
        happened = doubtful.key in {one["key"] for one in play.bench.received("wire")}
        outcome = {"applied": "wire x"} if happened else {"not_applied": True}

        async def resolve(client) -> None:
            await client.handle(play.run_id).resolve(doubtful.operation, **outcome)

        play.bench.ask(resolve)
        play.finish()
    return needed


def check_blocked(play: Play) -> None:
    """In doubt, the run waits for an operator, and the effect has happened once at most."""
    image = play.bench.image(play.run_id)
    assert image is not None
    assert (image.head.status, image.head.reason) == (Status.BLOCKED, "in doubt")
    assert image.head.owner is None
    assert acted(play.bench)["wire"] <= 1


def check(play: Play) -> RunImage:
    """The undisturbed result and journal; each effect happened once, or, where the receiver is said to know keys, with one key."""
    after = play.check()
    assert after.head.status is Status.COMPLETED
    assert after.head.owner is None
    assert after.operations == ()
    assert play.bench.result(play.run_id) == RESULTS[play.name]
    expected = Counter(one for one in FLOWS[play.name] if is_entry(one))
    doubts = {"effect_in_doubt:wire", "effect_cleared:wire"}
    found = Counter(":".join(filter(None, (one.row.kind, one.row.name))) for one in after.rows)
    assert {name: count for name, count in found.items() if name not in doubts} == {
        f"started:{play.name}": 1,
        "taken": found["taken"],
        **expected,
    }
    deaths = sum(1 for one in play.lives if one.left is not None) - 1
    happened = acted(play.bench)
    for effect in {name for name in DECLARED if f"effect:{name}" in FLOWS[play.name]}:
        keys = {one["key"] for one in play.bench.received(effect)}
        assert len(keys) == 1, (effect, keys)
        most = 1 + deaths if effect == "charge" else 1
        assert 1 <= happened[effect] <= most, (effect, happened)
    return after


def is_entry(event: str) -> bool:
    """Whether an event is an entry of the journal."""
    kinds = ("step_completed", "effect_", "message_received", "timer_fired", "approval_")
    return event == "completed" or event.startswith(kinds)


@pytest.mark.parametrize("name", FLOWS)
def test_an_undisturbed_run_makes_these_writes_and_calls(bench: Bench, name: str) -> None:
    """The points at which to kill are all there are; no operator is needed, and nothing happens twice."""
    play = Play(bench, name, kill_flow.RUN_ID)
    assert not finish(play)
    made = [one for event in play.events() for one in event.split()]
    assert Counter(made) == Counter(FLOWS[name])
    if name != "errand":
        assert made == list(FLOWS[name])
    check(play)
    assert set(acted(bench).values()) == {1}


def cases(count: int, **all: bool) -> list[object]:
    """Return workflow and point of each test."""
    return [
        pytest.param(name, *one.values, id=f"{name}-{one.id}")
        for name, events in FLOWS.items()
        for one in chosen(events, count, all=SOAK if name == "errand" else ALL)
    ]


@pytest.mark.parametrize(("name", "point"), cases(3))
def test_killed_once(bench: Bench, name: str, point: Point) -> None:
    """Killed at any write or call, the run comes to the undisturbed result, and no effect happens more often than declared."""
    play = Play(bench, name, kill_flow.RUN_ID)
    play.kill_at(point)
    needed = finish(play)
    check(play)
    assert needed == (name in {"wired", "errand"} and is_unknown(play, "wire"))
    assert asked(play) == (name in {"booked", "errand"} and is_unknown(play, "book"))
    if is_unknown(play, "charge") and point in {
        Point("after", "effect:charge", 1),
        Point("before", "effect_completed:charge", 1),
    }:
        assert acted(bench)["charge"] == 2


def is_unknown(play: Play, effect: str) -> bool:
    """Whether the first process left this effect intended, and without an outcome."""
    left = play.lives[0].left
    kinds = {one.row.kind for one in left.rows if one.row.name == effect} if left else set()
    return kinds == {"effect_intended"}


def asked(play: Play) -> bool:
    """Whether the probe was asked."""
    return any(play.bench.calls(life.pid, "probe:") for life in play.lives)


RECOVERED = {
    "charged": Point("after", "effect:charge", 1),
    "booked": Point("after", "effect:book", 1),
    "wired": Point("after", "effect:wire", 1),
}
"""Where the first process dies in such a way that the second has most to find out."""

SECOND_LIVES = {
    "charged": (
        *("register", "start", "claim"),
        *("attempt:charge", "effect:charge", "effect_completed:charge"),
        *("step:read", "step_completed:read", "completed", "retire"),
    ),
    "booked": (
        *("register", "start", "claim", "probe:book", "effect_completed:book"),
        *("step:read", "step_completed:read", "completed", "retire"),
    ),
    "wired": ("register", "start", "claim", "effect_in_doubt:wire", "head:blocked", "retire"),
}
"""Every write and call of the second process then. Its start finds the run."""


@pytest.mark.parametrize("name", SECOND_LIVES)
def test_a_recovery_makes_these_writes_and_calls(bench: Bench, name: str) -> None:
    """The points at which to kill the recovering process are all there are."""
    play = Play(bench, name, kill_flow.RUN_ID)
    play.kill_at(RECOVERED[name])
    play.finish()
    assert Counter(play.events()) == Counter(SECOND_LIVES[name])


def second_cases(count: int) -> list[object]:
    """Return workflow and point of the recovering process of each test."""
    return [
        pytest.param(name, *one.values, id=f"{name}-{one.id}")
        for name, events in SECOND_LIVES.items()
        for one in chosen(events, count)
    ]


@pytest.mark.parametrize(("name", "point"), second_cases(1))
def test_killed_again_while_recovering(bench: Bench, name: str, point: Point) -> None:
    """A process that finds an effect with an unknown end may be killed at any write or call itself."""
    play = Play(bench, name, kill_flow.RUN_ID)
    play.kill_at(RECOVERED[name])
    play.kill_at(point)
    assert finish(play) == (name == "wired")
    check(play)


@pytest.mark.soak
@pytest.mark.skipif(not SOAK, reason="the full product is for OUTLAST_CRASH=soak")
@pytest.mark.parametrize(("name", "point"), cases(3))
def test_killed_twice_at_every_pair_of_points(tmp_path: Path, name: str, point: Point) -> None:
    """Killed at this point; and again at every point of the recovery from it."""

    def bench_in(folder: str):
        (tmp_path / folder).mkdir()
        return Bench.opened(tmp_path / folder)

    with bench_in("counting") as bench:
        counting = Play(bench, name, kill_flow.RUN_ID)
        points = list(recoveries(counting, point))
    for number, second in enumerate(points):
        with bench_in(str(number)) as bench:
            play = Play(bench, name, kill_flow.RUN_ID)
            play.kill_at(point)
            play.kill_at(second)
            finish(play)
            check(play)
