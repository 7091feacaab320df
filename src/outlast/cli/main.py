"""The command `outlast`: its commands in one place, and the options that come before them."""

from __future__ import annotations

import warnings
from typing import Annotated, TextIO

import typer

from outlast.cli.approval import approvals
from outlast.cli.backup import backup, restore
from outlast.cli.complete import complete, heartbeat
from outlast.cli.doctor import doctor
from outlast.cli.doubt import doubts, resolve
from outlast.cli.fork import fork, retry
from outlast.cli.growth import accept, export_run
from outlast.cli.key import keys
from outlast.cli.migrate import migrate
from outlast.cli.output import complain, note, say
from outlast.cli.policy import policy
from outlast.cli.receipt import receipt, verify_receipt
from outlast.cli.release import release
from outlast.cli.replay import replay
from outlast.cli.request import requests
from outlast.cli.role import roles
from outlast.cli.run import runs
from outlast.cli.session import DATABASE_HELP, TENANT_HELP, Session
from outlast.cli.sticky import list_sticky, revoke
from outlast.cli.stop import stop
from outlast.cli.worker import worker
from outlast.errors import (
    KeyExposedWarning,
    NobodyHoldsRoleWarning,
    NoWorkerWarning,
    OutlastError,
    RunHeldWarning,
)
from outlast.workflows.registry import library_version

_DEMO_PACKAGES = frozenset({"httpx", "packaging"})

app = typer.Typer(
    name="outlast",
    help="Durable execution for AI agents: no lost work, no doubled effects, approvals that mean what they say.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.command("worker", no_args_is_help=True)(worker)
runs.command("complete")(complete)
runs.command("heartbeat")(heartbeat)
runs.command("doubts")(doubts)
runs.command("resolve")(resolve)
runs.command("fork")(fork)
runs.command("retry")(retry)
runs.command("accept")(accept)
runs.command("export")(export_run)
approvals.command("sticky")(list_sticky)
approvals.command("revoke")(revoke)
approvals.command("receipt")(receipt)
approvals.command("verify", no_args_is_help=True)(verify_receipt)
app.add_typer(runs, name="runs")
app.add_typer(approvals, name="approvals")
app.add_typer(requests, name="requests")
app.add_typer(keys, name="keys")
app.add_typer(roles, name="roles")
app.command("stop", no_args_is_help=True)(stop)
app.command("backup", no_args_is_help=True)(backup)
app.command("restore", no_args_is_help=True)(restore)
app.command("release", no_args_is_help=True)(release)
app.add_typer(policy, name="policy")
app.command("replay", no_args_is_help=True)(replay)
app.command("fork", no_args_is_help=True, help="The same as `runs fork`.")(fork)
app.command("doctor")(doctor)
app.command("migrate")(migrate)


def _print_version(asked: bool) -> None:
    if asked:
        say(f"outlast {library_version()}")
        raise typer.Exit


@app.callback()
def root(
    ctx: typer.Context,
    database: Annotated[
        str | None, typer.Option("--database", "-d", metavar="URL", help=DATABASE_HELP)
    ] = None,
    tenant: Annotated[str, typer.Option("--tenant", help=TENANT_HELP)] = "default",
    _: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    """Durable execution for AI agents: no lost work, no doubled effects, approvals that mean what they say."""
    ctx.obj = Session(database, tenant)


@app.command("version")
def version() -> None:
    """Print the version."""
    say(f"outlast {library_version()}")


@app.command(
    "demo",
    add_help_option=False,
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
)
def demo(ctx: typer.Context) -> None:
    """Watch an agent fix a dependency, get killed, come back, and open exactly one pull request."""
    try:
        from outlast.demo.show import main as show
    except ModuleNotFoundError as error:
        if error.name not in _DEMO_PACKAGES:
            raise
        complain(
            OutlastError(
                f"the demo needs the package {error.name}",
                hint="in a clone of Outlast, pip install '.[demo]'",
            )
        )
        raise typer.Exit(1) from None
    raise typer.Exit(show(ctx.args))


def main() -> None:
    """Run the command line."""
    warnings.showwarning = _warn
    app()


def _warn(
    message: Warning | str,
    category: type[Warning],
    filename: str,
    lineno: int,
    file: TextIO | None = None,
    line: str | None = None,
) -> None:
    """Print one of our warnings as one line: where in our code it was given is nobody's business at a terminal."""
    warned = NoWorkerWarning | NobodyHoldsRoleWarning | RunHeldWarning | KeyExposedWarning
    if issubclass(category, warned):
        note(f"Warning: {message}")
    else:
        _show(message, category, filename, lineno, file, line)


_show = warnings.showwarning
