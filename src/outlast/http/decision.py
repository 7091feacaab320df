"""Decisions that come in as signed webhooks: who sent one, for whom he may speak, and what is answered.

Invariant: what is missing, malformed or not signed approves nothing; a sender decides in nobody's name but theirs for whom he may speak,
and that person's decision passes every check that it passes elsewhere.

Source: the specification of Standard Webhooks.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from outlast.client import Client
from outlast.errors import (
    DecisionRefusedError,
    DefinitionError,
    NotAuthorisedError,
    OutlastError,
    RunNotFoundError,
    StoreError,
)
from outlast.http.answer import Answer
from outlast.http.asgi import Scope, values_of
from outlast.http.problem import MEDIA_TYPE
from outlast.journal.parse import NotJsonError, parse_as

LARGEST_BYTES = 64 * 1024

_URN = "urn:outlast:decision:"
_HEADERS = ("webhook-id", "webhook-timestamp", "webhook-signature")
_NOT_AUTHORISED = "not_authorised"
_LEAST_SECRET_BYTES = 24
"""Source: the specification of Standard Webhooks: between 24 and 64 bytes."""

Word = Annotated[str, Meta(min_length=1, max_length=1000, pattern=r"^[^\x00-\x1f\x7f]*\Z")]


@dataclass(frozen=True, slots=True)
class Sender:
    r"""Somebody whose webhooks are believed, as a bot of a chat.

    Args:
        secret: `whsec_` and base64 of 24 bytes or more; several while secrets change.
        may_speak_for: Patterns of the persons in whose name it decides, as `*@example.org`. Nobody by default.

    Example:
        ```python
        from outlast.http import Sender

        bot = Sender("whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD", may_speak_for=("*@example.org",))
        assert bot.speaks_for("ann@example.org") and not bot.speaks_for("root")
        ```
    """

    secret: str | Sequence[str] = field(repr=False)
    may_speak_for: Sequence[str] = ()

    def __post_init__(self) -> None:
        """Refuse one text where several are meant: each of its letters would be a pattern."""
        if isinstance(self.may_speak_for, str):
            raise DefinitionError(
                "may_speak_for is one text and not several patterns",
                hint=f"write may_speak_for=({self.may_speak_for!r},)",
            )

    @property
    def secrets(self) -> tuple[str, ...]:
        """Every secret that is believed."""
        return (self.secret,) if isinstance(self.secret, str) else tuple(self.secret)

    def speaks_for(self, person: str) -> bool:
        """Whether this sender may decide in that person's name."""
        return any(fnmatchcase(person, pattern) for pattern in self.may_speak_for)


class Incoming(Struct, frozen=True, forbid_unknown_fields=True):
    """What a webhook says: all of it, and nothing else.

    Args:
        seen_sha256: The hash of what the person was shown.
        by: The person.
    """

    run_id: Word
    approval_id: Word
    decision: Literal["approve", "deny"]
    seen_sha256: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
    by: Word
    reason: Annotated[str, Meta(max_length=10_000)] = ""


_incoming = msgspec.json.Decoder(Incoming)


class Mailroom:
    """Takes webhooks, and decides by them.

    Args:
        client: On whose store, for whose tenant.
        senders: By name.

    Raises:
        DefinitionError: A secret is short, none, or two senders have it; or `standardwebhooks` is not installed.
    """

    def __init__(self, client: Client, senders: Mapping[str, Sender]) -> None:
        self._client = client
        self._senders = dict(senders)
        self._webhooks = [
            (name, _webhook(name, secret))
            for name, sender in senders.items()
            for secret in sender.secrets
        ]
        secrets = [secret for sender in senders.values() for secret in sender.secrets]
        if len(set(secrets)) < len(secrets):
            raise DefinitionError(
                "two senders have one secret", hint="give each its own: it says who has sent"
            )

    async def answer(self, scope: Scope, body: bytes) -> Answer:
        """Return the answer to a webhook, after what it says was decided or refused."""
        name = self._sender_of(scope, body)
        if name is None:
            return _problem(401, "unsigned", "The request is not signed by a sender that is known")
        try:
            said = parse_as(_incoming, body)
        except NotJsonError as error:
            return _malformed(str(error))
        if not self._senders[name].speaks_for(said.by):
            return _problem(
                403, "not_for_him", "This sender may not decide in the name of that person"
            )
        return await self._decide(name, said)

    def _sender_of(self, scope: Scope, body: bytes) -> str | None:
        """Return who signed the request, as long as that is not too long ago."""
        from standardwebhooks import WebhookVerificationError

        given = {name: values_of(scope, name) for name in _HEADERS}
        if any(len(values) != 1 for values in given.values()):
            return None
        headers = {name: values[0].decode("latin-1") for name, values in given.items()}
        for name, webhook in self._webhooks:
            try:
                webhook.verify(body, headers, json_parse=False)
            except (WebhookVerificationError, ValueError, OverflowError):
                continue
            return name
        return None

    async def _decide(self, sender: str, said: Incoming) -> Answer:
        try:
            approvals = self._client.acting_as(said.by).approvals
        except DefinitionError as error:
            return _malformed(error.message)
        verb = approvals.approve if said.decision == "approve" else approvals.deny
        # Who hears of the decision hears by what way it came: it was not the person who wrote it here.
        reason = f"{said.reason} (by way of {sender})".strip()
        try:
            await verb(said.run_id, said.approval_id, seen_sha256=said.seen_sha256, reason=reason)
        except OutlastError as error:
            return _refusal(error)
        done = {"run_id": said.run_id, "approval_id": said.approval_id}
        try:
            view = await approvals.get(said.run_id, said.approval_id)
        except NotAuthorisedError:  # it is decided, and that person sees no more of it by now
            return _document(200, "application/json", done)
        except OutlastError as error:
            return _refusal(error)
        return _document(200, "application/json", {**done, "state": view.state})


def too_large() -> Answer:
    """Return the answer to a body that is not read."""
    detail = f"The body of a decision has at most {LARGEST_BYTES} bytes."
    return _problem(413, "too_large", "The body is too large", detail)


def _malformed(detail: str) -> Answer:
    return _problem(400, "malformed", "The body is no decision", detail)


def _refusal(error: OutlastError) -> Answer:
    if isinstance(error, DecisionRefusedError):
        return _problem(409, error.reason, "The decision was not accepted", error.message)
    if error.code == _NOT_AUTHORISED:
        return _problem(403, error.code, "That person may not decide this", error.message)
    if isinstance(error, RunNotFoundError):
        return _problem(409, "unknown", "The decision was not accepted", error.message)
    if isinstance(error, StoreError):
        return _problem(503, error.code, "Nothing can be decided now", "Send it again later.")
    return _problem(400, error.code, "The body is no decision", error.message)


def _problem(status: int, code: str, title: str, detail: str = "") -> Answer:
    document = {"type": f"{_URN}{code}", "title": title, "status": status, "code": code}
    return _document(status, MEDIA_TYPE, document | ({"detail": detail} if detail else {}))


def _document(status: int, media_type: str, document: dict[str, Any]) -> Answer:
    headers = (("content-type", media_type), ("cache-control", "no-store"))
    return Answer(status, headers, json.dumps(document).encode())


def _webhook(name: str, secret: str) -> Any:
    try:
        from standardwebhooks import Webhook
    except ModuleNotFoundError as error:
        raise DefinitionError(
            "decisions by webhook need standardwebhooks",
            hint="in a clone of Outlast, pip install '.[http,notify]'",
        ) from error
    try:
        drawn = base64.b64decode(secret.removeprefix("whsec_"), validate=True)
    except ValueError:
        drawn = b""
    if len(drawn) < _LEAST_SECRET_BYTES:
        raise DefinitionError(
            f"the secret of the sender {name!r} is not whsec_ and base64 of {_LEAST_SECRET_BYTES} bytes or more",
            hint="draw one: python -c 'import base64, secrets; print(\"whsec_\" + base64.b64encode(secrets.token_bytes(24)).decode())'",
        )
    return Webhook(drawn)
