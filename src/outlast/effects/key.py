"""Idempotency keys and action hashes: what makes two calls the same call, to a receiver and to an approver.

A key is computed once, when the effect is intended; after that it is read from the journal.
"""

from __future__ import annotations

import hashlib
import re
from typing import Any

from outlast.errors import DefinitionError
from outlast.journal.length import (
    MESSAGE_ID_BYTES,
    NAME_BYTES,
    RUN_ID_BYTES,
    RUN_ID_CHARACTERS,
    size_in_bytes,
)

DEFAULT_TENANT = "default"
_SEPARATOR = "\x1f"
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_KEY_LENGTH = 32


def namespace(tenant: str, run_id: str, generation: int) -> str:
    """Return the `workflow_id` of a run's keys.

    The run id; `~n` after it for generation n from the second on; a tenant other than the default before it, with a control character
    between that neither may hold, so that no two runs share one.
    """
    used = run_id if generation == 1 else f"{run_id}~{generation}"
    return used if tenant == DEFAULT_TENANT else f"{tenant}{_SEPARATOR}{used}"


def namespace_of_child(parent: str, operation: str, own_id: str = "") -> str:
    """Return the namespace of a child's keys, given that of its parent, which may be a run that never started it.

    Args:
        operation: Of the parent, which starts it.
        own_id: The id that the workflow names, where it names one.
    """
    tenant, separator, _ = parent.rpartition(_SEPARATOR)
    return tenant + separator + (own_id or child_id(*run_of(parent), operation))


def run_of(namespace: str) -> tuple[str, int]:
    """Return the run and the generation that a namespace is of."""
    run_id, _, generation = namespace.rpartition(_SEPARATOR)[2].partition("~")
    return run_id, int(generation or 1)


def child_id(run_id: str, generation: int, operation: str) -> str:
    """Return the id of a child that is given none of its own: its parent's, and the operation that starts it."""
    use = "" if generation == 1 else f"@{generation}"
    # In a plain callback an operation has a tilde, which no run id may hold.
    return f"{run_id}/{operation.replace('~', '-')}{use}"


def idempotency_key(workflow_id: str, step: str, payload_sha256: str, *, number: int = 1) -> str:
    """Return the key that a receiver sees: 32 hex digits.

    Args:
        workflow_id: The run's namespace.
        step: The effect's name.
        payload_sha256: Hash of the arguments that count, 64 hex digits.
        number: Which equal call this is; from the second on it is part of the name (`#2`).

    Source: DESIGN section 4, `sha256(workflow_id:step:payload_sha256)`, first 32 digits.
    """
    numbered = step if number == 1 else f"{step}#{number}"
    preimage = f"{workflow_id}:{numbered}:{payload_sha256}"
    return hashlib.sha256(preimage.encode()).hexdigest()[:_KEY_LENGTH]


def check_name(name: str, *, what: str) -> str:
    """Return `name`, or refuse one that would make keys ambiguous."""
    article = "an" if what[0] in "aeiou" else "a"
    _check_text(name, f"the name of {article} {what}")
    if not name.strip() or ":" in name or "#" in name or _CONTROL.search(name):
        raise DefinitionError(
            f"{name!r} cannot be the name of {article} {what}",
            hint="a name is not blank and holds no ':', no '#' and no control character",
        )
    _check_length(name, f"the name of {article} {what}", NAME_BYTES)
    return _encodable(name, f"name of {article} {what}")


def check_run_id(run_id: str) -> str:
    """Return `run_id`, or refuse one that would make keys ambiguous."""
    _check_text(run_id, "a run id")
    if not run_id or "~" in run_id or _CONTROL.search(run_id) or len(run_id) > RUN_ID_CHARACTERS:
        raise DefinitionError(
            f"{run_id[:80]!r} cannot be a run id",
            hint=f"an id is not empty, at most {RUN_ID_CHARACTERS} characters, and holds no '~' and no control character; "
            "derive it from the event that started the work, as 'invoice-4711'",
        )
    _check_length(run_id, "a run id", RUN_ID_BYTES)
    return _encodable(run_id, "run id")


def check_tenant(tenant: str) -> str:
    """Return `tenant`, or refuse one that would make keys ambiguous."""
    _check_text(tenant, "a tenant")
    if not tenant or _CONTROL.search(tenant):
        raise DefinitionError(
            f"{tenant[:80]!r} cannot be a tenant",
            hint="a tenant is not empty, and holds no control character",
        )
    _check_length(tenant, "a tenant", NAME_BYTES)
    return _encodable(tenant, "tenant")


def check_message_id(message_id: str) -> str:
    """Return `message_id`, which may be empty, or refuse one that no inbox can keep."""
    _check_text(message_id, "the id of a message")
    _check_length(message_id, "the id of a message", MESSAGE_ID_BYTES)
    return message_id


def _check_length(text: str, what: str, limit: int) -> None:
    size = size_in_bytes(text)
    if size > limit:
        raise DefinitionError(
            f"{text[:80]!r} cannot be {what}: it has {size:,} bytes in UTF-8, and {limit:,} are the limit",
            hint="stores keep it in indexes; where it is made of something long, use a hash of that",
        )


def _check_text(given: Any, what: str) -> None:
    if not isinstance(given, str):
        raise DefinitionError(
            f"{given!r:.80} cannot be {what}: it is {type(given).__name__}, and no str",
            hint="write it as text, as in f'invoice-{number}'",
        )


def _encodable(text: str, what: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise DefinitionError(
            f"the {what} holds a lone surrogate at position {error.start}",
            hint="ids are stored as UTF-8; use text that can be encoded",
        ) from None
    return text
