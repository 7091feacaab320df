"""`outlast doctor`: is everything here that durable work needs, and what to do where it is not."""

from __future__ import annotations

import sys
import time
from datetime import timedelta
from typing import Annotated

import msgspec
import typer
from rich.text import Text

from outlast.app import SystemClock, examine_store, open_store, store_place
from outlast.cli.output import console, print_json
from outlast.cli.seen import SeenWorker, figure_lines, seen
from outlast.cli.session import Session, run, stored
from outlast.cli.text import safe
from outlast.errors import OutlastError
from outlast.store.figures import Figures
from outlast.store.finding import Finding
from outlast.store.moment import NO_BOOT, boot_id

_STYLES = {"ok": "green", "warn": "yellow", "fail": "red"}
_STEP = timedelta(milliseconds=100)
_WATCH_SECONDS = 0.05


class Report(msgspec.Struct, frozen=True):
    """All findings.

    Args:
        database: The absolute file.
        healthy: Nothing fails; warnings are allowed.
        figures: How much waits, and for how long, of all tenants; None where the store cannot be read.
        workers: The registered workers, live or not.
    """

    healthy: bool
    database: str
    findings: list[Finding]
    figures: Figures | None = None
    workers: list[SeenWorker] = msgspec.field(default_factory=list[SeenWorker])


@stored
def doctor(
    session: Session,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document.")] = False,
) -> None:
    """Check database, disk, clock, locks and workers, and count what waits; exit status 1 when something fails."""
    report = _report(session)
    if as_json:
        print_json(report)
    else:
        _print(report)
    if not report.healthy:
        raise typer.Exit(1)


def _report(session: Session) -> Report:
    reached, figures, workers = run(_reach(session))
    findings = [reached, *clocks(), *examine_store(session.database)]
    healthy = all(one.verdict != "fail" for one in findings)
    return Report(healthy, store_place(session.database), findings, figures, workers)


async def _reach(session: Session) -> tuple[Finding, Figures | None, list[SeenWorker]]:
    try:
        store = await open_store(session.database, create=False)
    except OutlastError as error:
        return Finding("database", "fail", error.message, error.hint), None, []
    try:
        figures, workers = await seen(store)
    finally:
        await store.close()
    return Finding("database", "ok", store.describe()), figures, workers


def clocks() -> list[Finding]:
    """Judge the machine's clocks: a boot clock that runs through suspends, and a wall clock that keeps its pace."""
    clock = SystemClock()
    boot = boot_id()
    if boot == NO_BOOT or not hasattr(time, "CLOCK_BOOTTIME"):
        return [
            Finding(
                "boot_clock",
                "warn",
                f"no boot clock on {sys.platform}: leases are counted on wall time",
                "keep the wall clock steady, and do not suspend this machine",
            )
        ]
    wall, since = clock.now(), clock.monotonic()
    time.sleep(_WATCH_SECONDS)
    gone, counted = clock.now() - wall, timedelta(seconds=clock.monotonic() - since)
    if counted <= timedelta(0):
        return [
            Finding(
                "boot_clock",
                "fail",
                "the boot clock stands still",
                "check the kernel's clock source",
            )
        ]
    if abs(gone - counted) > _STEP:
        text = f"the wall clock moved by {gone} while {counted} passed"
        return [Finding("boot_clock", "warn", text, "check NTP: it is stepping the clock")]
    return [Finding("boot_clock", "ok", "wall clock and boot clock keep the same pace")]


def _print(report: Report) -> None:
    screen = console()
    for one in report.findings:
        line = Text(f"{one.verdict:<5}", style=_STYLES[one.verdict])
        line.append(f"{one.check:<13}{safe(one.text)}", style="default")
        screen.print(line, soft_wrap=True)
        if one.hint:
            screen.print(Text(f"     → {safe(one.hint)}"), soft_wrap=True)
    if report.figures is not None:
        for line in figure_lines(report.figures, report.workers):
            screen.print(Text(safe(line)), soft_wrap=True)
    failed = sum(one.verdict == "fail" for one in report.findings)
    warned = sum(one.verdict == "warn" for one in report.findings)
    screen.print(Text(f"{failed} failed, {warned} to look at, {len(report.findings)} checked"))
