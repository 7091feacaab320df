"""The options by which a decision is made to stick."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any, cast

import typer

from outlast.cli.session import json_of, time_length, usage_error
from outlast.client import Sticky
from outlast.client.sticky import LONGEST
from outlast.errors import PolicyError
from outlast.journal.asking import REACHES
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


def sticky_of(  # noqa: PLR0913 - each is what an option says
    reach: str,
    same: list[str] | None,
    when: list[str] | None,
    uses: int | None,
    lasts: timedelta | None,
    *,
    any_arguments: bool,
    yes: bool,
) -> Sticky | None:
    """Return what of a decision is to stick; None where nothing is.

    Args:
        yes: Whether it says so.
    """
    if not reach:
        if same or when or uses or lasts is not None or any_arguments:
            raise usage_error("how long a decision sticks is of no use without --sticky REACH")
        return None
    names = () if any_arguments else tuple(same) if same else None
    predicates = tuple(map(_predicate, when or []))
    sticky = Sticky(cast("Any", reach), names, predicates, uses, lasts)
    if same and any_arguments:
        raise usage_error(
            "--same says what the arguments are, and --any-arguments that they may be any"
        )
    if why := _wrong_reach(sticky) or _wrong_end(sticky, yes=yes):
        raise usage_error(why)
    return sticky


def _wrong_reach(sticky: Sticky) -> str:
    """Return why something cannot stick so far, or to such calls; empty where it can."""
    if sticky.reach not in REACHES[1:]:
        return f"--sticky is one of {', '.join(REACHES[1:])}"
    is_narrowed = sticky.same is not None or bool(sticky.when)
    if sticky.reach == "call" and is_narrowed:
        return "--sticky call is about the very arguments of the call: leave --same, --any-arguments and --when out, or say --sticky run"
    if sticky.when and sticky.same is None:
        return "--when asks nothing more of arguments that are all the same: say which are, by --same, or --any-arguments"
    return ""


def _wrong_end(sticky: Sticky, *, yes: bool) -> str:
    """Return why something cannot end so; empty where it can."""
    if sticky.uses is not None and not yes:
        return "a no that sticks is not used up: leave --uses out; --for ends it"
    if sticky.expires_in is None:
        return "--sticky workflow needs an end: --for 7d, say" if sticky.reach == "workflow" else ""
    is_time = timedelta(0) < sticky.expires_in < LONGEST
    return "" if is_time else "--for is a length of time of less than 100 years"


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
