"""Asks a run a question: its journal is read, its code is replayed in this process, its handler answers. Nothing is written.

The answer is that of the last commit. It is given within a budget of real time, or not at all; what was replayed by then is kept, so
that asking again goes on from there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from outlast.client.access import check_run
from outlast.client.port import Port
from outlast.client.replica import Replica
from outlast.errors import DecodeError, DefinitionError, NonDeterminismError, QueryError
from outlast.journal.entry import StampedRow
from outlast.replay.machine import Program
from outlast.store.change import RunHead, RunKey
from outlast.workflows.registry import Registry, find_declared

BUDGET = timedelta(seconds=1)
"""How long loading, replay and handler may take together, unless the caller says otherwise."""

_FIRST_POLL_SECONDS = 0.05
_LONGEST_POLL_SECONDS = 2.0
_HINDSIGHT = frozenset({"patched", "accepted"})
"""Kinds of entries that say how code before them was to be replayed."""


async def ask(port: Port, run: RunKey, name: str, value: bytes, budget: timedelta) -> bytes:
    """Return the answer to a query as JSON. A run that has not begun is waited for.

    Args:
        value: The question's, as JSON.
        budget: Of real time, by the event loop's clock.

    Raises:
        QueryError: There is no answer.
        RunNotFoundError: There is no such run.
        NotAuthorisedError: Whoever acts may not read it.
        DefinitionError: The budget is none.
    """
    given: Any = budget
    seconds = given.total_seconds() if isinstance(given, timedelta) else 0.0
    if seconds <= 0:
        raise DefinitionError(
            f"timeout={budget!r} is no time in which a query could be answered",
            hint="write timeout=timedelta(seconds=…)",
        )
    asking = _Asking(port, run, name, value)
    began = asyncio.get_running_loop().time()
    try:
        async with asyncio.timeout(seconds):
            await check_run(port, "read", run)
            answer = await asking.answer()
    except TimeoutError:
        raise asking.error(asking.not_begun or asking.late(seconds)) from None
    except QueryError as error:
        raise asking.error(error) from error.__cause__
    if asyncio.get_running_loop().time() - began > seconds:
        # A handler that does not return cannot be stopped; one that came back late is told as late.
        raise asking.error(asking.late(seconds))
    return answer


class _StaleError(Exception):
    """A replica that was kept cannot go on; a fresh one may."""


class _Asking:
    """One question."""

    def __init__(self, port: Port, run: RunKey, name: str, value: bytes) -> None:
        self._port = port
        self._run = run
        self._name = name
        self._value = value
        self._replica: Replica | None = None
        self._head: RunHead | None = None
        self._spent = "the store did not answer"
        self.not_begun: QueryError | None = None
        """Why there is no answer yet."""

    # What is asked

    async def answer(self) -> bytes:
        """Read, replay and ask; again and again, as long as the run has not begun."""
        answer = await self._answer()
        if answer is not None:
            return answer
        woken, poll = asyncio.Event(), _FIRST_POLL_SECONDS
        unsubscribe = self._port.store.subscribe(woken.set)
        try:
            while (answer := await self._answer()) is None:
                try:
                    async with asyncio.timeout(poll):
                        await woken.wait()
                except TimeoutError:
                    poll = min(poll * 2, _LONGEST_POLL_SECONDS)
                woken.clear()
            return answer
        finally:
            unsubscribe()

    async def _answer(self) -> bytes | None:
        """Return the answer from where the run stands now; None when it has not begun, and still may."""
        self._spent = "the store did not answer"
        self._head = head = await self._port.head(self._run)
        program = self._program(head.workflow)
        use = self._port.replicas.use
        try:
            try:
                return await use(self._run, head.generation, program, self._ask)
            except _StaleError:
                return await use(self._run, head.generation, program, self._ask, afresh=True)
        except QueryError as error:
            if error.reason != "not_begun" or head.status.closed:
                raise
            self.not_begun = error
            return None

    async def _ask(self, replica: Replica) -> bytes:
        self._replica = replica
        is_fresh = replica.last < 0
        rows = await self._port.store.journal(
            self._run, generation=replica.generation, after=replica.last
        )
        try:
            if not is_fresh and _says_more_of_the_past(rows):
                raise _StaleError
            self._spent = "the replay was not done"
            self.not_begun = None if rows else self.not_begun
            await replica.catch_up(rows)
        except Exception as error:
            self._port.replicas.drop(replica)
            if not is_fresh:
                # It may have been misled, by a handler that changed it, say: only a fresh one tells of the code.
                raise _StaleError from error
            if isinstance(error, NonDeterminismError | DecodeError):
                raise await self._unfit(error) from error
            raise
        self._spent = "its handler took too long"
        try:
            return await replica.answer(self._name, self._value)
        except QueryError as error:
            if error.reason == "acts":
                self._port.replicas.drop(replica)
            raise

    def _program(self, workflow: str) -> Program:
        registry = self._port.registry
        try:
            return find_declared(workflow) if registry is None else registry.workflow(workflow)
        except DefinitionError as error:
            raise QueryError(
                f"the process that asks cannot replay the run: {error.message}",
                reason="no_code",
                hint=f"{error.hint}; on the command line, name that module with -m MODULE",
            ) from error

    # What is said where there is no answer

    async def _unfit(self, error: NonDeterminismError | DecodeError) -> QueryError:
        """Return what to do where the code does not fit: whose code does is known of workers that live."""
        assert self._head is not None
        name = self._head.workflow
        workers = await self._port.store.workers()
        builds = sorted(
            {one.row.build for one in workers if one.live and name in one.row.workflows}
        )
        known = ", ".join(builds) or "none lives"
        hint = (
            f"ask from where the code of the run's workers is (build of the live ones: {known}), or read what the run "
            "publishes: handle.published(key) needs no code"
        )
        if isinstance(error, DecodeError):
            what = f"what the journal holds does not fit the code here: {error.message}"
            return QueryError(what, reason="undecodable", hint=hint)
        what = f"the code here is not the code of the run: {error.message}"
        return QueryError(what, reason="mismatch", hint=hint)

    def late(self, seconds: float) -> QueryError:
        """Return the error that the budget is spent."""
        return QueryError(
            f"it has {seconds:g} s, and {self._spent}",
            reason="budget",
            hint="ask again, which goes on from there; or give timeout= more. publish() is the cheap way to be read",
        )

    def error(self, error: QueryError) -> QueryError:
        """Return the error with which query, how far the replay came, and by which code."""
        entries = 0 if self._replica is None else self._replica.entries
        stored = max(entries, 0 if self._head is None else self._head.next_seq)
        build = _build(self._port.registry)
        return QueryError(
            f"query {self._name!r} was not answered: {error.message} [{entries} of {stored} entries replayed by build {build}]",
            reason=error.reason,
            entries=entries,
            build=build,
            run=self._run.run_id,
            hint=error.hint,
        )


def _says_more_of_the_past(rows: Sequence[StampedRow]) -> bool:
    return any(one.row.kind in _HINDSIGHT for one in rows)


def _build(registry: Registry | None) -> str:
    """Return the build of the code that was asked, as workers register theirs."""
    try:
        return (registry or Registry.of_everything()).build()
    except DefinitionError:
        return "unknown"
