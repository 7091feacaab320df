"""Where a client may be used: on its own event loop, and not in a workflow."""

# ruff: noqa: D103 - the workflows and steps of a test say what they do in their bodies
from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

import outlast
from outlast.client import Client
from outlast.errors import DefinitionError, ForbiddenInWorkflowError, WorkflowFailedError
from outlast.store.memory import MemoryStore
from outlast.testing import SeededRandom, SimulatedClock, Simulation

go = outlast.Signal("go", int)


@outlast.workflow
async def waiting() -> int:
    return await outlast.receive(go)


USES: dict[str, Callable[[Client], Awaitable[Any]]] = {
    "start": lambda client: client.start(waiting(), id="other"),
    "start with a signal": lambda client: client.signal_with_start(waiting(), go, 1, id="other"),
    "send": lambda client: client.handle("w").send(go, 1),
    "cancel": lambda client: client.handle("w").cancel(),
    "status": lambda client: client.handle("w").status(),
    "result": lambda client: client.handle("w").result(),
    "journal": lambda client: client.handle("w").journal(),
    "list": lambda client: client.runs.list(),
    "approvals": lambda client: client.approvals.list(),
}


@pytest.mark.parametrize("use", list(USES))
def test_a_workflow_uses_no_client(use: str) -> None:
    """It is told what to write instead; nothing has happened, and the other runs of the worker go on."""
    clients: list[Client] = []

    @outlast.workflow
    async def using() -> None:
        await USES[use](clients[0])

    async def scenario(sim: Simulation) -> tuple[int, list[str]]:
        clients.append(sim.client)
        await sim.start_worker()
        handle = await sim.client.start(waiting(), id="w")
        with pytest.raises(WorkflowFailedError, match="a client was used in a workflow") as caught:
            await sim.client.run(using(), id="u")
        assert isinstance(caught.value.__cause__, ForbiddenInWorkflowError)
        assert "outlast.run_handle(id)" in caught.value.hint
        await handle.send(go, 7)
        return await handle.result(), sorted(one.run_id for one in await sim.client.runs.list())

    assert Simulation([waiting, using]).run(scenario) == (7, ["u", "w"])


@pytest.mark.parametrize("use", list(USES))
def test_another_event_loop_uses_no_client(use: str) -> None:
    """It is refused at once, and says what to do; from there it would hang."""

    async def main() -> None:
        client = Client(MemoryStore(SimulatedClock()), random=SeededRandom(1))
        await client.start(waiting(), id="w")

        def elsewhere() -> None:
            with pytest.raises(DefinitionError, match="another event loop") as caught:
                asyncio.run(_await(USES[use](client)))
            assert "run_coroutine_threadsafe" in caught.value.hint

        await asyncio.to_thread(elsewhere)
        assert [one.run_id for one in await client.runs.list()] == ["w"]

    asyncio.run(main())


async def _await(work: Awaitable[Any]) -> Any:
    return await work


def test_a_client_that_was_made_before_any_loop_is_of_the_first_that_uses_it() -> None:
    """And of the next one, once that is closed."""
    client = Client(MemoryStore(SimulatedClock()), random=SeededRandom(1))
    assert client.store.describe()
    asyncio.run(_await(client.start(waiting(), id="w")))
    assert [one.run_id for one in asyncio.run(client.runs.list())] == ["w"]


def test_a_synchronous_step_hands_its_call_to_the_loop_of_the_app() -> None:
    """The way that the refusal names works."""
    here: list[Any] = []

    @outlast.step
    def tell(number: int) -> int:
        app, loop = here
        asyncio.run_coroutine_threadsafe(app.handle("w").send(go, number), loop).result()
        return number

    @outlast.workflow
    async def telling() -> int:
        return await tell(7)

    async def main() -> tuple[int, int]:
        async with outlast.open("memory://") as app:
            here[:] = app, asyncio.get_running_loop()
            handle = await app.start(waiting(), id="w")
            return await app.run(telling(), id="t"), await handle.result()

    assert asyncio.run(main()) == (7, 7)
