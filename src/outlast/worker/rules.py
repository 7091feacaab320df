"""The policy that is in force in a worker, and the two smaller ones that are drawn from it.

Hooks and the callback are the author's code: each gets so many seconds, a plain function in a thread, from the moment at which it has one.
What is late has failed, and what fails denies.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import inspect
import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from outlast.clock import Clock, Threads
from outlast.errors import PolicyError
from outlast.policy import Narrow, Policy, PolicyFile
from outlast.policy.policy import qualified_name
from outlast.worker.call import ThreadCall, Threw, anytime
from outlast.worker.look import look, timely

logger = logging.getLogger("outlast.worker")

LONGEST_ANSWER = timedelta(seconds=10)
"""A hook, or the callback, has answered by then, however long answers count."""

_LOOK_SECONDS = 1.0
"""Between two looks at the file of a policy."""


@dataclass(frozen=True, slots=True)
class Rules:
    """A policy, as three occasions need it.

    Args:
        whole: For an effect that is about to begin.
        denials: For a later attempt of one that has begun: nobody is asked, and nothing is narrowed any more, so hooks and deny rules
            look at what will run.
        undoing: For a compensation: its deny rules alone.
    """

    whole: Policy
    denials: Policy
    undoing: Policy

    @property
    def version(self) -> str:
        """By which verdicts name it."""
        return self.whole.version


class RuleBook:
    """The policy in force; one in a file is looked at again.

    Args:
        policy: The policy, or its file; None for none.
        recheck_within: How long an answer counts: no hook has longer to give one.
    """

    def __init__(
        self,
        policy: Policy | PolicyFile | None,
        clock: Clock,
        threads: Threads,
        recheck_within: timedelta,
    ) -> None:
        self._file = policy if isinstance(policy, PolicyFile) else None
        self._clock = clock
        self._threads = threads
        is_short = recheck_within < LONGEST_ANSWER
        self._limit = (
            (recheck_within, "recheck_within")
            if is_short
            else (LONGEST_ANSWER, "the longest that a hook has")
        )
        self._looked_at = clock.monotonic()
        first = policy.policy if isinstance(policy, PolicyFile) else policy
        self._rules = None if first is None else self._of(first)

    @property
    def rules(self) -> Rules | None:
        """What is in force now; None where nothing is."""
        now = self._clock.monotonic()
        if self._file is not None and now - self._looked_at >= _LOOK_SECONDS:
            self._looked_at = now
            self._look(self._file)
        return self._rules

    def _look(self, file: PolicyFile) -> None:
        try:
            if file.reload_if_changed():
                self._rules = self._of(file.policy)
                logger.info("the policy %s has changed: version %s", file.path, file.policy.version)
        except PolicyError as error:
            logger.error(  # noqa: TRY400 - it says what is wrong with the file, and where
                "the policy that was read last stays in force: %s", error
            )

    def _of(self, policy: Policy) -> Rules:
        hooks = tuple(map(self._bounded, policy.hooks))
        callback = None
        if policy.callback is not None:
            callback = self._bounded(policy.callback, "callback")
        whole = dataclasses.replace(policy, hooks=hooks, callback=callback)
        denying = tuple(one for one in policy.rules if one.effect == "deny")
        return Rules(
            whole=whole,
            denials=Policy(rules=denying, agents=policy.agents, hooks=tuple(map(_denying, hooks))),
            undoing=Policy(rules=denying),
        )

    def _bounded(self, function: Callable[..., Any], what: str = "hook") -> Callable[..., Any]:
        """Return the same, with an end; a policy names it as it names the original."""
        name = f"the {what} {qualified_name(function)}"

        async def ask(call: Any) -> Any:
            if inspect.iscoroutinefunction(function):
                answer = function(call)
            else:
                with look(f"a free thread for {name}"):
                    answer = _said(await self._begun(functools.partial(function, call)))
            return await timely(answer, name, *self._limit)

        named: Any = function if hasattr(function, "__qualname__") else type(function)
        ask.__module__, ask.__qualname__ = named.__module__, named.__qualname__
        assert qualified_name(ask) == qualified_name(function)
        return ask

    async def _begun(self, body: Callable[[], Any]) -> asyncio.Future[Any]:
        """Return the thread in which a function has begun, however long none was free."""
        work = ThreadCall(body, anytime)
        thread = asyncio.ensure_future(self._threads.run(work))
        try:
            await asyncio.wait((thread, work.begun), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            work.call_off()
            thread.cancel()
            raise
        return thread


async def _said(thread: asyncio.Future[Any]) -> Any:
    """Return what a function comes to in its thread, or raise what it threw."""
    said = await thread
    if isinstance(said, Threw):
        raise said.error
    return await said if inspect.isawaitable(said) else said


def _denying(hook: Callable[..., Any]) -> Callable[..., Any]:
    """Return a hook that may only deny: what it would narrow is left as it is, for those after it as well."""

    @functools.wraps(hook)
    async def ask(call: Any) -> Any:
        said = await hook(call)
        return None if isinstance(said, Narrow) else said

    return ask
