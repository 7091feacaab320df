"""Lets runs go on whose workers are paused: some of them, or all; and says of whom it is known that nothing was forgotten.

What is released of a store that was put back to an earlier state goes on with care (`worker.forgotten`), until somebody vouches for it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from outlast.client.access import check_run, check_workflow, not_permitted
from outlast.client.control import change_row
from outlast.client.port import Port
from outlast.client.view import not_found
from outlast.errors import DefinitionError, RunConflictError, StoreError
from outlast.policy.authority import Principal, permitted
from outlast.store.change import Applied, Refused, Release, RunKey, Status
from outlast.store.restoration import EVERYBODY, RESTORATION, Released, Releases

_BATCH = 500
"""Runs in one transaction."""

_OPEN = frozenset(one for one in Status if not one.closed)


async def release(
    client: Port,
    runs: Sequence[str],
    *,
    workflow: str,
    everything: bool,
    trust: bool,
    reason: str,
) -> int:
    """Release runs; see `Client.release`."""
    if not reason.strip():
        raise DefinitionError("no reason is given", hint="say why: it is kept")
    if bool(runs) + bool(workflow) + everything != 1:
        raise DefinitionError(
            "what is to be released is not said, or said twice",
            hint="give ids of runs, or a workflow, or everything=True",
        )
    count = 0
    if everything:
        await _check_everything(client)
    elif workflow:
        await check_workflow(client, "resume", workflow)
        async for heads in _open_runs(client, workflow):
            count += await _release(client, heads, trust=trust)
    else:
        for run_id in runs:
            await check_run(client, "resume", RunKey(client.tenant, run_id))
        count = await _release_named(client, runs, trust=trust)
    what = "everything" if everything else f"runs of {workflow}" if workflow else " ".join(runs)
    if client.tenant != "default" and not everything:
        what = f"{what} of tenant {client.tenant}"
    kept = Released(client.store.now(), client.principal, reason, what[:500], count, trust)

    async def body(row: tuple[int, bytes] | None) -> bytes:
        return Releases.of(row).releasing(kept, everything=everything).encode()

    await change_row(client, EVERYBODY, RESTORATION, body)
    return count


async def restored(client: Port, reason: str) -> str:
    """Say that the store was put back; see `Client.restored`."""
    if not reason.strip():
        raise DefinitionError("no reason is given", hint="say how it was put back: it is kept")
    await _check_everything(client)
    live = [one.row.worker for one in await client.store.workers() if one.live]
    if live:
        raise StoreError(
            f"workers live on this store: {', '.join(live)}", hint="stop them, and say it again"
        )
    return await client.store.begin_timeline(reason)


async def _check_everything(client: Port) -> None:
    actor = Principal(client.principal, EVERYBODY, client.actor.roles)
    if not await permitted(client.authority, actor, "admin", ""):
        raise not_permitted(client, "admin", words="release everything", everybody=True)


async def _release_named(client: Port, runs: Sequence[str], *, trust: bool) -> int:
    keys = [RunKey(client.tenant, run_id) for run_id in dict.fromkeys(runs)]
    for key in keys:
        head = await client.store.head(key)
        if head is None:
            raise not_found(key)
        if head.status.closed:
            raise _ended(key, head.status)
    return await _release(client, keys, trust=trust)


async def _release(client: Port, runs: Sequence[RunKey], *, trust: bool) -> int:
    """Release runs, a part of them in one transaction; those that have ended meanwhile need it no more."""
    count = 0
    for first in range(0, len(runs), _BATCH):
        changes = [Release(run, trust) for run in runs[first : first + _BATCH]]
        for change, verdict in zip(changes, await client.commit_all(changes), strict=True):
            count += isinstance(verdict, Applied)
            if isinstance(verdict, Refused) and verdict.reason not in {"closed", "not_found"}:
                raise RunConflictError(
                    f"the store did not take the release of the run: {verdict.reason}",
                    run=change.run.run_id,
                    hint="see `outlast doctor`",
                )
    return count


async def _open_runs(client: Port, workflow: str) -> AsyncIterator[list[RunKey]]:
    before = None
    while True:
        heads = await client.store.heads(
            client.tenant, statuses=_OPEN, workflow=workflow, limit=_BATCH, before=before
        )
        yield [head.run for head in heads]
        if len(heads) < _BATCH:
            return
        before = heads[-1].created_at, heads[-1].run.run_id


def _ended(run: RunKey, status: Status) -> RunConflictError:
    return RunConflictError(
        f"the run has ended as {status}: there is nothing to release",
        run=run.run_id,
        hint="leave it out",
    )
