"""What every command shares: which store, which tenant, how a coroutine is run, how an error ends the process."""

from __future__ import annotations

import asyncio
import inspect
import sys
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Any, TypeVar

import typer

from outlast.app import connect, typed_url
from outlast.cli.output import complain
from outlast.cli.text import parse_length, typed
from outlast.client import Client
from outlast.errors import OutlastError
from outlast.journal.parse import NotJsonError, parse

T = TypeVar("T")

DATABASE_HELP = "URL of the store; else OUTLAST_DATABASE_URL, else sqlite:///outlast.db."
TENANT_HELP = "Whose runs; else `default`."
LAST_NUMBER = (1 << 31) - 1
"""No journal is so long, and no id was used so often."""

_SHOWN = 200
"""Characters of what was typed that an error repeats."""


@dataclass(slots=True)
class Session:
    """Which store and whose runs.

    Args:
        database: The URL, as typed; None for the environment's or the default.
    """

    database: str | None = None
    tenant: str = "default"

    def call(self, ask: Callable[[Client], Coroutine[Any, Any, T]]) -> T:
        """Open the store, which must exist, and return what `ask` returns. An error of Outlast ends the command."""

        async def work() -> T:
            async with connect(self.database, tenant=self.tenant, create=False) as client:
                return await ask(client)

        return run(work())

    def command(self, *words: str) -> str:
        """Return a command for this store and tenant, as it is typed."""
        options: list[str] = []
        if self.database is not None:
            options += ["-d", typed_url(self.database)]
        if self.tenant != "default":
            options += ["--tenant", self.tenant]
        return typed(options, words)


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run `work`; an error of Outlast is printed with what to do about it, and the exit status is 1."""
    try:
        return asyncio.run(work)
    except OutlastError as error:
        complain(error)
        raise typer.Exit(1) from None


def stored(function: Callable[..., None]) -> Callable[..., None]:
    """Return a command that hands `function` its session first.

    The command takes `--database` and `--tenant` behind its own name too, where they are typed most often; before it they
    stand for all.
    """
    signature = inspect.signature(function, eval_str=True)
    given = list(signature.parameters.values())[1:]

    def command_function(ctx: typer.Context, database: Any, tenant: Any, **values: Any) -> None:
        session = ctx.find_root().ensure_object(Session)
        try:
            function(
                Session(database or session.database, tenant or session.tenant),
                **values,
            )
        except OutlastError as error:
            complain(error)
            raise typer.Exit(1) from None

    context = inspect.Parameter(
        "ctx", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context
    )
    shared = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=None,
            annotation=Annotated[str | None, option],
        )
        for name, option in (
            ("database", typer.Option("--database", "-d", help=DATABASE_HELP)),
            ("tenant", typer.Option("--tenant", help=TENANT_HELP)),
        )
    ]
    parameters = [context, *given, *shared]
    changed: Any = command_function
    changed.__name__ = function.__name__
    changed.__doc__ = function.__doc__
    changed.__signature__ = inspect.Signature(
        [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in parameters]
    )
    changed.__annotations__ = {one.name: one.annotation for one in parameters}
    return command_function


def usage_error(text: str) -> typer.BadParameter:
    """Return the error of a command that was typed wrong: exit status 2."""
    return typer.BadParameter(text)


def time_length(text: str) -> timedelta:
    """Return the length of time that was typed for an option; to be used as its parser."""
    try:
        return parse_length(text)
    except ValueError as error:
        raise usage_error(str(error)) from None


def json_of(text: str) -> Any:
    """Return what was typed as JSON; what is none is typed wrong."""
    try:
        return parse(text)
    except NotJsonError as error:
        shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
        raise usage_error(
            f"{shown!r} is not JSON ({error}); a text needs its quotes, as '\"text\"'"
        ) from None


def at_terminal() -> bool:
    """Whether somebody can be asked."""
    return sys.stdin.isatty() and sys.stdout.isatty()
