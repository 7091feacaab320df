"""Whether whoever acts may do what they ask for: said no before anything is read or written, and without saying whether there is such a run."""

from __future__ import annotations

from shlex import quote

from outlast.client.port import Port
from outlast.errors import NotAuthorisedError
from outlast.policy.authority import FRESH_FOR, Anybody, StoreAuthority, permitted
from outlast.policy.binding import ADMIN, OWN, Verb
from outlast.policy.local import EVERYBODY
from outlast.store.change import RunKey

_WORDS: dict[str, str] = {
    "start": "start this workflow",
    "message": "send anything to this run",
    "decide": "decide this request",
    "resume": "cancel, pause, resume, resolve or end this run",
    "act": "have this done in their name",
    "fork": "fork or retry this run",
    "read": "read this run",
    "stop": "stop what agents do",
    "pin": "pin definitions of foreign tools",
    "admin": "change roles",
    "bypass": "work in the mode `bypass`",
}


async def check_run(client: Port, verb: Verb, run: RunKey) -> None:
    """Refuse what may not be done to a run. A run that does not exist is nobody's whose role does not fit every workflow.

    Raises:
        NotAuthorisedError: Whoever acts may not do it.
    """
    if await is_free(client, verb):
        return
    head = await client.store.head(run)
    resource = "" if head is None else head.workflow
    if not await permitted(client.authority, client.actor, verb, resource):
        raise not_permitted(client, verb, run=run.run_id)


async def may_read(client: Port, workflow: str) -> bool:
    """Whether whoever acts may read the runs of a workflow."""
    return await is_free(client, "read") or await permitted(
        client.authority, client.actor, "read", workflow
    )


async def check_workflow(client: Port, verb: Verb, workflow: str = "", *, words: str = "") -> None:
    """Refuse what may not be done with a workflow, or, where none is named, with all of them.

    Args:
        words: What that is, for the error, where it is no run to which it is done.

    Raises:
        NotAuthorisedError: Whoever acts may not do it.
    """
    if not await permitted(client.authority, client.actor, verb, workflow):
        raise not_permitted(client, verb, resource=workflow, words=words)


async def is_free(client: Port, verb: Verb) -> bool:
    """Whether everybody may do something; a directory of the user's is asked each time."""
    _ = client.store  # refuses workflow code, and another event loop
    authority = client.authority
    if isinstance(authority, Anybody):
        return True
    if not isinstance(authority, StoreAuthority):
        return False
    return (await authority.roles(client.tenant, fresh_for=FRESH_FOR)).is_free(verb)


def not_permitted(
    client: Port,
    verb: Verb,
    *,
    resource: str = "",
    run: str | None = None,
    words: str = "",
    everybody: bool = False,
) -> NotAuthorisedError:
    """Return the error that whoever acts may not do something.

    Args:
        words: What that is, where the verb says it too widely.
        everybody: In what counts for all tenants.
    """
    return NotAuthorisedError(
        f"{client.principal or 'nobody in particular'} may not {words or _WORDS[verb]}",
        who=client.principal,
        verb=verb,
        resource=resource,
        run=run,
        hint=_remedy(client, OWN + verb, everybody=everybody),
    )


def not_held(
    client: Port, role: str, *, resource: str, run: str | None = None
) -> NotAuthorisedError:
    """Return the error that whoever acts does not hold a role."""
    return NotAuthorisedError(
        f"{client.principal or 'nobody in particular'} does not hold the role {role!r}",
        who=client.principal,
        role=role,
        resource=resource,
        run=run,
        hint=_remedy(client, role),
    )


def _remedy(client: Port, role: str, *, everybody: bool = False) -> str:
    authority = client.authority
    if not isinstance(authority, StoreAuthority):
        return (
            "the directory that outlast.open(authority=…) was given says so; ask whoever keeps it"
        )
    everywhere = " --everybody" if everybody else ""
    grant = f"outlast roles grant {quote(client.principal) if client.principal else 'SUBJECT'} {role}{everywhere}"
    is_open = authority.was_open(EVERYBODY if everybody else client.tenant)
    if is_open and authority.local is not None:
        return f"no roles are set, so {authority.local}, who opened the store first, holds all of them, and can grant it: `{grant}`"
    return f"whoever holds {ADMIN} can grant it: `{grant}`; `outlast roles list` says who that is"
