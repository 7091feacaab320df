"""The demo at the terminal: runs the play, asks for approval, and shows what survived.

Exit status 0 only if exactly one pull request is open and the forge saw exactly one request to create it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import select
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import TextIO

from rich.console import Console
from rich.markup import escape
from rich.prompt import Prompt
from rich.status import Status
from rich.syntax import Syntax
from rich.table import Table
from rich.text import TextType

import outlast
from outlast.client import ApprovalView, JournalEntry, RunHandle
from outlast.demo.agent import Outcome
from outlast.demo.patch import plain
from outlast.demo.stage import BODIES, Play, Report, Stage
from outlast.errors import OutlastError

GOOD, BAD, USAGE, INTERRUPTED = 0, 1, 2, 130
_PATIENCE_SECONDS = 120
_TICK_SECONDS = 0.1

_WORDS = {
    "effect_intended": "intent recorded",
    "effect_completed": "done",
    "step_completed": "done",
    "step_failed": "[red]failed",
    "effect_failed": "[red]failed",
    "effect_in_doubt": "[yellow]in doubt",
    "effect_refused": "[red]refused",
}


def main(arguments: Sequence[str]) -> int:
    """Run the demo and return the exit status."""
    options = _parser().parse_args(arguments)
    if options.decide == "ask" and not sys.stdin.isatty():
        print(
            "outlast demo: no terminal to ask at; use --yes to approve unattended", file=sys.stderr
        )
        return USAGE
    play = Play(
        osv=options.osv,
        repository=options.repository,
        package=options.package,
        expires_in=timedelta(seconds=2) if options.decide == "expire" else timedelta(hours=72),
        probe=not options.without_probe,
        kill=not options.undisturbed,
    )
    console = Console(stderr=options.json)
    if options.directory is not None:
        return _run(options, play, options.directory.resolve(), console)
    with tempfile.TemporaryDirectory(prefix="outlast-demo-") as directory:
        return _run(options, play, Path(directory), console)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="outlast demo",
        description="An agent fixes a vulnerable dependency, is killed, and opens one pull request.",
    )
    parser.add_argument(
        "--yes",
        dest="decide",
        action="store_const",
        const="approve",
        default="ask",
        help="approve without asking",
    )
    parser.add_argument(
        "--no", dest="decide", action="store_const", const="deny", help="deny without asking"
    )
    parser.add_argument(
        "--let-expire",
        dest="decide",
        action="store_const",
        const="expire",
        help="give two seconds to decide, and nobody does",
    )
    parser.add_argument(
        "--json", action="store_true", help="print the result as one JSON object on the last line"
    )
    parser.add_argument(
        "--osv", type=_file, metavar="FILE", help="a vulnerability record in OSV format"
    )
    parser.add_argument(
        "--repository",
        type=_folder,
        metavar="PATH",
        help="a git repository or a directory to fix; it is copied, never changed",
    )
    parser.add_argument(
        "--package", default="", help="which package, where the record names several"
    )
    parser.add_argument(
        "--directory", type=Path, metavar="PATH", help="keep everything here, to look at afterwards"
    )
    parser.add_argument("--undisturbed", action="store_true", help="kill nobody")
    parser.add_argument(
        "--without-probe",
        action="store_true",
        help="show what happens when the probe answers without looking",
    )
    return parser  # fmt: skip


def _file(text: str) -> Path:
    if not Path(text).is_file():
        raise argparse.ArgumentTypeError(f"there is no file {text}")
    return Path(text)


def _folder(text: str) -> Path:
    if not Path(text).is_dir():
        raise argparse.ArgumentTypeError(f"there is no folder {text}")
    return Path(text)


def _run(options: argparse.Namespace, play: Play, directory: Path, console: Console) -> int:
    try:
        with Stage.build(directory, play) as stage:
            report = asyncio.run(_Show(console, options.decide, stage).run())
    except OutlastError as error:
        console.print(f"[red]{_safe(error.message)}")
        if error.hint:
            console.print(f"[red]→ {_safe(error.hint)}")
        return BAD
    except KeyboardInterrupt:
        console.print("\n[red]interrupted")
        return INTERRUPTED
    _print_table(console, report, probe=play.probe)
    if options.json:
        print(json.dumps(asdict(report)))
    return GOOD if report.good else BAD


class _Prompt(Prompt):
    """A question whose wait Ctrl-C always ends: Python may lose a signal that arrives just before a read that blocks."""

    @classmethod
    def get_input(
        cls, console: Console, prompt: TextType, password: bool, stream: TextIO | None = None
    ) -> str:
        """Return the line that is typed; what is no text in it is replaced, and so is no answer."""
        console.print(prompt, end="")
        typed = bytearray()
        while not typed.endswith(b"\n"):
            if select.select([sys.stdin], [], [], _TICK_SECONDS)[0]:
                if not (byte := os.read(sys.stdin.fileno(), 1)):
                    break
                typed += byte
        if not typed:
            raise EOFError
        return typed.decode(errors="replace").rstrip("\n")


@dataclass(slots=True)
class _Show:
    """The play as it is seen."""

    console: Console
    decide: str
    stage: Stage
    shown: int = 0
    spinner: Status | None = None

    async def run(self) -> Report:
        """Play it, and return what happened."""
        stage, say = self.stage, self.console.print
        say(f"[bold]Finding[/] {_safe(stage.finding.id)}: {_safe(stage.finding.record.summary)}")
        say(f"[bold]Store[/]   {stage.directory / 'agent.db'}")
        async with outlast.connect(stage.url, create=True) as client:
            handle = await stage.start_run(client)
            say(f"[bold]Run[/]     {_safe(handle.id)}\n")
            with self.console.status("the agent works") as self.spinner:
                await self._play(client, handle)
            status, journal = await handle.status(), await handle.journal()
            self._show_new(journal)
        stage.stop_worker()
        return stage.report(status, journal)

    async def _play(self, client: outlast.Client, handle: RunHandle[Outcome]) -> None:
        if self.stage.play.kill:
            self.stage.forge.order("hold")
        pid = self.stage.start_worker()
        self.console.print(f"worker {pid} started")
        until = time.monotonic() + _PATIENCE_SECONDS
        decided = self.decide == "expire"
        while not await self._is_over(handle):
            if time.monotonic() > until:
                raise OutlastError(
                    "the run did not end", hint="read worker.log; run with --directory to keep it"
                )
            if self.stage.worker_died():
                raise OutlastError(
                    "the worker ended by itself",
                    hint="read worker.log; run with --directory to keep it",
                )
            waiting = await client.approvals.list(run_id=handle.id)
            if waiting and not decided:
                decided = True
                await self._decide(client, waiting[0])
                until = time.monotonic() + _PATIENCE_SECONDS
            elif (
                self.stage.play.kill
                and self.stage.killed is None
                and await self._is_created(decided)
            ):
                self._show_new(await handle.journal())
                self._kill()
            await asyncio.sleep(_TICK_SECONDS)

    async def _is_over(self, handle: RunHandle[Outcome]) -> bool:
        self._show_new(await handle.journal())
        status = await handle.status()
        return status.status.closed or status.status == "blocked"

    async def _is_created(self, decided: bool) -> bool:
        return decided and self.decide != "expire" and await self.stage.created()

    async def _decide(self, client: outlast.Client, view: ApprovalView) -> None:
        subject = view.subject["subject"]
        say = self.console.print
        say(
            f"\n[bold]Approval[/] asked of a {_safe(view.role)}, until {view.expires_at:%Y-%m-%d %H:%M} UTC"
        )
        say(f"[bold]{_safe(subject['title'])}[/]")
        diff = "\n".join(plain(line) for line in subject["diff"].splitlines())
        say(
            Syntax(diff, "diff", word_wrap=True)
        )  # whole: nobody should approve what the edge of a terminal cut off
        for cover in view.subject["covers"]:
            say(f"  covers {_safe(cover['effect'])} ({cover['kind']})")
        say(f"  bound to {view.subject_sha256}\n")
        approved, reason = self.decide == "approve", "unattended"
        if self.decide == "ask":
            approved, reason = self._ask()
        act = client.approvals.approve if approved else client.approvals.deny
        await act(view.run_id, view.approval_id, seen_sha256=view.subject_sha256, reason=reason)
        say(f"[bold]{'approved' if approved else 'denied'}[/] by {_safe(client.principal)}\n")

    def _ask(self) -> tuple[bool, str]:
        """Ask at the terminal. Nothing else of this process has to go on meanwhile, and Ctrl-C must end it at once."""
        assert self.spinner is not None
        self.spinner.stop()
        handler = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            answer = _Prompt.ask(
                "Approve exactly this?", choices=["y", "n"], default="n", console=self.console
            )
        except EOFError:
            answer = "n"
        finally:
            signal.signal(signal.SIGINT, handler)
        self.spinner.start()
        return answer == "y", "at the prompt"

    def _kill(self) -> None:
        pid = self.stage.kill_worker()
        self.stage.forge.release()
        say = self.console.print
        say(
            f"\n[bold red]worker {pid} killed (SIGKILL)[/]: the pull request was created, and nobody recorded it"
        )
        say(
            f"worker {self.stage.start_worker()} started; it waits until the lost attempt can no longer act, then asks the forge\n"
        )
        if self.spinner is not None:
            self.spinner.update(
                "5 s timeout + 2 s to settle, counted from the first worker's death"
            )

    def _show_new(self, journal: list[JournalEntry]) -> None:
        for one in journal[self.shown :]:
            name = getattr(one.entry, "name", "")
            kind = str(type(one.entry).__struct_config__.tag)
            source = getattr(one.entry, "source", "attempt")
            word = _WORDS.get(kind)
            if word is not None:
                via = f" (said the {source})" if source != "attempt" else ""
                self.console.print(f"  {one.at:%H:%M:%S}  {_safe(name):<20} {word}{via}")
        self.shown = len(journal)


def _safe(text: str) -> str:
    """Return foreign text as it reads: no control characters, no markup."""
    return escape(plain(text))


def _print_table(console: Console, report: Report, *, probe: bool) -> None:
    table = Table(title="Each body, over both workers")
    table.add_column("step")
    table.add_column("ran", justify="right")
    table.add_column("seconds", justify="right")
    for name in BODIES:
        label = name
        if name == "find_pull_request":
            label += " (the probe)" if probe else " (a probe that does not look)"
        took = "cut off" if name in report.cut_off else f"{report.seconds[name]:.2f}"
        table.add_row(label, str(report.bodies[name]), took)
    console.print(table)
    colour = "green" if report.good else "red"
    console.print(
        f"[bold {colour}]run {report.status}[/]{': ' + _safe(report.reason) if report.reason else ''}; "
        f"pull requests open: {report.pull_requests}; create requests: {report.create_requests}"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
