"""Says what came of a step that was handed out, or that somebody still works on it, by its token."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from msgspec import Raw

from outlast.client.access import check_run
from outlast.client.port import Port
from outlast.client.view import not_found
from outlast.effects.intent import Resolution
from outlast.effects.key import check_run_id
from outlast.errors import DefinitionError, OutlastError, RunConflictError, StoreError
from outlast.journal.codec import codec_of
from outlast.journal.failure import Failure
from outlast.store.beat import AWAITS
from outlast.store.change import (
    Applied,
    BeatOperation,
    Message,
    MessageKind,
    PutMessage,
    Refused,
    RunHead,
    RunKey,
    Verdict,
)
from outlast.workflows.completion import CompletionToken

_HAND_OUT_SECONDS = (0.05, 0.2, 0.75, 1.5, 2.5)
"""So often, and after so long each time, a beat is tried again: who got the token may be faster than the body's `complete_later()`."""


async def complete(client: Port, token: str, value: Any, *, id: str) -> None:
    """Say that the step of this token has returned; see `Client.complete`."""
    body = codec_of(value, where="the outcome").encode(value)
    await _say(client, token, id, outcome="applied", value=Raw(body))


async def fail(client: Port, token: str, message: str, *, id: str) -> None:
    """Say that the step of this token has failed for good; see `Client.fail`."""
    failure = Failure(type="RuntimeError", message=message)
    await _say(client, token, id, outcome="failed", failure=failure)


async def heartbeat(client: Port, token: str, details: Any) -> None:
    """Say that whoever works on the step of this token is alive; see `Client.heartbeat`."""
    body = b"" if details is None else codec_of(details, where="the details").encode(details)
    named = _named(client, token)
    run = RunKey(client.tenant, named.run)
    await check_run(client, "message", run)
    change = BeatOperation(run, named.generation, named.operation, body)
    verdict = await client.commit(change)
    for seconds in _HAND_OUT_SECONDS:
        if not (isinstance(verdict, Refused) and verdict.reason == AWAITS):
            break
        await asyncio.sleep(seconds)
        verdict = await client.commit(change)
    match verdict:
        case Applied():
            return
        case Refused(reason="generation"):
            raise _of_another_generation(named, await client.head(run))
        case Refused(reason=reason) if reason == AWAITS:
            raise RunConflictError(
                "the step of this token is not waited for: it has its outcome, its time is over, or it was given up",
                run=run.run_id,
                operation=named.operation,
                hint="stop working on it; `outlast runs journal` says what became of it. Or its body has not called "
                "`outlast.complete_later()` yet: beats count from then on",
            )
        case _:
            raise _refused(run, verdict)


def _named(client: Port, token: str) -> CompletionToken:
    named = CompletionToken.read(token)
    if named.tenant != client.tenant:
        raise DefinitionError(
            f"the token is of another tenant than {client.tenant!r}",
            hint="connect as the tenant whose run has handed it out",
        )
    check_run_id(named.run)
    return named


def _of_another_generation(named: CompletionToken, head: RunHead) -> RunConflictError:
    return RunConflictError(
        f"the token is of generation {named.generation} of this id, and its present one is {head.generation}",
        run=named.run,
        hint="the generation that handed it out has ended; nobody waits for that step any more",
    )


def _refused(run: RunKey, verdict: Verdict) -> OutlastError:
    """Return the error of what the store did not write."""
    match verdict:
        case Refused(reason="not_found"):
            return not_found(run)
        case Refused(reason="closed"):
            return RunConflictError(
                "the run that handed the token out has ended",
                run=run.run_id,
                hint="see `outlast runs show`",
            )
        case _:
            return StoreError(f"the store answered {verdict}", run=run.run_id)


async def _say(client: Port, token: str, id: str, **said: Any) -> None:
    named = _named(client, token)
    run = RunKey(client.tenant, named.run)
    await check_run(client, "message", run)
    head = await client.head(run)
    if head.generation != named.generation:
        raise _of_another_generation(named, head)
    resolution = Resolution(
        operation=named.operation,
        generation=named.generation,
        by=client.principal,
        name=named.step,
        **said,
    )
    message = Message(
        # Operations of all generations have the same ids, and share one inbox.
        f"complete/{named.generation}/{named.operation}/{id or client.new_id()}",
        MessageKind.OUTCOME,
        named.operation,
        client.principal,
        msgspec.json.encode(resolution),
    )
    verdict = await client.commit(PutMessage(run, message))
    if not isinstance(verdict, Applied):
        raise _refused(run, verdict)
