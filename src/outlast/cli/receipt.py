"""`outlast approvals receipt` and `verify`: a signed record of an approval, and its proof where there is neither store nor code."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from outlast.app import SystemClock
from outlast.approvals.proof import Check, prove
from outlast.approvals.receipt import PURPOSE, Act, Asked, Receipt, read_receipt
from outlast.cli.approval import Approval, Json, Run
from outlast.cli.output import complain, print_json, print_table, say
from outlast.cli.session import Session, stored, time_length, usage_error
from outlast.cli.text import at, counted, json_text
from outlast.client import Client
from outlast.crypto import SIGNING_KEY_VARIABLE, Signed, SigningKey, VerifyingKey, sign, verify
from outlast.errors import OutlastError, ReceiptError, SignatureError
from outlast.journal.parse import NotJsonError, parse

_LARGEST_BYTES = 1 << 26
"""No receipt is so large; a file that is may be anything."""


class Report(msgspec.Struct, frozen=True):
    """What was found of a receipt.

    Args:
        holds: The signature holds, and no check is broken.
        signed: By whom, when and for which tenant; None where the signature does not hold.
    """

    holds: bool
    checks: list[Check]
    signed: Signed | None = None
    receipt: Receipt | None = None


@stored
def receipt(  # noqa: PLR0913 - each is an option that is typed
    session: Session,
    run: Run,
    approval: Approval = "",
    key: Annotated[
        Path | None,
        typer.Option(
            "--key",
            metavar="FILE",
            help=f"PEM file of the private key; else {SIGNING_KEY_VARIABLE} holds its text.",
        ),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", metavar="FILE", help="Write it to this file.")
    ] = None,
    with_results: Annotated[
        bool,
        typer.Option(
            "--with-results",
            help="What effects returned or raised stands in it too, and not only its hash.",
        ),
    ] = False,
    expires_in: Annotated[
        timedelta | None,
        typer.Option(
            "--expires-in",
            parser=time_length,
            metavar="LENGTH",
            help="How long it counts, as 90d; for ever by default.",
        ),
    ] = None,
) -> None:
    """Print a signed receipt: who approved what, when, against which hash, and what the agent then did."""
    signer = SigningKey.from_environment() if key is None else SigningKey.read(key)

    async def work(client: Client) -> bytes:
        found = await client.approvals.receipt(run, approval, with_results=with_results)
        now = client.store.now()
        until = None if expires_in is None else _later(now, expires_in)
        body = msgspec.json.encode(found)
        return sign(body, PURPOSE, key=signer, at=now, tenant=client.tenant, expires_at=until)

    text = session.call(work)
    if out is None:
        typer.echo(text.decode(), nl=False)
    else:
        _write(out, text)
        say(f"written to {out}, signed with the key {signer.public.id}")


def verify_receipt(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The receipt.")],
    key: Annotated[
        Path,
        typer.Option("--key", metavar="PUBLIC", help="PEM file of the signer's public key."),
    ],
    as_json: Json = False,
) -> None:
    """Hold a receipt to its signature and to itself; needs no database. Exit status 1 when anything is broken."""
    try:
        report = _report(_read(file), VerifyingKey.read(key))
    except OutlastError as error:
        complain(error)
        raise typer.Exit(1) from None
    if as_json:
        print_json(report)
    else:
        _show(report)
    if not report.holds:
        raise typer.Exit(1)


def _report(text: bytes, key: VerifyingKey) -> Report:
    """Return every check; where the signature does not hold, nothing of the rest is looked at."""
    try:
        signed = verify(text, PURPOSE, key=key, now=SystemClock().now())
    except SignatureError as error:
        hint = f"; {error.hint}" if error.hint else ""
        return Report(False, [Check("signature", "broken", f"{error.message}{hint}")])
    checks = [Check("signature", "holds", f"signed with the key {signed.key_id}")]
    try:
        found = read_receipt(bytes(signed.body))
    except ReceiptError as error:
        return Report(False, [*checks, Check("form", "broken", error.message)], signed)
    if found.tenant == signed.tenant:
        checks.append(Check("tenant", "holds", "signed for the tenant whose run it is"))
    else:
        checks.append(Check("tenant", "broken", "it is of a run of another tenant"))
    checks += prove(found)
    return Report(all(one.verdict != "broken" for one in checks), checks, signed, found)


def _show(report: Report) -> None:
    signed, found = report.signed, report.receipt
    if signed is not None and found is not None:
        say(
            f"{'run':<10}{found.run_id} ({found.workflow}), generation {found.generation}, tenant {found.tenant}"
        )
        say(f"{'request':<10}{found.approval_id}: {found.state}")
        for asked in found.requests:
            _show_request(asked)
        for act in found.acts:
            say(f"{'did':<10}{_act_text(act)}")
        if not found.acts:
            say(f"{'did':<10}nothing under it")
        until = "" if signed.expires_at is None else f", counts until {at(signed.expires_at)}"
        say(f"{'signed':<10}{at(signed.signed_at)} with the key {signed.key_id}{until}")
    print_table(("CHECK", "", "WHAT"), [(one.name, one.verdict, one.text) for one in report.checks])
    broken = sum(one.verdict == "broken" for one in report.checks)
    say(
        "the receipt holds"
        if report.holds
        else f"the receipt does not hold: {counted(broken, 'check')} broken"
    )


def _show_request(asked: Asked) -> None:
    say(
        f"{'asked':<10}{at(asked.asked_at)} {asked.approval_id} of {asked.role or 'anybody'}: {_subject(asked)}"
    )
    say(f"{'sha256':<10}{asked.subject_sha256}")
    if asked.source == "policy":
        say(f"{'policy':<10}rule {asked.rule or '(none)'}, version {asked.policy_version}")
    for vote in asked.votes:
        if vote.sticky:
            text = f"decision {vote.sticky}, made {at(vote.at)} by {vote.by} on request {vote.approval} of run {vote.run}"
            say(f"{'by':<10}{text}, which sticks")
    for word in asked.words:
        behalf = f" for {word.behalf}" if word.behalf else ""
        why = f": {word.reason}" if word.reason else ""
        say(f"{'said':<10}{at(word.at)} {word.said} by {word.by}{behalf}{why}")


def _subject(asked: Asked) -> str:
    try:
        body: Any = parse(asked.subject)
        return json_text(body["subject"], indent=None)
    except (NotJsonError, LookupError, TypeError):
        return "(cannot be read)"


def _act_text(act: Act) -> str:
    outcome = act.outcome
    what = f"undoing {act.compensates}" if act.compensates else "as approved"
    known = outcome.known + (", and may have happened" if outcome.unknown else "")
    when = f" at {at(outcome.at)}" if outcome.at is not None else ""
    return (
        f"{at(act.intended_at)} {act.operation} {act.effect}({act.effective}) {what}: {known}{when}"
    )


def _read(place: Path) -> bytes:
    try:
        with place.open("rb") as file:
            text = file.read(_LARGEST_BYTES + 1)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "no file can have that name"
        raise OutlastError(f"{place} cannot be read: {why}", hint="check the path") from None
    if len(text) > _LARGEST_BYTES:
        raise OutlastError(f"{place} is larger than any receipt", hint="check the path")
    return text


def _write(place: Path, text: bytes) -> None:
    try:
        place.write_bytes(text)
    except OSError as error:
        raise OutlastError(
            f"{place} cannot be written: {error.strerror or error}",
            hint="name a file in a folder that is there: --out FILE",
        ) from None


def _later(now: Any, length: timedelta) -> Any:
    try:
        return now + length
    except OverflowError:
        raise usage_error("--expires-in is beyond any calendar") from None
