"""A worker in a process of its own, which can be told to kill or stop itself at a certain store write or call.

    python worker_process.py URL [--play [WORKFLOW]] [--at POINT --side before|after --strike KILL|STOP]
                             [--queue NAME] [--steps-only]

Without `--play` it works until SIGTERM. With it, it plays a whole run: starts it, sends and says yes, waits for the end; of the
demo agent, or of a workflow of `kill_flow`. Store and definitions are wrapped; the production code knows nothing of this.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import logging
import os
import signal
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeVar

import crash_flow
import kill_flow
import remote_flow  # noqa: F401 - declares steps that run in other processes
from msgspec.structs import replace

import outlast
from outlast.app import App, open_store
from outlast.demo import agent
from outlast.demo.osv import read_record
from outlast.demo.patch import Finding
from outlast.demo.setting import Setting
from outlast.demo.stage import REPO
from outlast.errors import StoreUnavailableError
from outlast.store.change import (
    OTHER_RUN,
    SAGA,
    Change,
    Decide,
    FinishTask,
    OperationPut,
    RunChange,
    StartRun,
    TaskPut,
)
from outlast.testing.crash import BodyCall, watched
from outlast.worker.worker import WorkerOptions
from outlast.workflows.attempt import current_attempt
from outlast.workflows.registry import Registry

T = TypeVar("T")

RUN_ID = "fix"


class Striker:
    """Counts and names each write and each call of a body, and strikes its own process before or after one of them.

    Args:
        options: `at` is the number of a write; or a name in its label, or that of a call (`effect:pay`, `step:count`,
            `probe:order`), with `#k` for the k-th of that name. Each is named in the file `writes` before it happens, and a
            write is followed by what the store said.
    """

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.count = 0
        self._target, _, times = options.at.partition("#")
        self._times = int(times or 1)
        self._named = 0
        self.stop_this_process = crash_flow.stop_this_process

    async def around(self, label: str, write: Callable[[], Awaitable[T]]) -> T:
        """Make one write."""
        self.count += 1
        due = self._is_due(label)
        self._note(name=label)
        if due and self.options.side == "before":
            await self._strike()
        answer = await write()
        if isinstance(answer, list):
            self._note(verdicts=[type(one).__name__ for one in answer])
        if due and self.options.side == "after":
            await self._strike()
        return answer

    def began(self, call: BodyCall) -> int:
        """Note a call; may be called in a thread. See `outlast.testing.crash.watch.Watcher`."""
        label = f"{call.kind}:{call.name}"
        due = self._is_due(label)
        run_id = current_attempt.get().run_id
        self._note(call=label, operation=call.operation, key=call.key, run=run_id)
        if due and self.options.side == "before":
            self._kill()
        return int(due)

    def waits(self, call: BodyCall, number: int) -> None:
        """Nothing: what has happened by then is another thing each time."""

    def ended(self, call: BodyCall, number: int) -> None:
        """The body has returned or raised, and nobody knows."""
        if number and self.options.side == "after":
            self._kill()

    def _is_due(self, label: str) -> bool:
        if not self._target or self._target.isdigit():
            return self._target == str(self.count)
        before = self._named
        self._named += sum(
            one == self._target or one.startswith(f"{self._target}:") for one in label.split()
        )
        return before < self._times <= self._named

    def _note(self, **what: Any) -> None:
        line = {"pid": os.getpid(), "number": self.count, **what}
        with Path(self.options.writes).open("a") as file:
            file.write(json.dumps(line) + "\n")

    async def _strike(self) -> None:
        if self.options.strike == "KILL":
            self._kill()
        await self.stop_this_process()

    def _kill(self) -> None:
        assert self.options.strike == "KILL", "inside a body a process can only be killed"
        _signal(signal.SIGKILL)


class StrikingStore:
    """A store whose writes are counted, named and struck at."""

    def __init__(self, store: Any, striker: Striker) -> None:
        self._store = store
        self._striker = striker
        self._around = striker.around
        self._life = ""
        self._deaf_life = ""

    def __getattr__(self, name: str) -> Any:
        """Hand everything else through."""
        return getattr(self._store, name)

    async def commit(self, changes: Sequence[Change]) -> Any:
        """Count one write for the transaction."""
        label = " ".join(name for change in changes for name in names_of(change))
        return await self._around(label, lambda: self._store.commit(changes))

    async def register(self, row: Any) -> None:
        """Count one write."""
        self._life = row.worker
        await self._around("register", lambda: self._store.register(row))

    def renew(self, worker: Any) -> bool:
        """Renew; a life that was stopped gets no answer any more when `deaf` is set, so that only its own clock can tell it."""
        if worker == self._deaf_life:
            raise StoreUnavailableError("no answer", hint="this is a test")
        return self._store.renew(worker)

    async def retire(self, worker: Any) -> None:
        """Count one write."""
        await self._around("retire", lambda: self._store.retire(worker))

    async def claim(self, *given: Any, **named: Any) -> Any:
        """Count one write when it took something. Before it means nothing: that is after the write before."""
        claim = await self._store.claim(*given, **named)
        if claim.runs:

            async def taken() -> Any:
                return claim

            await self._around("claim", taken)
        return claim

    async def claim_tasks(self, *given: Any, **named: Any) -> Any:
        """Count one write when it took something; see `claim`."""
        claim = await self._store.claim_tasks(*given, **named)
        if claim.tasks:

            async def taken() -> Any:
                return claim

            names = (f"take:{one.row.name}" for one in claim.tasks)
            await self._around(" ".join(names), taken)
        return claim

    async def stop_this_process(self) -> None:
        """Stop on the thread that writes, which holds no lock of the database there."""
        if self._striker.options.deaf:
            self._deaf_life = self._life
        await asyncio.wrap_future(self._store._writing.submit(lambda: _signal(signal.SIGSTOP)))


def _signal(number: int) -> None:
    os.kill(os.getpid(), number)


def names_of(change: Change) -> list[str]:
    """Name what a change writes: its entries, or its kind."""
    match change:
        case RunChange():
            entries = [f"{row.kind}:{row.name}" if row.name else row.kind for row in change.entries]
            rows = [
                f"{_what(row)}:{row.name}"
                for row in change.operations
                if isinstance(row, OperationPut)
                and row.kind not in (*OTHER_RUN, SAGA)
                and not row.in_doubt  # the entry beside it says so
            ]
            tasks = [f"task:{act.name}" for act in change.tasks if isinstance(act, TaskPut)]
            status = [] if change.head is None or entries else [f"head:{change.head.status}"]
            return entries + rows + tasks + status
        case StartRun():
            return ["start"]
        case Decide():
            return ["decide"]
        case FinishTask(message=message):
            return ["give_back" if message is None else "finish"]
        case _:
            return [type(change).__name__]


def _what(row: OperationPut) -> str:
    """Name what a row says. Without a due time it announces the next attempt of an effect, or keeps what one that runs has said."""
    if row.awaits:
        return "handed_out"
    if row.due_at:
        return "failure"
    return "progress" if row.progress else "attempt"


class StrikingApp(App):
    """The app, composed over the store that strikes."""

    def __init__(self, options: argparse.Namespace) -> None:
        worker = WorkerOptions(
            lease=timedelta(seconds=options.lease),
            idle=timedelta(seconds=options.idle),
            poll=timedelta(seconds=options.poll),
            runs=options.runs,
            host="test",
            pid=os.getpid(),
            library="0",
            queues=tuple(options.queue),
        )
        super().__init__(
            options.url, workflows=None, tenant="default", principal=None, options=worker
        )
        self.options = options

    async def __aenter__(self) -> StrikingApp:
        """Open, wrap, start."""
        striker = Striker(self.options)
        store = StrikingStore(await open_store(self.options.url), striker)
        crash_flow.stop_this_process = striker.stop_this_process = store.stop_this_process
        everything = Registry.of_everything(None)
        tables = (everything.workflows, everything.steps, everything.effects)
        kept = tables[1:] if self.options.steps_only else tables
        code = [one for table in kept for one in table.values()]
        await self._start_worker(store, Registry(watched(code, striker)))
        return self


def shorten(timeout: float, settle: float) -> None:
    """Shorten the waits of the demo agent's effects; all else of it is as it is shipped."""
    for effect in (agent.push_branch, agent.open_pull_request):
        effect.options = replace(effect.options, start_to_close_timeout=timedelta(seconds=timeout))
        effect.rules = replace(effect.rules, settle=timedelta(seconds=settle))


async def play_demo(app: App) -> None:
    """Start the demo agent's run, approve whatever it asks, and wait for its end."""
    record = (files("outlast.demo") / "data" / "GHSA-wwqv-p2pp-99h5.json").read_bytes()
    remote = Setting.from_environment().directory / "remote.git"
    finding = Finding(record=read_record(record), repo=REPO, remote=str(remote))
    handle = await app.start(agent.fix(finding, timedelta(hours=1)), id=RUN_ID)
    ending = asyncio.ensure_future(handle.result())
    while not ending.done():
        for view in await app.approvals.list(run_id=RUN_ID):
            with contextlib.suppress(outlast.DecisionRefusedError):
                await app.approvals.approve(
                    RUN_ID, view.approval_id, seen_sha256=view.subject_sha256
                )
        await asyncio.wait({ending}, timeout=0.02)
    await ending


async def work() -> None:
    """Work until SIGTERM."""
    over = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, over.set)
    print("ready", flush=True)
    await over.wait()


async def main(options: argparse.Namespace) -> None:
    """Do what the command line says."""
    shorten(options.timeout, options.settle)
    async with StrikingApp(options) as app:
        match options.play:
            case "":
                await work()
            case "demo":
                await play_demo(app)
            case name:
                await kill_flow.drive(app, name)


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    found = argparse.ArgumentParser()
    found.add_argument("url")
    found.add_argument("--writes", required=True)
    found.add_argument("--play", nargs="?", const="demo", default="")
    found.add_argument("--at", default="")
    found.add_argument("--side", choices=["before", "after"], default="before")
    found.add_argument("--strike", choices=["KILL", "STOP"], default="KILL")
    found.add_argument("--deaf", action="store_true")
    found.add_argument("--lease", type=float, default=15)
    found.add_argument("--idle", type=float, default=30)
    found.add_argument("--poll", type=float, default=0.5)
    found.add_argument("--runs", type=int, default=1000)
    found.add_argument("--queue", action="append", default=[])
    found.add_argument("--steps-only", action="store_true")
    found.add_argument("--timeout", type=float, default=2.0)
    found.add_argument("--settle", type=float, default=0.3)
    return found


if __name__ == "__main__":
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(process)d %(levelname)s %(name)s %(message)s"
    )
    asyncio.run(main(parser().parse_args()))
