"""One rule of a policy: what it says, and of which calls."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any, Literal, get_args

from msgspec import Struct
from msgspec.structs import force_setattr

from outlast.errors import PolicyError
from outlast.journal.asking import REACHES, Sticks
from outlast.policy.call import ToolCall
from outlast.policy.glob import ToolGlob, check_glob, fits
from outlast.policy.predicate import Predicate
from outlast.policy.shown import shown
from outlast.policy.span import check_span, span_text
from outlast.policy.window import Window

Effect = Literal["deny", "ask", "allow"]

EFFECTS: tuple[Effect, ...] = get_args(Effect)
"""In the order in which they are asked."""

GLOBS = ("agent", "principal", "tenant", "workflow")
"""Fields of a rule that are globs over the fields of a call with the same names."""

_LONGEST_TEXT = 1_000
_LABEL = re.compile(r"(?:deny|ask|allow) \d+")


class Rule(Struct, frozen=True):
    """What becomes of some calls. A rule matches a call when all that it says fits.

    Args:
        effect: `deny`, `ask` or `allow`.
        tool: A glob over names of effects and tools; `server:tool` says the server, too.
        when: What is asked of the arguments. What cannot be told (a missing argument, or one of another type) counts against the call: an
            allow rule does not match then, a deny or ask rule does.
        server: A glob over names of MCP servers; `*` stands for none, too.
        agent: A glob over names of agents; only `*` and the like stand for none.
        principal: A glob over subjects.
        tenant: A glob over tenants.
        workflow: A glob over names of workflows.
        between: Days and hours at which it holds; always when not given.
        role: Of an ask rule: who is asked; empty for anybody.
        expires_in: Of an ask rule: how long that person has, in whole milliseconds.
        sticky: Of an ask rule: how far a yes may stick: `no`, `call`, `turn`, `run` or `workflow`.
        reason: Why, for the agent and for people.
        name: By which verdicts name it; else its class and its number in that, as `deny 2`.

    Raises:
        PolicyError: It could not be judged.

    Example:
        ```python
        from outlast.policy import Predicate, Rule

        rule = Rule("ask", "pay", (Predicate("amount", "greater", 100),), role="treasurer", reason="over 100")
        assert str(rule) == "ask pay when amount greater 100"
        ```
    """

    effect: Effect
    tool: str
    when: tuple[Predicate, ...] = ()
    server: str = "*"
    agent: str = "*"
    principal: str = "*"
    tenant: str = "*"
    workflow: str = "*"
    between: Window | None = None
    role: str = ""
    expires_in: timedelta | None = None
    reason: str = ""
    name: str = ""
    sticky: Sticks = "no"

    def __post_init__(self) -> None:
        """Refuse what could not be judged; write server and predicates in the one way there is."""
        if self.effect not in EFFECTS:
            raise PolicyError(f"a rule cannot say {shown(self.effect)}", hint="deny, ask or allow")
        self._settle_tool()
        for field in GLOBS:
            check_glob(getattr(self, field), field)
        for field in ("role", "reason", "name"):
            _check_text(field, getattr(self, field))
        if self.sticky not in REACHES:
            raise PolicyError(
                f"nothing sticks for {shown(self.sticky)}", hint=f"write {', '.join(REACHES)}"
            )
        if self.effect != "ask" and (
            self.role or self.expires_in is not None or self.sticky != "no"
        ):
            raise PolicyError(
                f"a rule that says {self.effect} asks nobody",
                hint="role, expires_in and sticky belong to ask rules",
            )
        check_span("expires_in", self.expires_in)
        if _LABEL.fullmatch(self.name):
            raise PolicyError(
                f"{self.name!r} is how rules without a name are called", hint="say what it is about"
            )
        if self.between is not None and type(self.between) is not Window:
            raise PolicyError(
                "between is no Window", hint='write Window("UTC", hours="08:00-18:00")'
            )
        self._settle_predicates()

    def _settle_tool(self) -> None:
        tools = ToolGlob.of(self.tool)
        if ":" in self.tool and self.server != "*":
            raise PolicyError(
                "the server is said twice", hint="before the tool's name, or as server"
            )
        server = tools.server if ":" in self.tool else check_glob(self.server, "server")
        force_setattr(self, "tool", tools.tool)
        force_setattr(self, "server", server)

    def _settle_predicates(self) -> None:
        given: Any = self.when
        if not isinstance(given, tuple) or not all(type(one) is Predicate for one in self.when):
            raise PolicyError(
                "when holds no predicates", hint='write when=(Predicate("amount", "less", 5),)'
            )
        said = {(one.path, one.operator): one for one in self.when}
        if len(said) < len(self.when):
            raise PolicyError("when says something twice", hint="in and not_in take several values")
        force_setattr(self, "when", tuple(said[key] for key in sorted(said)))

    @property
    def tools(self) -> ToolGlob:
        """The tools that it is about."""
        return ToolGlob(self.tool, self.server)

    def mismatch(self, call: ToolCall, now: datetime) -> str:
        """Return why it does not match a call, without the values of arguments; empty where it does."""
        return next(self._mismatches(call, now), "")

    def _mismatches(self, call: ToolCall, now: datetime) -> Iterator[str]:
        if not fits(self.tool, call.name):
            yield f"the tool is not {self.tool}"
        if not fits(self.server, call.server):
            yield f"the server is not {self.server}"
        for field in GLOBS:
            if not fits(getattr(self, field), getattr(call, field)):
                yield f"the {field} is not {getattr(self, field)}"
        if self.between is not None and not self.between.holds(now):
            yield f"it is not {_window_text(self.between)}"
        for one in self.when:
            held = one.holds(call.arguments)
            if held is False:
                yield f"not so: {one}"
            elif held is None and self.effect == "allow":
                yield f"it cannot be told whether {one}"

    def untold(self, call: ToolCall) -> str:
        """Return which of its predicates cannot be told of a call, in words; empty where all can be."""
        return ", ".join(str(one) for one in self.when if one.holds(call.arguments) is None)

    def data(self) -> dict[str, Any]:
        """Return it as it stands in a file, without what it says by default."""
        found: dict[str, Any] = {"name": self.name} if self.name else {}
        found["tool"] = self.tool
        for field in ("server", *GLOBS):
            if getattr(self, field) != "*":
                found[field] = getattr(self, field)
        if self.between is not None:
            found["between"] = self.between.data()
        for field in ("role", "reason"):
            if getattr(self, field):
                found[field] = getattr(self, field)
        if self.expires_in is not None:
            found["expires_in"] = span_text(self.expires_in)
        if self.sticky != "no":
            found["sticky"] = self.sticky
        for one in self.when:
            found.setdefault("when", {}).setdefault(one.path, {})[one.operator] = one.value
        return found

    def __str__(self) -> str:
        """Return what it says of what, in short."""
        parts = [self.effect, str(self.tools)]
        parts += [
            f"{field} {getattr(self, field)}" for field in GLOBS if getattr(self, field) != "*"
        ]
        if self.between is not None:
            parts.append(_window_text(self.between))
        if self.when:
            parts.append(f"when {' and '.join(map(str, self.when))}")
        return " ".join(parts)


def _window_text(window: Window) -> str:
    return f"{','.join(window.days) or 'no day'} {window.hours} {window.zone}"


def _check_text(field: str, value: Any) -> None:
    if not isinstance(value, str) or len(value) > _LONGEST_TEXT or not value.isprintable():
        raise PolicyError(
            f"{field} is no line of text: {shown(value)}",
            hint=f"write one of at most {_LONGEST_TEXT} characters",
        )
