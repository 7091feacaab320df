"""`outlast backup` and `outlast restore`: a copy of the store, and its way back."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from outlast.app import back_up_store, restore_store
from outlast.cli.output import note, say
from outlast.cli.session import Session, stored, usage_error
from outlast.cli.text import at
from outlast.store.copied import Copied


@stored
def backup(
    session: Session,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A file that does not exist yet.")],
) -> None:
    """Copy the store into FILE, as it is at one moment, while its workers go on."""
    _tell("backup", back_up_store(file, session.database))


@stored
def restore(
    session: Session,
    file: Annotated[
        Path | None, typer.Argument(metavar="FILE", help="What `outlast backup` made.")
    ] = None,
    replace: Annotated[
        bool,
        typer.Option(
            "--replace",
            help="Keep the database that is there under another name, and take its place.",
        ),
    ] = False,
    here: Annotated[
        bool,
        typer.Option(
            "--here", help="The store was put back by other means: say so, without a file."
        ),
    ] = False,
    reason: Annotated[str, typer.Option(help="With --here: how; kept.")] = "",
) -> None:
    """Put a backup into the store's place: workers move nothing then until `outlast release`."""
    if here == (file is not None):
        raise usage_error("name the file of the backup, or --here")
    if here:
        if not reason.strip():
            raise usage_error("say with --reason how it was put back; it is kept")
        name = session.call(lambda client: client.restored(reason))
        say(f"history    {name}")
    else:
        assert file is not None
        restored = restore_store(file, session.database, replace=replace)
        _tell("restored", restored)
        if restored.kept:
            say(f"kept       {restored.kept}: what was there before")
    note(
        f"workers move nothing: look up what was done since, then `{session.command('release', '--all', '--reason', 'WHY')}`, "
        "or run by run; `outlast doctor` says how it stands"
    )


def _tell(what: str, copied: Copied) -> None:
    say(f"{what:<11}{copied.file} ({copied.size_bytes:,} bytes)")
    say(f"history    {copied.timeline}")
    until = "no run" if copied.until is None else f"until {at(copied.until)}"
    say(f"runs       {copied.runs}, {copied.open_runs} of them open; {until}")
