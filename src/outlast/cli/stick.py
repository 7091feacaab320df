"""The options by which a decision is made to stick."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any, cast

import typer

from outlast.cli.session import json_of, time_length, usage_error
from outlast.client import Sticky
from outlast.errors import PolicyError
from outlast.policy import Predicate

Reach = Annotated[
    str,
    typer.Option(
        "--sticky",
        metavar="REACH",
        help="Have it answer later calls, too: call, turn, run or workflow.",
    ),
]
Same = Annotated[
    list[str] | None,
    typer.Option(
        "--same",
        metavar="ARGUMENT",
        help="What later calls have as this one; all by default. May be repeated.",
    ),
]
AnyArguments = Annotated[
    bool, typer.Option("--any-arguments", help="Later calls may have any arguments.")
]
When = Annotated[
    list[str] | None,
    typer.Option(
        "--when",
        metavar="ARGUMENT:OPERATOR:JSON",
        help="What else is asked of their arguments, as amount:at_most:50. May be repeated.",
    ),
]
Uses = Annotated[
    int | None, typer.Option("--uses", min=1, help="How many it answers; any number without it.")
]
Lasts = Annotated[
    timedelta | None,
    typer.Option("--for", parser=time_length, metavar="LENGTH", help="For how long, as 8h."),
]


def sticky_of(
    reach: str,
    same: list[str] | None,
    when: list[str] | None,
    uses: int | None,
    lasts: timedelta | None,
    *,
    any_arguments: bool,
) -> Sticky | None:
    """Return what of a decision is to stick; None where nothing is."""
    if not reach:
        if same or when or uses or lasts or any_arguments:
            raise usage_error("how long a decision sticks is of no use without --sticky REACH")
        return None
    if same and any_arguments:
        raise usage_error(
            "--same says what the arguments are, and --any-arguments that they may be any"
        )
    names = () if any_arguments else tuple(same) if same else None
    predicates = tuple(map(_predicate, when or []))
    return Sticky(cast("Any", reach), names, predicates, uses, lasts)


def _predicate(text: str) -> Predicate:
    path, _, rest = text.partition(":")
    operator, colon, value = rest.partition(":")
    if not colon:
        raise usage_error(f"--when {text!r} is not of the form ARGUMENT:OPERATOR:JSON")
    try:
        return Predicate(path, operator, json_of(value))
    except PolicyError as error:
        raise usage_error(f"--when {text!r}: {error.message} ({error.hint})") from None


def text(sticky: Sticky) -> str:
    """Return in words what is to stick."""
    parts = [f"to the {sticky.reach}"]
    if sticky.same is not None:
        parts.append(
            f"for calls with the same {', '.join(sticky.same)}"
            if sticky.same
            else "for any arguments"
        )
    parts += [f"where {one}" for one in sticky.when]
    if sticky.uses is not None:
        parts.append(f"{sticky.uses} times")
    if sticky.expires_in is not None:
        parts.append(f"for {sticky.expires_in}")
    return ", ".join(parts)
