"""`outlast worker`: imports code, runs what it declares until told to stop, and gives every run back."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import importlib.util
import logging
import os
import signal
import sys
import traceback
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Annotated

import typer

from outlast.app import App
from outlast.app import open as open_app
from outlast.cli.health import HealthServer, Place, health_place
from outlast.cli.log import LogFormat, Start, log_to_stderr
from outlast.cli.output import complain, note, note_lines, say
from outlast.cli.session import Session, run, stored, time_length
from outlast.errors import DefinitionError, OutlastError
from outlast.notify import Notify
from outlast.notify.file import read_notify
from outlast.worker.options import TASKS
from outlast.worker.release import HOW
from outlast.workflows.registry import Registry, library_version

_PACKAGE = Path(__file__).parents[1]
_ONE_WISH_SECONDS = 1.0
"""Signals to end that come closer together are one: `timeout` and some supervisors tell the process and its group."""


@stored
def worker(  # noqa: PLR0913 - what can be typed
    session: Session,
    modules: Annotated[
        list[str],
        typer.Argument(metavar="MODULE...", help="Modules to import, or files (agent.py)."),
    ],
    lease: Annotated[
        timedelta,
        typer.Option(
            parser=time_length,
            metavar="TIME",
            help="How long it may be silent before others take its runs; at least 1s.",
        ),
    ] = "15s",  # pyright: ignore[reportArgumentType] - parsed like what is typed
    idle: Annotated[
        timedelta,
        typer.Option(
            parser=time_length,
            metavar="TIME",
            help="How long a run that only waits stays in memory.",
        ),
    ] = "1s",  # pyright: ignore[reportArgumentType]
    grace: Annotated[
        timedelta,
        typer.Option(
            parser=time_length,
            metavar="TIME",
            help="How long steps and effects may go on when it is told to stop.",
        ),
    ] = "10s",  # pyright: ignore[reportArgumentType]
    queue: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Run the steps that are declared with this queue, of any run; may be given again.",
        ),
    ] = None,
    tasks: Annotated[
        int, typer.Option(min=1, help="How many steps of its queues it runs at once.")
    ] = TASKS,
    no_workflows: Annotated[
        bool,
        typer.Option("--no-workflows", help="Run the steps of its queues only, and no workflow."),
    ] = False,
    notify: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="TOML: how people are told of what they are asked; nobody is told without it.",
        ),
    ] = None,
    paused: Annotated[
        bool,
        typer.Option(
            "--paused", help="Move nothing but what `outlast release` names, until all is released."
        ),
    ] = False,
    health: Annotated[
        Place | None,
        typer.Option(
            parser=health_place,
            metavar="[HOST:]PORT",
            help="Answer /livez and /readyz there, on 127.0.0.1 unless told otherwise.",
        ),
    ] = None,
    log: Annotated[
        LogFormat, typer.Option(help="Lines for people, or one JSON object a line.")
    ] = LogFormat.TEXT,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Log what each run does.")
    ] = False,
) -> None:
    """Run the workflows that MODULE... declare, and the steps of its queues, until SIGINT or SIGTERM; a second signal stops at once."""
    start = log_to_stderr(logging.DEBUG if verbose else logging.INFO, log)
    queues = queue or []
    with author_errors():
        found, workflows = _work_in(modules, queues, no_workflows=no_workflows)
        app = open_app(
            session.database,
            workflows=[found.workflows[name] for name in workflows],
            tenant=session.tenant,
            lease=lease,
            idle=idle,
            grace=grace,
            queues=queues,
            tasks=tasks,
            paused=paused,
            notify=None if notify is None else _notify_in(notify),
        )
    run(_serve(app, workflows, queues, start, health, grace))


def _work_in(
    modules: Iterable[str], queues: list[str], *, no_workflows: bool
) -> tuple[Registry, list[str]]:
    """Return what the modules declare, and which workflows of it are run."""
    for module in modules:
        load(module)
    found = Registry.of_everything()
    workflows = [] if no_workflows else sorted(found.workflows)
    _require_work(found, workflows, queues)
    return found, workflows


def _notify_in(file: Path) -> Notify:
    """Return how people are reached, as a file says."""
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeError) as error:
        why = getattr(error, "strerror", None) or "it is no UTF-8"
        raise DefinitionError(
            f"{file} cannot be read: {why}", hint="name the file that says how people are reached"
        ) from None
    return read_notify(text)


def load_all(modules: Iterable[str]) -> list[str]:
    """Import modules and files, and return the names of the workflows that they declare; what is wrong ends the command."""
    with author_errors():
        for module in modules:
            load(module)
        workflows = sorted(Registry.of_everything().workflows)
        if not workflows:
            raise DefinitionError(
                "the modules declare no workflow",
                hint="name the module that holds what @outlast.workflow decorates",
            )
    return workflows


@contextmanager
def author_errors() -> Generator[None, None, None]:
    """Print what a module raises when it is imported, and end the command with status 1."""
    try:
        yield
    except OutlastError as error:
        complain(error)
        raise typer.Exit(1) from None
    except Exception as error:  # noqa: BLE001 - the author's module raised
        for line in _author_lines(error):
            note_lines(line)
        raise typer.Exit(1) from None


def _require_work(found: Registry, workflows: list[str], queues: list[str]) -> None:
    """Refuse modules that give this worker nothing to do."""
    if queues and not found.queues():
        raise DefinitionError(
            "the modules declare no step with a queue",
            hint=f"name the module that holds what @outlast.step(queue={queues[0]!r}) decorates",
        )
    if not (workflows or queues):
        raise DefinitionError(
            "the modules declare no workflow" if not found.workflows else "there is nothing to run",
            hint="name the module that holds what @outlast.workflow decorates; or a queue: --queue NAME",
        )


def _author_lines(error: Exception) -> list[str]:
    """Return the error that an imported module raised, as a traceback without the frames of whoever imported it."""
    told = traceback.TracebackException.from_exception(error)
    frames = [one for one in told.stack if not _is_ours(one.filename)]
    told.stack = traceback.StackSummary.from_list(frames)
    lines = list(told.format(chain=True))
    return [line.rstrip("\n") for line in lines]


def _is_ours(file: str) -> bool:
    return file.startswith((str(_PACKAGE), "<frozen importlib", importlib.__file__))


def load(name: str) -> None:
    """Import a module by its name, or a file by its path.

    Raises:
        DefinitionError: There is no such module or file; or it ends the program, as a script does.
    """
    try:
        _import(name)
    except SystemExit as error:
        raise DefinitionError(
            f"{name} ended the program when it was imported: sys.exit({'' if error.code is None else repr(error.code)})",
            hint='put what only a program does under `if __name__ == "__main__":`; what is imported here only declares',
        ) from None


def _import(name: str) -> None:
    place = Path(name)
    if place.suffix == ".py" or place.is_file():
        _load_file(place)
        return
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        raise DefinitionError(
            f"there is no module {name!r} (no {error.name!r} on the path)",
            hint=f"run this from the folder of the project ({Path.cwd()} now), or name a file: agent.py",
        ) from None


def _load_file(place: Path) -> None:
    place = place.resolve()
    if not place.is_file():
        raise DefinitionError(f"there is no file {place}", hint="check the path")
    if place.suffix != ".py":
        raise DefinitionError(
            f"{place} is not named as a file of Python code",
            hint="rename it so that it ends in .py, or name a module",
        )
    name = place.stem
    other = sys.modules.get(name)
    if other is not None and getattr(other, "__file__", None) != str(place):
        raise DefinitionError(
            f"{place} would be imported as {name!r}, which is another module already",
            hint="rename the file",
        )
    if other is not None:
        return
    # As `python FILE` does: the file's neighbours can be imported.
    sys.path.insert(0, str(place.parent))
    spec = importlib.util.spec_from_file_location(name, place)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise


async def _serve(
    app: App,
    workflows: list[str],
    queues: list[str],
    start: Start,
    health: Place | None,
    grace: timedelta,
) -> None:
    stop = _stop_on_signals(start.note)
    async with app, contextlib.AsyncExitStack() as stack:
        say(f"outlast    {library_version()}")
        say(f"database   {app.store.describe()}")
        if workflows:
            say(f"workflows  {', '.join(workflows)}")
        if queues:
            say(f"queues     {', '.join(queues)}")
        say(f"worker     {app.worker.id}")
        if app.worker.paused:
            say(f"PAUSED     it moves nothing but what is released: {HOW}")
        if health is not None:
            server = HealthServer(health, lambda: app.worker.vitals)
            # Answers as long as the worker still gives runs back: it is alive, and not ready.
            stack.callback(server.close)
            say(f"health     {server.url}")
        start.is_over = True
        await stop.wait()
        start.note(
            f"stopping: runs are given back as their attempts end, or in {grace.total_seconds():g} s; the same signal again stops at once"
        )
    start.note("stopped")


def _stop_on_signals(note: Callable[[str], None] = note) -> asyncio.Event:
    """Return what the first signal sets; the second one ends the process, as a crash would: nothing is lost."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    first = 0.0

    def told(number: int) -> None:
        nonlocal first
        if not stop.is_set():
            first = loop.time()
            stop.set()
        elif number == signal.SIGINT or loop.time() - first >= _ONE_WISH_SECONDS:
            note("stopped at once")
            sys.stdout.flush()
            os._exit(128 + number)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, told, number)
    return stop
