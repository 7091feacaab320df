"""What a type checker must refuse: each marked line is an error of that rule, and no other line is one."""

from __future__ import annotations

from datetime import timedelta

import outlast


@outlast.step
async def plan(finding: str) -> int:
    """A step."""
    return len(finding)


@outlast.effect(idempotent=True)
async def pay(amount: int) -> str:
    """An effect."""
    return str(amount)


go = outlast.Signal("go", int)
counted = outlast.Query("counted", None, int)
drafted = outlast.Query("drafted", str, int)
add = outlast.Update("add", int, str)


@outlast.workflow
async def fix(finding: str) -> int:
    """A workflow."""
    await plan(5)  # expect: reportArgumentType
    await plan()  # expect: reportCallIssue
    await plan("x", more=1)  # expect: reportCallIssue
    text: str = await plan("x")  # expect: reportAssignmentType
    word: str = await outlast.receive(go)  # expect: reportAssignmentType
    await outlast.approval(
        finding,
        covers=[5],  # expect: reportArgumentType
        role="r",
        expires_in=timedelta(1),
    )
    await outlast.approval(1, role="r")  # expect: reportCallIssue
    outlast.on_query(drafted, lambda text: text)  # expect: reportArgumentType reportCallIssue
    outlast.on_signal(go, lambda: None)  # expect: reportArgumentType reportCallIssue
    outlast.on_signal(go, len)  # expect: reportArgumentType reportCallIssue
    outlast.on_update(add, abs)  # expect: reportArgumentType reportCallIssue
    outlast.on_update(add, str, validator=len)  # expect: reportArgumentType reportCallIssue
    await outlast.sleep("5")  # expect: reportArgumentType
    return await pay(len(text + word))  # expect: reportReturnType


@outlast.workflow
async def kin(finding: str) -> str:
    """A workflow that deals with other runs."""
    await outlast.run_child(fix(5))  # expect: reportArgumentType
    await outlast.run_child(fix("x"), parent_close="stay")  # expect: reportArgumentType
    child = await outlast.start_child(fix(finding))
    await child.send(go, "x")  # expect: reportArgumentType reportCallIssue
    return await child.result()  # expect: reportReturnType


async def outside(app: outlast.App) -> None:
    """A program that uses workflows."""
    result: str = await app.run(fix("f"), id="run-1")  # expect: reportAssignmentType
    await app.run(fix(1), id="run-1")  # expect: reportArgumentType
    await app.run(fix("f"))  # expect: reportCallIssue
    await app.run(fix("f"), id="run-1", durability="never")  # expect: reportArgumentType
    handle = await app.start(fix("f"), id="run-1")
    answer: str = await handle.query(counted)  # expect: reportAssignmentType
    await handle.query(drafted, 5)  # expect: reportArgumentType reportCallIssue
    await handle.query(drafted)  # expect: reportArgumentType reportCallIssue
    await handle.send(go, answer)  # expect: reportArgumentType reportCallIssue
    await handle.send(go, result)  # expect: reportArgumentType reportCallIssue
    await handle.update(add, result)  # expect: reportArgumentType reportCallIssue
    await handle.update(add)  # expect: reportArgumentType reportCallIssue
    with_start = app.signal_with_start
    await with_start(fix("f"), go, 5)  # expect: reportCallIssue


@outlast.effect(probe=plan, retries=3)  # expect: reportCallIssue reportUntypedFunctionDecorator
async def unknown_option(finding: str) -> int:
    """An option that does not exist."""
    return 1
