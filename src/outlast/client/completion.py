"""Says what came of a step that was handed out, by its token."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Raw

from outlast.client.port import Port
from outlast.client.view import not_found
from outlast.effects.intent import Resolution
from outlast.effects.key import check_run_id
from outlast.errors import DefinitionError, RunConflictError, StoreError
from outlast.journal.codec import codec_of
from outlast.journal.failure import Failure
from outlast.store.change import (
    Applied,
    Message,
    MessageKind,
    PutMessage,
    Refused,
    RunKey,
)
from outlast.workflows.completion import CompletionToken


async def complete(client: Port, token: str, value: Any, *, id: str) -> None:
    """Say that the step of this token has returned; see `Client.complete`."""
    body = codec_of(value, where="the outcome").encode(value)
    await _say(client, token, id, outcome="applied", value=Raw(body))


async def fail(client: Port, token: str, message: str, *, id: str) -> None:
    """Say that the step of this token has failed for good; see `Client.fail`."""
    failure = Failure(type="RuntimeError", message=message)
    await _say(client, token, id, outcome="failed", failure=failure)


async def _say(client: Port, token: str, id: str, **said: Any) -> None:
    named = CompletionToken.read(token)
    if named.tenant != client.tenant:
        raise DefinitionError(
            f"the token is of another tenant than {client.tenant!r}",
            hint="connect as the tenant whose run has handed it out",
        )
    run = RunKey(client.tenant, check_run_id(named.run))
    head = await client.head(run)
    if head.generation != named.generation:
        raise RunConflictError(
            f"the token is of use {named.generation} of this id, and its present one is {head.generation}",
            run=run.run_id,
            hint="the run that handed it out has ended",
        )
    resolution = Resolution(
        operation=named.operation,
        generation=named.generation,
        by=client.principal,
        name=named.step,
        **said,
    )
    message = Message(
        f"complete/{named.operation}/{id or client.new_id()}",
        MessageKind.OUTCOME,
        named.operation,
        client.principal,
        msgspec.json.encode(resolution),
    )
    verdict = await client.commit(PutMessage(run, message))
    match verdict:
        case Applied():
            return
        case Refused(reason="not_found"):
            raise not_found(run)
        case Refused(reason="closed"):
            raise RunConflictError(
                "the run that handed the token out has ended",
                run=run.run_id,
                hint="see `outlast runs show`",
            )
        case _:
            raise StoreError(f"the store answered {verdict}", run=run.run_id)
