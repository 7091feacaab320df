"""What the declaration of an effect may say: whatever could not work is refused where it is written, with what to write instead.

Pure: it looks at the declaration and at the signatures, and runs nothing of the author's.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any, Literal, TypeAlias, cast

from outlast.errors import DefinitionError
from outlast.policy.tool import ForeignTool

_YEAR = timedelta(days=365)
_CENTURY = timedelta(days=36_500)

_Kind: TypeAlias = Literal["workflow", "step", "effect"]


def refuse(name: str, what: str, hint: str) -> DefinitionError:
    """Return the error for a declaration that cannot work.

    Args:
        name: Of the effect.
        what: Is wrong with it, after its name.
        hint: What to do about it.
    """
    return DefinitionError(f"effect {name} {what}", step=name, hint=hint)


def check_flags(name: str, **flags: Any) -> None:
    """Refuse what is neither true nor false: `idempotent="no"` would count as yes.

    Raises:
        DefinitionError: One is no bool.
    """
    for flag, value in flags.items():
        if not isinstance(value, bool):
            raise refuse(
                name,
                f"has {flag}={value!r}, which is no bool",
                f"give {flag}=True, or leave it out",
            )


def check_texts(name: str, *, key_on: Sequence[Any], version: Any) -> None:
    """Refuse parameter names and a version that are no text.

    Raises:
        DefinitionError: One is not.
    """
    for one in key_on:
        if not isinstance(one, str):
            raise refuse(
                name,
                f"has key_on={tuple(key_on)!r}, which names no parameters",
                'give names, as key_on=("invoice_id",)',
            )
    if not isinstance(version, str):
        raise refuse(
            name, f"has version={version!r}, which is no text", 'give text, as version="2"'
        )


def check_errors(name: str, not_applied: Sequence[Any]) -> None:
    """Refuse what is no exception type: looking whether an error is one of them would raise at the worst moment. And what is every one.

    Raises:
        DefinitionError: One is none, or so wide that it proves nothing.
    """
    unfit = [one for one in not_applied if not _is_error(one)]
    if unfit:
        raise refuse(
            name,
            f"has not_applied={unfit}, which are no exception types",
            "name types whose raising proves that nothing happened, as not_applied=(CardDeclinedError,)",
        )
    if wide := [one.__name__ for one in not_applied if one in (Exception, BaseException)]:
        raise refuse(
            name,
            f"has not_applied=({', '.join(wide)},), which a lost connection is, too",
            "name types whose raising proves that nothing happened, as not_applied=(CardDeclinedError,)",
        )


def check_probe(
    name: str, probe: Callable[..., Any] | None, parameters: Sequence[inspect.Parameter]
) -> None:
    """Refuse a probe that cannot be asked with what the effect was called with, or that would change the world.

    Args:
        parameters: Of the effect.

    Raises:
        DefinitionError: It is such a probe.
    """
    if probe is None:
        return
    kind: _Kind | None = getattr(probe, "kind", None)
    if kind in ("effect", "workflow"):
        raise refuse(
            name,
            f"has the {kind} {getattr(probe, 'name', '')} for a probe",
            "a probe only asks: give a plain function, async or not, or a @step",
        )
    asks: Any = getattr(probe, "function", probe)
    bare = _bare(asks)
    # An object that is called may have an async `__call__`, which nobody would await.
    if not inspect.isroutine(bare) or _yields(bare):
        raise refuse(
            name,
            f"has probe={probe!r:.80}, which is no function that answers",
            "give a function of the effect's parameters that returns Applied(value), NotApplied() or Unknown(why)",
        )
    found = list(inspect.signature(asks).parameters.values())
    if [(one.name, one.kind) for one in found] != [(one.name, one.kind) for one in parameters]:
        raise refuse(
            name,
            f"has a probe that takes {_shown(found)}",
            f"a probe takes the effect's own parameters: {_shown(parameters)}",
        )


def check_tool(name: str, tool: Any) -> None:
    """Refuse what is no foreign tool: the effect would be judged as the author's own.

    Raises:
        DefinitionError: It is none.
    """
    if tool is not None and not isinstance(tool, ForeignTool):
        raise refuse(
            name,
            f"has tool={tool!r:.80}, which is no ForeignTool",
            'give one, as tool=ForeignTool(server="files", name="write_file", definition={…})',
        )


def check_settle(name: str, settle: timedelta) -> None:
    """Refuse a settling time that cannot be meant.

    Raises:
        DefinitionError: It is less than nothing, or longer than a year.
    """
    if not timedelta(0) <= settle < _YEAR:
        raise refuse(
            name,
            f"has a settle of {settle}",
            "give how much longer than its timeout an attempt can act, as settle=timedelta(seconds=2)",
        )


def check_memory(
    name: str,
    lasts: Any,
    *,
    idempotent: bool,
    timeout: timedelta | None,
    settle: timedelta,
) -> None:
    """Refuse a receiver's memory of which no use could be made.

    Args:
        lasts: The effect's `idempotent_for`.
        timeout: Its `start_to_close_timeout`.

    Raises:
        DefinitionError: The effect is not idempotent, or says not how long an attempt can act, or that is as long as the memory.
    """
    if lasts is None:
        return
    if not isinstance(lasts, timedelta):
        raise refuse(
            name,
            f"has idempotent_for={lasts!r}, which is no timedelta",
            "give how long the receiver remembers a key, as idempotent_for=timedelta(hours=24)",
        )
    if not idempotent:
        raise refuse(
            name,
            "has idempotent_for and is not idempotent",
            "idempotent_for= says how long the receiver remembers a key: declare idempotent=True, if it does; else leave it out",
        )
    if timeout is None:
        raise refuse(
            name,
            "has idempotent_for and no start_to_close_timeout",
            "give one, as start_to_close_timeout=timedelta(seconds=30): an attempt without one could act when the receiver has "
            "forgotten the key",
        )
    if not timeout + settle < lasts < _CENTURY:
        raise refuse(
            name,
            f"has an idempotent_for of {lasts}, and an attempt can act for {timeout + settle}",
            "give a time longer than start_to_close_timeout and settle together, and shorter than a hundred years; a receiver "
            "that forgets sooner is not idempotent: give a probe=, or leave both out",
        )


def check_names(
    name: str, option: str, names: Sequence[str], parameters: Sequence[inspect.Parameter]
) -> None:
    """Refuse names that are no parameters of the effect, and those that stand there twice.

    Args:
        option: Where they stand, as `key_on`.

    Raises:
        DefinitionError: One is such a name.
    """
    known = [one.name for one in parameters]
    unknown = [one for one in names if one not in known]
    if unknown:
        raise refuse(
            name,
            f"has no parameter {', '.join(unknown)}",
            f"name parameters in {option}=: {', '.join(known) or 'it has none'}",
        )
    twice = sorted(_twice(names))
    if twice:
        raise refuse(
            name, f"names {', '.join(twice)} twice in {option}=", "name each parameter once"
        )


def _bare(function: Any) -> Any:
    """Return the function that a partial one calls."""
    if isinstance(function, functools.partial):
        return cast("functools.partial[Any]", function).func
    return function


def _yields(function: Any) -> bool:
    return inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)


def _is_error(one: Any) -> bool:
    return isinstance(one, type) and issubclass(one, BaseException)


def _twice(names: Sequence[str]) -> Iterator[str]:
    return (one for one in set(names) if names.count(one) > 1)


def _shown(parameters: Sequence[inspect.Parameter]) -> str:
    """Return parameters as a signature shows them, without annotations and defaults."""
    bare = [
        one.replace(annotation=inspect.Parameter.empty, default=inspect.Parameter.empty)
        for one in parameters
    ]
    return str(inspect.Signature(bare))
