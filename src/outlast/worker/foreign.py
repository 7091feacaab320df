"""How an effect that calls a foreign tool passes the gate: as a call of that tool, by what its server may say of it and whether it is pinned.

Invariant: what begins is a definition that is pinned, or one to which a person has said yes as it is; a later attempt is of the same one, or
of one that is pinned by then.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from msgspec.structs import replace

from outlast.errors import PermissionDeniedError
from outlast.journal.entry import EffectIntended
from outlast.policy import ForeignTool, Policy, ToolCall
from outlast.policy.tool import words_of
from outlast.store.change import Guard
from outlast.worker.control import Control
from outlast.worker.rules import Rules
from outlast.workflows.definition import Effect

WITHOUT_A_POLICY = Rules(Policy(), Policy(), Policy())
"""By these a foreign tool is judged where nobody has given a policy: a person is asked."""

_PIN = "look at it, and pin it: `outlast policy pins pin`"

_SHOWN = 2_000
"""Characters of a description, and of a schema, that are shown to who is asked."""


def is_foreign(effect: Effect[..., Any]) -> bool:
    """Whether an effect calls a foreign tool."""
    return effect.rules.tool is not None


def has_foreign(effects: Iterable[Effect[..., Any]]) -> bool:
    """Whether one of them does: then pins are read."""
    return any(map(is_foreign, effects))


def rules_of(effect: Effect[..., Any], rules: Rules | None) -> Rules | None:
    """Return by what an effect is judged, given the policy in force; None where by nothing."""
    return WITHOUT_A_POLICY if rules is None and is_foreign(effect) else rules


def named(call: ToolCall, effect: Effect[..., Any]) -> ToolCall:
    """Return the call of an effect; where that calls a foreign tool, as one of the tool."""
    tool = effect.rules.tool
    if tool is None:
        return call
    return replace(call, name=tool.name, kind="tool", server=tool.server)


def is_settled(effect: Effect[..., Any], control: Control) -> bool:
    """Whether the pins as they were read say nothing against it; if they do, that may be over by now."""
    tool = effect.rules.tool
    if tool is None:
        return True
    pins = control.pins
    return pins is not None and pins.look(tool.server, tool.name, tool.sha256) == "pinned"


def looked(
    call: ToolCall, effect: Effect[..., Any], control: Control, rules: Rules | None
) -> ToolCall:
    """Return a call with what is known of the tool: how its definition stands, and what of its annotations counts.

    Raises:
        PermissionDeniedError: Nobody can say.
    """
    tool = effect.rules.tool
    if tool is None or rules is None:
        return call
    if control.pins is None:
        raise PermissionDeniedError(
            f"nobody can say whether the definition of the tool {tool} is pinned, so it may not be called",
            reason="error",
            hint="`outlast policy pins list` says what is wrong with the pins",
        )
    return rules.whole.called(call, tool, control.pins)


def is_unseen(call: ToolCall) -> bool:
    """Whether a call is one of a definition that nobody has looked at: it is new, or another one than the pinned."""
    return call.definition not in ("", "pinned")


def definition_of(effect: Effect[..., Any]) -> str:
    """Return the hash of the definition of the tool that an effect calls; empty where it calls none."""
    tool = effect.rules.tool
    return "" if tool is None else tool.sha256


def guards(effect: Effect[..., Any], control: Control) -> tuple[Guard, ...]:
    """Return the row on which that rests."""
    return (control.by_pins,) if is_foreign(effect) else ()


def shown(effect: Effect[..., Any], call: ToolCall) -> dict[str, Any]:
    """Return what a person is shown of a foreign tool, beside the call; nothing of the author's own effect."""
    tool = effect.rules.tool
    return {} if tool is None else {"tool": _told(tool, call)}


def check_undoing(call: ToolCall) -> None:
    """Refuse a compensation whose definition is not pinned: nobody is asked for it, and the yes to what it undoes showed nothing of it.

    Raises:
        PermissionDeniedError: It is so.
    """
    if is_unseen(call):
        raise _unpinned(call)


def check_again(call: ToolCall, effect: Effect[..., Any], intent: EffectIntended) -> None:
    """Refuse another attempt with a definition that is neither pinned nor the one by which the intent was let through.

    What has begun is the same act as long as that is the same, whatever else the code says of it by now.

    Raises:
        PermissionDeniedError: It is so.
    """
    if not is_foreign(effect) or call.definition == "pinned":
        return
    if not intent.definition:
        # Nothing has let it through: an operator was told so.
        raise _unpinned(call)
    if intent.definition != definition_of(effect):
        raise _changed(call)


def _told(tool: ForeignTool, call: ToolCall) -> dict[str, Any]:
    return {
        "server": tool.server,
        "name": tool.name,
        "definition": call.definition,
        "sha256": tool.sha256,
        "reads_only": call.is_known_to_read,
        **{name: _cut(text) for name, text in words_of(tool).items()},
    }


def _cut(text: str) -> str:
    """Return a text, or its beginning with what is left of it and where that is shown."""
    if len(text) <= _SHOWN:
        return text
    return f"{text[:_SHOWN]}… ({len(text) - _SHOWN} more characters: `outlast policy explain`, with --definition, prints them)"


def _unpinned(call: ToolCall) -> PermissionDeniedError:
    if call.definition == "changed":
        return _changed(call)
    return PermissionDeniedError(
        f"nobody has looked at the definition of the tool {call.server}:{call.name} yet",
        reason="definition_new",
        hint=_PIN,
    )


def _changed(call: ToolCall) -> PermissionDeniedError:
    return PermissionDeniedError(
        f"the definition of the tool {call.server}:{call.name} has changed since somebody looked at it",
        reason="definition_changed",
        hint=_PIN,
    )
