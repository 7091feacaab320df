"""`outlast runs fork` and `outlast runs retry`: begin a run anew from what another one did."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from enum import StrEnum
from typing import Annotated, Any, cast

import typer

from outlast.cli.output import complain, say
from outlast.cli.run import Modules, Reason
from outlast.cli.session import LAST_NUMBER, Session, json_of, stored, usage_error
from outlast.cli.worker import author_errors, load
from outlast.client import Client, RunHandle
from outlast.errors import OutlastError
from outlast.journal.entry import EffectPolicy


class Effects(StrEnum):
    """What becomes of effects whose outcome the origin does not know."""

    REFUSE = "refuse"
    SAME_KEY = "same-key"
    NEW_KEY = "new-key"

    @property
    def policy(self) -> EffectPolicy:
        """The word for it in the journal."""
        return cast("EffectPolicy", self.value.replace("-", "_"))


EffectsOption = Annotated[
    Effects,
    typer.Option(
        "--effects",
        help="What becomes of effects whose outcome is not known: refused, made under the key that the origin would have used, or "
        "under a new one.",
    ),
]


Runs = Annotated[list[str], typer.Argument(metavar="RUN...", help="The ids of the runs.")]

_OF_RUN = "{run}"


@stored
def fork(  # noqa: PLR0913 - what can be said of a fork
    session: Session,
    runs: Runs,
    new_id: Annotated[
        str,
        typer.Option(
            "--id",
            help="Of the new run. `{run}` in it stands for the run's own, as '{run}/mended'.",
        ),
    ],
    reason: Reason,
    position: Annotated[
        int | None,
        typer.Option(
            "--at",
            max=LAST_NUMBER,
            metavar="N",
            help="Keep the entries before this one of `runs journal`; all that can be, if left out.",
        ),
    ] = None,
    outcome: Annotated[
        str,
        typer.Option(
            metavar="OPERATION=JSON",
            help="Instead of --at: what a step is to have returned, as r:3=5; what came before its outcome is kept. Checked where --module gives the code.",
        ),
    ] = "",
    effects: EffectsOption = Effects.REFUSE,
    generation: Annotated[
        int | None,
        typer.Option(min=1, max=LAST_NUMBER, help="Of the run's id; the present one if left out."),
    ] = None,
    modules: Modules = None,
) -> None:
    """Begin a new run with what another one did up to a position, or one for each of several. Those runs are only read.

    Each run has an answer of its own; the exit status is 1 when one of them could not be forked.
    """
    if len(runs) > 1 and _OF_RUN not in new_id:
        raise usage_error(
            f"each fork needs an id of its own: write {_OF_RUN} into --id where the run's own belongs, as --id '{_OF_RUN}/mended'"
        )
    changed = _outcome(outcome) if outcome else None
    with author_errors():
        for module in modules or ():
            load(module)

    async def one(handle: RunHandle[Any]) -> str:
        fork = await handle.fork(
            position,
            id=new_id.replace(_OF_RUN, handle.id),
            reason=reason,
            outcome=changed,
            effects=effects.policy,
            generation=generation,
        )
        return fork.id

    _each(session, runs, one, "is a fork of")


@stored
def retry(
    session: Session,
    runs: Runs,
    reason: Reason,
    new_id: Annotated[
        str, typer.Option("--id", help="Of the new run; RUN/retry-N if left out.")
    ] = "",
    effects: EffectsOption = Effects.SAME_KEY,
) -> None:
    """Do again what made runs fail, be cancelled or be terminated, in forks that keep what was done before.

    Each run has an answer of its own; the exit status is 1 when one of them could not be retried.
    """
    if new_id and len(runs) > 1:
        raise usage_error("--id names one run, and several are to be retried")

    async def one(handle: RunHandle[Any]) -> str:
        again = await handle.retry(id=new_id, reason=reason, effects=effects.policy)
        return again.id

    _each(session, runs, one, "retries")


def _each(
    session: Session,
    runs: list[str],
    begin: Callable[[RunHandle[Any]], Awaitable[str]],
    verb: str,
) -> None:
    """Begin a run for each of `runs`, say what came of each, and leave with status 1 when one was refused.

    Args:
        begin: Returns the id of the new run.
        verb: What the new run is to the old one.
    """

    async def work(client: Client) -> list[tuple[str, str | OutlastError]]:
        answers: list[tuple[str, str | OutlastError]] = []
        for run in dict.fromkeys(runs):
            try:
                answers.append((run, await begin(client.handle(run))))
            except OutlastError as error:
                answers.append((run, error))
        return answers

    answers = session.call(work)
    for run, answer in answers:
        if isinstance(answer, str):
            say(f"run {answer} {verb} run {run}; see {session.command('runs', 'show', answer)}")
        else:
            complain(answer)
    if any(isinstance(answer, OutlastError) for _, answer in answers):
        raise typer.Exit(1)


def _outcome(text: str) -> tuple[str, Any]:
    operation, is_given, value = text.partition("=")
    if not is_given or not operation:
        raise usage_error("--outcome is OPERATION=JSON, as r:3=5 or 'r:3=\"text\"'")
    return operation, json_of(value)
