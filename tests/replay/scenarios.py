"""What happens around each golden run: who sends, decides, dies and resolves. All chance is seeded, all time is simulated."""

from __future__ import annotations

import asyncio
import dataclasses
import zlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import workflows as flows
from msgspec import Raw
from msgspec.json import encode

from outlast.approvals.decision import Decision
from outlast.client import RunHandle
from outlast.journal.asking import Edited
from outlast.store.change import Decide, Message, MessageKind, PutMessage, RunKey
from outlast.testing import Simulation
from outlast.testing.golden import Golden, record
from outlast.worker.growth import HistoryLimits
from outlast.worker.worker import WorkerOptions
from outlast.workflows.registry import Registry

JOURNALS = Path(__file__).parent / "journals" / "v1"
OPTIONS = WorkerOptions(library="simulated", idle=timedelta(seconds=2))


@dataclass
class Play:
    """A run in a simulation, as a script sees it."""

    sim: Simulation
    handle: RunHandle[Any]

    @property
    def run(self) -> RunKey:
        """The key of the run."""
        return RunKey("default", self.handle.id)

    async def decide(self, *, yes: bool = True, reason: str = "") -> None:
        """Decide the next request."""
        while not (views := await self.sim.client.approvals.list(run_id=self.handle.id)):
            await asyncio.sleep(1)
        view = views[0]
        act = self.sim.client.approvals.approve if yes else self.sim.client.approvals.deny
        await act(view.run_id, view.approval_id, seen_sha256=view.subject_sha256, reason=reason)

    async def say(self, by: str, *, no: bool = False, edit: str = "", answer: str = "null") -> None:
        """Decide the next request as somebody: a yes, a no, an edit of the first cover, or an answer."""
        while not (views := await self.sim.client.approvals.list(run_id=self.handle.id)):
            await asyncio.sleep(1)
        asked = views[0]
        edits = (Edited(0, Raw(edit.encode())),) if edit else ()
        decision = Decision(
            asked.approval_id,
            "",
            not (no or edit),
            by,
            "said",
            asked.subject_sha256,
            edits=edits,
            answer=Raw(answer.encode()),
        )
        message = Message(
            f"said/{asked.approval_id}/{by}", MessageKind.DECISION, "", by, encode(decision)
        )
        await self.sim.client.commit(
            Decide(
                self.run,
                asked.approval_id,
                asked.subject_sha256,
                decision.approved,
                by,
                message,
                edit=bool(edit),
            )
        )
        await asyncio.sleep(5)

    async def waits(self, status: str) -> None:
        """Wait until the run is parked."""
        await self.sim.until(self.handle.id, lambda head: head.status == status)

    async def put(self, kind: MessageKind, name: str, body: bytes) -> None:
        """Put a message into the inbox as it is."""
        message = Message(f"raw/{name}", kind, name, "somebody", body)
        await self.sim.client.commit(PutMessage(self.run, message))

    async def replace_worker(self) -> None:
        """Wait until the first worker is dead, and start another one."""
        while not self.sim.workers[-1].process.dead:
            await asyncio.sleep(0.5)
        await self.sim.start_worker()


@dataclass(frozen=True)
class Scenario:
    """One golden run.

    Args:
        call: Makes the call of the workflow.
        script: What happens meanwhile.
        trouble: What the attempts of effects do, one after another.
        generation: The one that is kept.
        ends: The kind of the last entry.
        kept: What follows the id of the run that is kept, where that is a fork.
        options: The worker's.
    """

    call: Callable[[], Any]
    script: Callable[[Play], Awaitable[None]] | None = None
    trouble: tuple[str, ...] = ()
    generation: int = 1
    ends: str = "completed"
    kept: str = ""
    options: WorkerOptions = OPTIONS


async def talk(play: Play) -> None:
    """Send to a run that is not there yet what waits, then several at once, then what does not fit or cannot be read."""
    handle = play.handle
    await handle.send(flows.word, "early", id="1")
    await handle.send(flows.number, 3, id="2")
    await handle.send(flows.word, "early too", id="3")
    await asyncio.sleep(5)
    await handle.send("number", "five", id="4")
    await play.put(MessageKind.RESOLUTION, "nonsense", b'{"no": "resolution"}')
    await play.put(MessageKind.DECISION, "1~r:7", _DECISION)
    await play.waits("waiting")
    for n in (1, 2, 7):
        await handle.send(flows.number, n, id=f"n{n}")
    await asyncio.sleep(30)
    await handle.send(flows.word, "late", id="5")


_DECISION = b'{"approval_id":"1~r:7","operation":"r:7","approved":true,"by":"ann","reason":"","subject_sha256":""}'


async def cancel(play: Play) -> None:
    """Cancel the run when it waits."""
    await play.waits("waiting")
    await play.handle.cancel("no longer needed")


async def resolve_steps(play: Play) -> None:
    """Answer in place of the steps."""
    await play.waits("waiting")
    await play.handle.resolve("r:1", applied=5, reason="read from the paper")
    await asyncio.sleep(10)
    await play.handle.resolve("r:2", failed="nobody knows", reason="asked around")


async def say_yes(play: Play) -> None:
    """Approve."""
    await play.decide(reason="looks good")


async def say_no(play: Play) -> None:
    """Deny."""
    await play.decide(yes=False, reason="not on a Friday")


async def decide_too_late(play: Play) -> None:
    """Let a decision and a message come when nobody waits for the decision any more."""
    await asyncio.sleep(60)
    await play.put(MessageKind.DECISION, "1~r:2", _DECISION.replace(b"r:7", b"r:2"))
    await play.handle.send(flows.word, "never mind", id="1")


async def happened(play: Play) -> None:
    """Say twice, and differently, what became of an effect in doubt."""
    await play.waits("blocked")
    await play.handle.resolve("r:1", applied="seen", reason="on the account")
    await play.handle.resolve("r:1", failed="not seen", reason="somebody else looked")


async def did_not_happen(play: Play) -> None:
    """Say that it did not, so that it is tried again."""
    await play.waits("blocked")
    await play.handle.resolve("r:1", not_applied=True, reason="not on the account")


async def take_over(play: Play) -> None:
    """Another worker goes on."""
    await play.replace_worker()


async def look_after(play: Play) -> None:
    """Another worker goes on, and finds a doubt."""
    await play.replace_worker()
    await happened(play)


async def visit(play: Play) -> None:
    """Send a word whenever the run is parked; the first worker dies while it is."""
    for n in range(2):
        await play.waits("waiting")
        await play.handle.send(flows.word, f"word {n}", id=str(n))
        await asyncio.sleep(1)
        play.sim.workers[-1].kill()
        await play.replace_worker()


async def pause_twice(play: Play) -> None:
    """Pause before anything was received, and again while a timer runs; what is sent meanwhile waits."""
    await play.handle.pause("first")
    await play.waits("paused")
    await play.handle.send(flows.word, "one", id="1")
    await asyncio.sleep(30)
    await play.handle.resume("go on")
    await play.waits("waiting")
    await play.handle.pause()
    await play.waits("paused")
    await asyncio.sleep(120)
    await play.handle.send(flows.word, "two", id="2")
    await play.handle.resume()


async def cancel_late(play: Play) -> None:
    """Cancel the run when its time is over and it cleans up."""
    await asyncio.sleep(125)
    await play.handle.cancel("hurry up")


async def say_from_outside(play: Play) -> None:
    """Let the first wait be over, then answer a token of each step: one with a result, one with an error."""
    flows.tokens.clear()
    for count, act in ((3, "complete"), (4, "fail")):
        # The first step was handed out twice before its time was over.
        while len(flows.tokens) < count:
            await asyncio.sleep(60)
        await play.waits("waiting")
        await getattr(play.sim.client, act)(flows.tokens[-1], act, id=act)


async def begin_again(play: Play) -> None:
    """Use the id again after each end."""
    for fate in ("fail", "end"):
        await play.sim.closed(play.handle.id)
        await play.sim.client.start(flows.generations(fate), id=play.handle.id, if_closed="restart")


async def speak(play: Play) -> None:
    """Send a word when the run waits for it."""
    await play.waits("waiting")
    await play.handle.send(flows.word, "enough", id="1")


async def hand_in(play: Play, *last: Callable[[Play], Awaitable[Any]]) -> None:
    """Send early what waits for its handler, several at once, what is refused and what fails; then end it, and send while it ends."""
    handle, asked = play.handle, []

    def ask(name: str, value: Any, id: str) -> None:
        asked.append(play.sim.spawn(handle.update(name, value, id=id)))

    ask("weigh", 5, "early")
    await handle.send(flows.number, 1, id="early")
    await asyncio.sleep(5)
    for id in ("1", "2", "3"):
        ask("put", "tea", id)
    ask("put", 7, "unfit")
    ask("weigh", -1, "fails")
    ask("nobody", None, "unheard")
    await asyncio.sleep(5)
    await handle.send(flows.number, 2, id="2")
    await handle.send(flows.number, 3, id="3")
    await asyncio.sleep(60)
    ask("weigh", 30, "long")
    await asyncio.sleep(5)
    for act in last:
        await act(play)
    await asyncio.gather(*asked, return_exceptions=True)


async def hand_in_and_say(play: Play) -> None:
    """End it by its message; what it handles then goes on."""
    await hand_in(play, lambda play: play.handle.send(flows.word, "enough", id="w"))


async def hand_in_and_cancel(play: Play) -> None:
    """Cancel it while it handles something."""
    await hand_in(play, lambda play: play.handle.cancel("no longer needed"))


async def fork_in_the_middle(play: Play) -> None:
    """Fork a run that has ended from where nothing that it had asked for was settled."""
    await play.decide()
    await play.sim.closed(play.handle.id)
    kinds = [type(one.entry).__name__ for one in await play.handle.journal()]
    await asyncio.sleep(7200)
    fork = await play.handle.fork(
        kinds.index("EffectCompleted"), id=f"{play.handle.id}/fork", reason="to see"
    )
    await Play(play.sim, fork).decide(reason="looks good again")


async def fork_anew(play: Play) -> None:
    """Let a step of a run that has ended have returned something else."""
    await play.decide()
    await play.sim.closed(play.handle.id)
    await play.handle.fork(outcome=("r:3", 7), id=f"{play.handle.id}/fork", reason="misread")


async def fork_among_kin(play: Play) -> None:
    """Fork a run that has ended from where its first child was open."""
    await play.sim.client.start(flows.cousin("return"), id="kin-6")
    await play.sim.closed(play.handle.id)
    kinds = [type(one.entry).__name__ for one in await play.handle.journal()]
    await play.handle.fork(
        kinds.index("StepCompleted"), id=f"{play.handle.id}/fork", reason="to see"
    )


async def say_three(play: Play) -> None:
    """Send three words at once: each generation takes one of them."""
    for one in ("a", "b", "c"):
        await play.handle.send(flows.word, one, id=one)


async def make_room(play: Play) -> None:
    """Let the journal become longer."""
    await play.handle.accept(history=60, reason="the last one of its kind")


PATIENT = dataclasses.replace(OPTIONS, lease=timedelta(hours=6), poll=timedelta(hours=1))
"""Of a worker in whose life days pass."""
SMALL = dataclasses.replace(OPTIONS, history=HistoryLimits(warn_entries=9, most_entries=12))


UNDONE = (*[""] * 8, "lost", "", "no", "no")
"""The ninth attempt is that of what comes in doubt; what undoes it is followed by what undoes the hotel."""


async def gather_kin(play: Play) -> None:
    """Start the other runs, then let the first one go on."""
    for kin in ("kin-2", "kin-3"):
        await play.sim.client.start(flows.cousin("return"), id=kin)
    await play.waits("waiting")
    await play.handle.send(flows.word, "hear", id="1")


async def say(play: Play) -> None:
    """Send a word."""
    await play.handle.send(flows.word, "hear", id="1")


async def undo_and_leave(play: Play) -> None:
    """Have what is in doubt undone; let one compensation be made again, and leave another one."""
    await play.waits("blocked")
    (doubt,) = (await play.handle.detail()).operations
    await play.handle.resolve(
        doubt.operation, compensate=True, result="a dinner", reason="nobody knows"
    )
    for outcome in ({"not_applied": True}, {"failed": "they are closed"}):
        await play.sim.until(play.handle.id, lambda head: head.reason == "compensation failed")
        (stuck,) = (await play.handle.detail()).operations
        await play.handle.resolve(stuck.operation, reason="as it is", **outcome)
        await asyncio.sleep(60)


async def two_yeses(play: Play) -> None:
    """Let one say yes, and later another one."""
    await play.say("ann")
    await asyncio.sleep(600)
    await play.say("bob")


async def nobody_then_director(play: Play) -> None:
    """Let the time of the first be over, with one vote, then ask the next."""
    await play.say("ann")
    await asyncio.sleep(3600)
    await two_yeses(play)


async def another_number(play: Play) -> None:
    """Let one say yes; another wants what does not fit, then something else, which is a yes; and a third agrees."""
    await play.say("ann")
    await play.say("bob", edit='{"what": 1}')
    await play.say("bob", edit='{"what": "bread", "number": 2}')
    await play.say("ann")


async def one_no(play: Play) -> None:
    """Let one say yes, and another no."""
    await play.say("ann")
    await play.say("bob", no=True)


async def answer_and_change(play: Play) -> None:
    """Give an answer that does not fit, and one that does; change what is asked, and let somebody else agree."""
    await play.say("ann", answer='"two"')
    await play.say("ann", answer="2")
    await play.say("bob", edit='{"value": "1 loaf"}')
    await play.say("ann")


SCENARIOS: dict[str, Scenario] = {
    "parallel": Scenario(flows.parallel),
    "group_fails": Scenario(flows.group_fails, ends="failed"),
    "waits": Scenario(flows.waits),
    "primitives": Scenario(flows.primitives),
    "cancellation": Scenario(flows.cancellation),
    "cancelled": Scenario(flows.cancelled, cancel, ends="cancelled"),
    "streams": Scenario(flows.streams),
    "failures": Scenario(flows.failures),
    "retries": Scenario(flows.retries),
    "raises_own": Scenario(flows.raises_own, ends="failed"),
    "resolved": Scenario(flows.resolved, resolve_steps),
    "messages": Scenario(flows.messages, talk),
    "approved": Scenario(flows.approved, say_yes),
    "denied": Scenario(flows.denied, say_no),
    "purposes": Scenario(flows.purposes, say_yes, ("lost",)),
    "expires": Scenario(flows.expires, ends="cancelled"),
    "too_late": Scenario(flows.too_late, say_yes),
    "gives_up_asking": Scenario(flows.gives_up_asking, decide_too_late),
    "effects": Scenario(flows.effects),
    "effects_retried": Scenario(flows.effects, trouble=("lost", "lost", "no")),
    "probed_fails": Scenario(lambda: flows.unknown("probed"), trouble=("no", "no")),
    "idempotent_died": Scenario(lambda: flows.unknown("idempotent"), take_over, ("die",)),
    "probed_died": Scenario(lambda: flows.unknown("probed"), take_over, ("die",)),
    "probed_unknown": Scenario(lambda: flows.unknown("probed"), trouble=("lost", "unknown")),
    "probed_in_doubt": Scenario(
        lambda: flows.unknown("probed"), happened, ("lost", *["unknown"] * 9)
    ),
    "in_doubt_applied": Scenario(lambda: flows.unknown("once"), happened, ("lost",)),
    "in_doubt_cleared": Scenario(lambda: flows.unknown("once"), did_not_happen, ("lost",)),
    "in_doubt_died": Scenario(lambda: flows.unknown("once"), look_after, ("die",)),
    "saga_kept": Scenario(lambda: flows.trip("stay")),
    "saga_undone": Scenario(
        lambda: flows.trip("fail"), undo_and_leave, UNDONE, ends="failed", options=PATIENT
    ),
    "entropy": Scenario(flows.entropy),
    "parks": Scenario(lambda: flows.parks(2), visit),
    "generation_1": Scenario(lambda: flows.generations("end"), begin_again, generation=1),
    "generation_2": Scenario(
        lambda: flows.generations("end"), begin_again, generation=2, ends="failed"
    ),
    "generation_3": Scenario(lambda: flows.generations("end"), begin_again, generation=3),
    "publishes": Scenario(lambda: flows.publishes("end"), speak),
    "publishes_and_fails": Scenario(lambda: flows.publishes("fail"), speak, ends="failed"),
    "handlers": Scenario(lambda: flows.handlers("returns"), hand_in_and_say),
    "handlers_fail": Scenario(lambda: flows.handlers("a handler fails"), hand_in, ends="failed"),
    "handlers_outlive": Scenario(
        lambda: flows.handlers("the body fails"), hand_in_and_say, ends="failed"
    ),
    "handlers_cancelled": Scenario(
        lambda: flows.handlers("returns"), hand_in_and_cancel, ends="cancelled"
    ),
    "forked": Scenario(flows.forks, fork_in_the_middle, kept="/fork"),
    "forked_anew": Scenario(flows.forks, fork_anew, kept="/fork"),
    "forked_kin": Scenario(flows.kindred, fork_among_kin, kept="/fork"),
    "paused": Scenario(flows.paused_twice, pause_twice),
    "out_of_time": Scenario(flows.runs_out_of_time, cancel_late, ends="failed"),
    "deadlines": Scenario(flows.deadlines, say_from_outside, options=PATIENT),
    "rolls_1": Scenario(lambda: flows.rolls(2, []), say_three, ends="continued_as_new"),
    "rolls_2": Scenario(
        lambda: flows.rolls(2, []), say_three, generation=2, ends="continued_as_new"
    ),
    "rolls_3": Scenario(lambda: flows.rolls(2, []), say_three, generation=3),
    "changes": Scenario(flows.changes),
    "grows": Scenario(flows.grows, make_room, options=SMALL),
    "relatives": Scenario(flows.relatives, gather_kin),
    "cousin": Scenario(lambda: flows.cousin("fail"), say, ends="failed"),
    "bought": Scenario(lambda: flows.buys("bread"), two_yeses),
    "bought_late": Scenario(lambda: flows.buys("bread"), nobody_then_director),
    "bought_less": Scenario(lambda: flows.buys("bread"), another_number),
    "not_bought": Scenario(lambda: flows.buys("bread"), one_no),
    "bought_by_nobody": Scenario(lambda: flows.buys("bread")),
    "consulted": Scenario(lambda: flows.consults("loaves"), answer_and_change),
    "values": Scenario(lambda: flows.values(flows.Everything()), say_yes),
}


def play(name: str) -> Golden:
    """Play a scenario, and return its golden journal."""
    scenario = SCENARIOS[name]
    flows.forget()
    flows.trouble.extend(scenario.trouble)

    async def play_it(sim: Simulation) -> Golden:
        await sim.start_worker()
        flows.deaths.append(sim.workers[0].kill)
        handle = await sim.client.start(scenario.call(), id=f"golden-{name}")
        if scenario.script is not None:
            await scenario.script(Play(sim, handle))
        head = await sim.closed(f"{handle.id}{scenario.kept}")
        golden = await record(
            sim.store,
            head.run.run_id,
            generation=scenario.generation,
            registry=Registry(flows.CODE),
        )
        assert golden.rows[-1].kind == scenario.ends, golden.rows[-1].body
        return golden

    seed = zlib.crc32(name.encode())
    sim = Simulation(flows.CODE, seed=seed, options=scenario.options, longest=timedelta(days=30))
    return sim.run(play_it)
