"""Where a refused effect is said to have failed: in the author's code, and nowhere in the library's."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import outlast
from outlast.cli import show
from outlast.policy import Held

HOUR = timedelta(hours=1)
LIBRARY = {one.name for one in Path(outlast.__file__).parent.rglob("*.py")}
POLICY = '[[deny]]\ntool = "refused_by_policy"\nreason = "never"\n'


@outlast.step
async def refused_look() -> int:
    """Find nothing out."""
    raise LookupError("nothing")


@outlast.effect(idempotent=True, approval=outlast.Approval("boss", expires_in=HOUR))
async def refused_pay(amount: int) -> int:
    """Never happen."""
    return amount


@outlast.effect(
    idempotent=True,
    approval=outlast.Approval("boss", expires_in=HOUR, preconditions={"look": refused_look}),
)
async def refused_unless() -> int:
    """Never happen."""
    return 1


@outlast.effect(idempotent=True)
async def refused_by_policy(amount: int) -> int:
    """Happen where nothing is said against it."""
    return amount


@outlast.effect(idempotent=True)
async def refused_send(amount: int) -> int:
    """Happen."""
    return amount


@outlast.workflow
async def refused(kind: str) -> int:
    """Do what is refused."""
    match kind:
        case "declared" | "nobody":
            return await refused_pay(1)
        case "policy":
            return await refused_by_policy(1)
        case "precondition":
            return await refused_unless()
        case "question":
            return await outlast.ask("how many?", int, role="boss", expires_in=HOUR)
        case "together":
            return sum(await asyncio.gather(refused_pay(1), refused_pay(2)))
        case "stopped":
            return await refused_send(1)
        case "no role":
            await outlast.approval("x", role="", expires_in=HOUR)
    await outlast.approval("x", role="boss", expires_in=HOUR, covers=[refused_send(1)])
    if kind == "spent":
        await refused_send(1)
    return await refused_send(2 if kind == "mismatch" else 1)


KINDS = (
    "declared", "nobody", "policy", "precondition", "question", "together", "stopped", "no role", "approval", "spent", "mismatch",
)  # fmt: skip


class Directory:
    """Everybody may do everything, and nobody may `act` in the name of a run any more once that is said."""

    may_act = True

    async def holds(self, principal: outlast.Principal, role: str, resource: str) -> Held | None:
        """Return that they do."""
        return Held()

    async def may(self, principal: outlast.Principal, verb: str, resource: str) -> bool:
        """Return that they may."""
        return self.may_act or verb != "act"

    async def holders(self, tenant: str, role: str, resource: str) -> list[str] | None:
        """Return that nobody knows."""
        return None


@pytest.mark.parametrize("kind", KINDS)
def test_only_the_authors_code_is_named(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In `show`, in `explain` and in the error of who waits: whoever reads it can do nothing about the library's frames."""
    policy = tmp_path / "policy.toml"
    policy.write_text(POLICY, encoding="utf-8")

    async def main() -> None:
        directory = Directory()
        opened = outlast.open("memory://", workflows=[refused], policy=policy, authority=directory)
        async with opened as app:
            if kind == "stopped":
                await app.stops.stop("never", tool="refused_send")
            directory.may_act = kind != "nobody"
            handle = await app.start(refused(kind), id="run")
            ended = asyncio.ensure_future(handle.result())
            yes = kind in {"spent", "mismatch", "precondition", "nobody"}
            while not ended.done():
                await decide(app, yes=yes)
                await asyncio.wait([ended], timeout=0.01)
            error = ended.exception()
            assert isinstance(error, outlast.OutlastError)
            detail, told = await handle.detail(), await handle.explain()
            capsys.readouterr()
            show.run(detail, lambda *words: " ".join(words))
            shown = capsys.readouterr().out.partition("\n\n")[0]
            assert "test_refused.py" in detail.place
            for text in (detail.place, str(told), shown, str(error)):
                assert not [one for one in LIBRARY if f" {one}:" in text], text

    asyncio.run(main())


async def decide(app: outlast.App, *, yes: bool) -> None:
    """Decide whatever waits."""
    for one in await app.approvals.list():
        act: Any = app.approvals.approve if yes else app.approvals.deny
        await act("run", one.approval_id, seen_sha256=one.subject_sha256)
