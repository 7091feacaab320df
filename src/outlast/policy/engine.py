"""The judgement of one call: by whom, in which order.

Invariants: whatever fails on the way denies; a call is allowed by the arguments that were judged last, and by no others; hooks and the
callback are asked once in a judgement, with a copy that they may keep.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import msgspec

from outlast.journal.asking import REACHES
from outlast.journal.plan import printable
from outlast.policy.call import ToolCall, check_names, plain
from outlast.policy.mode import Mode
from outlast.policy.opinion import Allow, Ask, Deny, Narrow
from outlast.policy.policy import Policy, qualified_name
from outlast.policy.rule import Effect, Rule
from outlast.policy.span import check_span
from outlast.policy.stop import Stop
from outlast.policy.verdict import Allowed, Asked, Denied, Look, Stage, Verdict

_SHOWN = 200
"""Characters of an error that a trace repeats."""

_PLAN = "in plan mode nothing is done that writes, or is not known to only read"


async def decide(
    policy: Policy,
    call: ToolCall,
    *,
    stopped: Stop | None,
    now: datetime,
    may_bypass: bool = False,
) -> Verdict:
    """Return what becomes of a call, at this time, under this policy.

    Every exception of a hook, a callback or a rule denies. How long a hook takes is its own business: there is no time limit.

    Args:
        stopped: What `Stops.find` said of the call.
        now: The time, of any zone.
        may_bypass: Whether the caller has the permission that the mode `bypass` needs.

    Example:
        ```python
        import asyncio
        from datetime import UTC, datetime
        from outlast.policy import Asked, Policy, Rule, ToolCall, decide

        policy = Policy(rules=(Rule("ask", "pay", role="treasurer", reason="money"),))
        call = ToolCall(name="pay", arguments={"amount": 5})
        verdict = asyncio.run(decide(policy, call, stopped=None, now=datetime(2026, 3, 2, tzinfo=UTC)))
        assert isinstance(verdict, Asked) and verdict.role == "treasurer" and verdict.arguments == {"amount": 5}
        ```
    """
    return await _Judgement(policy, call, now, may_bypass=may_bypass).verdict(stopped)


class _Judgement:
    """One call on its way through the stages. A stage returns a verdict, or None to go on.

    Args:
        place: The stage and the name of what is being asked, to be named where it fails.
    """

    def __init__(self, policy: Policy, call: ToolCall, now: datetime, *, may_bypass: bool) -> None:
        self.policy = policy
        self.call = call
        self.now = now
        self.trace: list[Look] = []
        self.place: tuple[Stage, str] = ("call", "")
        honoured = policy.mode != "bypass" or may_bypass is True
        self.mode: Mode = policy.mode if honoured else "default"

    async def verdict(self, stopped: Stop | None) -> Verdict:
        try:
            self._check()
            return (
                self._stopped(stopped)
                or self._unlisted()
                or await self._hooked()
                or self._denied_by_rule()
                or self._asked_by_rule()
                or self._asked_by_definition()
                or self._decided_by_mode()
                or self._allowed_by_rule()
                or await self._called_back()
                or self._undecided()
            )
        except Exception as error:  # noqa: BLE001  (code of others, and whatever nobody foresaw: it denies)
            stage, name = self.place
            self._look(True, _told(error))
            what = f"{stage} {name}" if name and not name.startswith(stage) else name or stage
            return self._deny(
                "error", f"{what} failed with {type(error).__name__}, so nothing is allowed", name
            )

    def _check(self) -> None:
        check_names(self.call)
        if self.now.utcoffset() is None:
            raise ValueError("the time has no zone")
        self.call = msgspec.structs.replace(self.call, arguments=plain(self.call.arguments))

    def _stopped(self, stopped: Stop | None) -> Verdict | None:
        self.place = ("kill switch", "")
        if stopped is None:
            self._look(False, "not set for this call")
            return None
        self._look(True, f"{stopped} is stopped")
        reason = f": {stopped.reason}" if stopped.reason else ""
        return self._deny("stopped", f"{stopped} is stopped{reason}")

    def _unlisted(self) -> Verdict | None:
        self.place = ("tool list", self.call.agent)
        tools = self.policy.tools_of(self.call.agent)
        if tools is None:
            self._look(False, "all tools exist for it" if self.call.agent else "no agent calls")
            return None
        if any(one.fits(self.call.name, self.call.server) for one in tools):
            self._look(False, "the tool is on the list")
            return None
        self._look(True, "the tool is not on the list")
        return self._deny(
            "unlisted", f"there is no tool {self.call.name} for agent {self.call.agent}"
        )

    async def _hooked(self) -> Verdict | None:
        for hook in self.policy.hooks:
            name = qualified_name(hook)
            self.place = ("hook", name)
            match await self._ask_code(hook):
                case None:
                    self._look(False, "nothing to say")
                case Deny(reason):
                    self._look(True, "denies")
                    return self._deny("hook", _text(reason), name)
                case Narrow(arguments):
                    self._narrow(plain(arguments))
                case other:
                    raise TypeError(
                        f"a hook returns Deny, Narrow or None, not {type(other).__name__}"
                    )
        return None

    def _narrow(self, arguments: dict[str, Any]) -> None:
        added = arguments.keys() - self.call.arguments.keys()
        if added:
            raise ValueError(f"it adds arguments that were not there: {', '.join(sorted(added))}")
        self.call = msgspec.structs.replace(self.call, arguments=arguments)
        self._look(True, "narrows the arguments")

    def _denied_by_rule(self) -> Verdict | None:
        name, rule = self._first("deny")
        if rule is None:
            return None
        return self._deny("rule", rule.reason or f"the policy denies it ({rule})", name)

    def _asked_by_rule(self) -> Verdict | None:
        name, rule = self._first("ask")
        if rule is None:
            return None
        reason, sticky = rule.reason or f"the policy asks a person ({rule})", rule.sticky
        if changed := self._definition_text():
            # A yes to a definition that is not pinned is one to one call.
            reason, sticky = f"{reason}; {changed}", "no"
        return self._ask("rule", reason, name, Ask(rule.role, rule.expires_in, sticky))

    def _asked_by_definition(self) -> Verdict | None:
        self.place = ("definition", "")
        text = self._definition_text()
        if self.call.kind != "effect":
            is_pinned = self.call.definition == "pinned"
            self._look(bool(text), text or ("pinned" if is_pinned else "none is known"))
        if not text:
            return None
        known = self.call.definition == "changed"
        return self._ask("definition_changed" if known else "definition_new", text)

    def _definition_text(self) -> str:
        if self.call.kind == "effect" or self.call.definition in ("", "pinned"):
            return ""
        if self.call.definition == "changed":
            return "the definition of the tool has changed since somebody looked at it"
        return "nobody has looked at the definition of the tool yet"

    def _decided_by_mode(self) -> Verdict | None:
        self.place = ("mode", "")
        if self.mode != self.policy.mode:
            self._look(
                False, "bypass is not honoured: the caller lacks the permission for it; as default"
            )
        if self.mode == "plan" and not self.call.is_known_to_read:
            self._look(True, "plan: it writes, or is not known to only read")
            return self._deny("plan", _PLAN)
        if self.mode == "accept_edits" and self.call.edits is True:
            self._look(True, "accept_edits: it only edits")
            return self._allow("mode")
        if self.mode == "bypass":
            self._look(True, "bypass: what is undecided passes")
            return self._allow("mode")
        self._look(False, f"{self.mode}: decides nothing here")
        return None

    def _allowed_by_rule(self) -> Verdict | None:
        name, rule = self._first("allow")
        return None if rule is None else self._allow("rule", name)

    async def _called_back(self) -> Verdict | None:
        callback = self.policy.callback
        if callback is None:
            return None
        name = qualified_name(callback)
        self.place = ("callback", name)
        tools = self.policy.callback_globs()
        if not any(one.fits(self.call.name, self.call.server) for one in tools):
            self._look(False, "not asked about this tool")
            return None
        said = await self._ask_code(callback)
        self._look(
            said is not None, "no opinion" if said is None else f"says {type(said).__name__}"
        )
        match said:
            case None:
                return None
            case Allow():
                return self._allow("callback", name)
            case Deny(reason):
                return self._deny("callback", _text(reason), name)
            case Ask(role, expires_in, sticky):
                check_span("expires_in", expires_in)
                if sticky not in REACHES:
                    raise ValueError("a yes sticks as far as nobody knows")
                asked = Ask(_text(role), expires_in, sticky)
                return self._ask("callback", f"{name} asks a person", name, asked)
            case other:
                raise TypeError(
                    f"a callback returns Allow, Deny, Ask or None, not {type(other).__name__}"
                )

    def _undecided(self) -> Verdict:
        self.place = ("default", "")
        if self.call.kind == "effect":
            self._look(True, "the author's own effect")
            return self._allow("default")
        if self.call.is_known_to_read:
            self._look(True, "a foreign tool that is known to only read")
            return self._allow("default")
        self._look(True, "a foreign tool that writes, or is not known to only read")
        return self._ask("undecided", "no rule says whether this foreign tool may be called")

    async def _ask_code(self, function: Callable[[ToolCall], Any]) -> Any:
        """Return what a hook or the callback says. It gets a copy: what it does to that changes no call."""
        copy = msgspec.structs.replace(self.call, arguments=plain(self.call.arguments))
        said = function(copy)
        return await said if inspect.isawaitable(said) else said

    def _first(self, effect: Effect) -> tuple[str, Rule | None]:
        """Return the first rule of a class that matches the call."""
        for name, rule in self.policy.labelled(effect):
            self.place = (effect, name)
            why_not = rule.mismatch(self.call, self.now)
            untold = "" if why_not else rule.untold(self.call)
            counted = (
                f"; it cannot be told whether {untold}, which counts against it" if untold else ""
            )
            self._look(not why_not, why_not or f"matches {rule}{counted}")
            if not why_not:
                return name, rule
        return "", None

    def _look(self, matched: bool, why: str) -> None:
        self.trace.append(Look(*self.place, matched, why))

    def _allow(self, code: Any, rule: str = "") -> Allowed:
        return Allowed(
            arguments=dict(self.call.arguments), code=code, rule=rule, mode=self.mode,
            policy_version=self.policy.version, trace=tuple(self.trace),
        )  # fmt: skip

    def _deny(self, code: Any, reason: str, rule: str = "") -> Denied:
        return Denied(
            reason=reason, code=code, rule=rule, mode=self.mode,
            policy_version=self.policy.version, trace=tuple(self.trace),
        )  # fmt: skip

    def _ask(
        self, code: Any, reason: str, rule: str = "", ask: Ask | None = None
    ) -> Asked | Denied:
        """Return that a person is asked; or a denial, in a mode that lets nobody be asked about such a call."""
        if self.mode == "dont_ask":
            return self._deny(
                "dont_ask", f"nobody is asked in this mode, and it needs a person: {reason}", rule
            )
        if self.mode == "plan" and not self.call.is_known_to_read:
            return self._deny("plan", _PLAN, rule)
        asked = ask or Ask()
        expires_in: timedelta | None = asked.expires_in
        return Asked(
            role=asked.role, expires_in=expires_in, sticky=asked.sticky, arguments=dict(self.call.arguments), reason=reason, code=code,
            rule=rule, mode=self.mode, policy_version=self.policy.version, trace=tuple(self.trace),
        )  # fmt: skip


def _text(value: Any) -> str:
    if type(value) is not str:
        raise TypeError(f"a text is needed, not {type(value).__name__}")
    value.encode()  # what cannot be written down is no reason
    return value


def _told(error: Exception) -> str:
    try:
        text = str(error)
    except Exception:  # noqa: BLE001  (the error of others; its own text may fail, too)
        text = "its text cannot be read"
    return printable(f"{type(error).__name__}: {text}"[:_SHOWN])
