"""`outlast keys`: pairs of keys for what is signed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from outlast.cli.output import complain, say
from outlast.crypto import SigningKey
from outlast.errors import OutlastError

keys = typer.Typer(no_args_is_help=True, help="Make keys for what is signed.")


@keys.callback()
def group() -> None:
    """Make keys for what is signed."""


@keys.command("generate")
def generate(
    out: Annotated[
        Path,
        typer.Option(
            "--out",
            "-o",
            metavar="FILE",
            help="Of the private key; the public one is put beside it.",
        ),
    ],
) -> None:
    """Write a new pair of Ed25519 keys: FILE, readable by this user alone, and FILE's public half. Nothing is overwritten."""
    try:
        key = SigningKey.generate()
        public = key.write(out)
    except OutlastError as error:
        complain(error)
        raise typer.Exit(1) from None
    say(f"{'private':<9}{out} (keep it to yourself)")
    say(f"{'public':<9}{public} (give it to whoever verifies)")
    say(f"{'key':<9}{key.public.id}")
