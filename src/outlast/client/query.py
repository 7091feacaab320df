"""Asks a run a question: its journal is read, its code is replayed in this process, its handler answers. Nothing is written.

The answer is that of the last commit. It is given within a budget of real time, or not at all; what was replayed by then is kept, so
that asking again goes on from there.
"""

from __future__ import annotations

import asyncio
from datetime import timedelta

from outlast.client.port import Port
from outlast.client.replica import Replica
from outlast.errors import DecodeError, DefinitionError, NonDeterminismError, QueryError
from outlast.replay.machine import Program
from outlast.store.change import RunHead, RunKey
from outlast.workflows.registry import Registry, find_declared

BUDGET = timedelta(seconds=1)
"""How long loading, replay and handler may take together, unless the caller says otherwise."""


async def ask(port: Port, run: RunKey, name: str, value: bytes, budget: timedelta) -> bytes:
    """Return the answer to a query as JSON.

    Args:
        value: The question's, as JSON.
        budget: Of real time, by the event loop's clock.

    Raises:
        QueryError: There is no answer.
        RunNotFoundError: There is no such run.
        DefinitionError: The budget is none.
    """
    seconds = budget.total_seconds()
    if seconds <= 0:
        raise DefinitionError(
            f"timeout={budget!r} is no time in which a query could be answered",
            hint="write timeout=timedelta(seconds=…)",
        )
    asking = _Asking(port, run, name, value)
    began = asyncio.get_running_loop().time()
    try:
        async with asyncio.timeout(seconds):
            answer = await asking.answer()
    except TimeoutError:
        raise asking.error(_late(asking, seconds)) from None
    except QueryError as error:
        raise asking.error(error) from error.__cause__
    if asyncio.get_running_loop().time() - began > seconds:
        # A handler that does not return cannot be stopped; one that came back late is told as late.
        raise asking.error(_late(asking, seconds))
    return answer


class _Asking:
    """One question."""

    def __init__(self, port: Port, run: RunKey, name: str, value: bytes) -> None:
        self._port = port
        self._run = run
        self._name = name
        self._value = value
        self._replica: Replica | None = None
        self._head: RunHead | None = None

    @property
    def entries(self) -> int:
        """How many entries of the journal were replayed so far."""
        return 0 if self._replica is None else self._replica.entries

    @property
    def stored(self) -> int:
        """How many there are, as far as is known."""
        return max(self.entries, 0 if self._head is None else self._head.next_seq)

    async def answer(self) -> bytes:
        """Read, replay and ask."""
        self._head = head = await self._port.head(self._run)
        program = self._program(head.workflow)
        return await self._port.replicas.use(self._run, head.generation, program, self._ask)

    async def _ask(self, replica: Replica) -> bytes:
        self._replica = replica
        rows = await self._port.store.journal(
            self._run, generation=replica.generation, after=replica.entries - 1
        )
        try:
            await replica.catch_up(rows)
        except DecodeError as error:
            self._port.replicas.drop(replica)
            raise QueryError(
                f"what the journal holds does not fit the code here: {error.message}",
                reason="undecodable",
                hint=await self._remedy(replica),
            ) from error
        except NonDeterminismError as error:
            self._port.replicas.drop(replica)
            raise QueryError(
                f"the code here is not the code of the run: {error.message}",
                reason="mismatch",
                hint=await self._remedy(replica),
            ) from error
        except Exception:
            self._port.replicas.drop(replica)
            raise
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

    async def _remedy(self, replica: Replica) -> str:
        """Return what to do where the code does not fit: whose code does is known of workers that live."""
        name = replica.program.name
        workers = await self._port.store.workers()
        builds = sorted(
            {one.row.build for one in workers if one.live and name in one.row.workflows}
        )
        known = ", ".join(builds) or "none lives"
        return (
            f"ask from where the code of the run's workers is (build of the live ones: {known}), or read what the run "
            "publishes: handle.published(key) needs no code"
        )

    def error(self, error: QueryError) -> QueryError:
        """Return the error with which query, how far the replay came, and by which code."""
        build = _build(self._port.registry)
        return QueryError(
            f"query {self._name!r} was not answered: {error.message} [{self.entries} of {self.stored} entries replayed by "
            f"build {build}]",
            reason=error.reason,
            entries=self.entries,
            build=build,
            run=self._run.run_id,
            hint=error.hint,
        )


def _late(asking: _Asking, seconds: float) -> QueryError:
    spent = (
        "its handler took too long"
        if asking.entries == asking.stored
        else "the replay was not done"
    )
    return QueryError(
        f"it has {seconds:g} s, and {spent}",
        reason="budget",
        hint="ask again, which goes on from there; or give timeout= more. publish() is the cheap way to be read",
    )


def _build(registry: Registry | None) -> str:
    """Return the build of the code that was asked, as workers register theirs."""
    try:
        return (registry or Registry.of_everything()).build()
    except DefinitionError:
        return "unknown"
