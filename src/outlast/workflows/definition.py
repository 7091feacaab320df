"""Workflows, steps and effects: what the decorators make of a function.

Everything that can be refused is refused where the function is defined, or, for annotations that refer to later names,
when the app opens; never at three in the morning in the middle of a run.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Coroutine, Mapping
from datetime import timedelta
from functools import cached_property
from typing import Any, Generic, ParamSpec, TypeVar, cast

import msgspec
from msgspec import UNSET

from outlast.effects.intent import SETTLE, Repeat
from outlast.effects.key import check_name
from outlast.effects.retry import ONCE, PROBING, RetryPolicy
from outlast.errors import (
    DefinitionError,
    EffectOutsideWorkflowError,
    ForbiddenInWorkflowError,
)
from outlast.journal.canonical import canonical, payload_sha256, sha256_of
from outlast.journal.codec import (
    ArgumentCodec,
    TypeCodec,
    arguments_codec,
    codec_for,
    names_of,
)
from outlast.journal.entry import Cover, Durability
from outlast.policy.tool import ForeignTool
from outlast.replay.context import Context, EffectRequest, StepRequest, Undo
from outlast.replay.guard import check_source, early_bindings
from outlast.workflows.agent import current_agent
from outlast.workflows.attempt import check_not_probing
from outlast.workflows.call import Call, plain
from outlast.workflows.compensation import Undoable, check_compensation, check_types, undo_of
from outlast.workflows.declared import (
    check_errors,
    check_flags,
    check_memory,
    check_names,
    check_probe,
    check_settle,
    check_texts,
    check_tool,
    refuse,
)
from outlast.workflows.durability import check_durability
from outlast.workflows.placement import HERE, Placement
from outlast.workflows.purpose import SameAs, check_purpose
from outlast.workflows.terms import Approval, check_approval
from outlast.workflows.timeout import TIMES, check_probe_time, check_times, run_seconds

P = ParamSpec("P")
R = TypeVar("R")


class Definition(Generic[P, R]):
    """What the three have in common: a function, a name, and codecs made of its annotations.

    Args:
        function: The decorated function.
        name: Under which it is journaled; the function's own by default.
    """

    kind = "function"

    def __init__(self, function: Callable[..., Any], name: str = "") -> None:
        # From Python 3.14 on, a `functools.partial` passes for a routine; it has no name to be found by.
        if not (inspect.isroutine(function) and hasattr(function, "__name__")):
            raise DefinitionError(
                f"@{self.kind} was put on {function!r}, which is no function",
                hint="decorate a function, once",
            )
        self.function = function
        self.name = check_name(name or function.__name__, what=self.kind)
        self.__doc__ = function.__doc__
        self.__name__ = function.__name__
        self.__qualname__ = function.__qualname__
        self.__module__ = function.__module__
        self.__wrapped__ = function
        self._check_signature()

    @cached_property
    def arguments(self) -> ArgumentCodec:
        """How its arguments are stored."""
        return arguments_codec(
            self.signature, self.hints, where=f"the arguments of {self.kind} {self.name}"
        )

    @cached_property
    def result(self) -> TypeCodec[Any]:
        """How its result is stored."""
        return codec_for(
            self.hints.get("return", inspect.Parameter.empty),
            where=f"the result of {self.kind} {self.name}",
        )

    @cached_property
    def signature(self) -> inspect.Signature:
        """The function's signature."""
        return inspect.signature(self.function)

    @cached_property
    def _arity(self) -> int | None:
        """With how many positional arguments alone it can be called for certain; None where that is not so simple."""
        names = names_of(self.signature)
        return None if names is None else len(names)

    def resolve(self) -> None:
        """Resolve the annotations now.

        Raises:
            DefinitionError: One is missing, cannot be resolved, or names a type that cannot be stored.
        """
        _ = self.arguments, self.result

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Call[R]:
        """Describe a call; it happens when it is awaited or handed to a task.

        Raises:
            TypeError: The function cannot be called with these arguments.
        """
        if kwargs or len(args) != self._arity:
            self.signature.bind(*args, **kwargs)
        return Call(self, args, kwargs)

    def enter(self, context: Context, call: Call[Any]) -> Any:
        """Begin the operation in a workflow."""
        raise NotImplementedError

    def outside(self, call: Call[Any]) -> Coroutine[Any, Any, Any]:
        """Return what awaiting the call means outside a workflow: the plain function."""
        return plain(self.function, call.args, call.kwargs)

    def __repr__(self) -> str:
        """Show kind and name."""
        return f"<{self.kind} {self.name}>"

    @cached_property
    def hints(self) -> dict[str, Any]:
        """The annotations of parameters and result, resolved."""
        try:
            return typing.get_type_hints(self.function, include_extras=True)
        except Exception as error:
            raise DefinitionError(
                f"an annotation of {self.kind} {self.name} cannot be resolved: {error}",
                step=self.name,
                hint="import the type at run time (not only under TYPE_CHECKING), and define it at module level",
            ) from error

    def _check_signature(self) -> None:
        annotations = inspect.get_annotations(self.function)
        missing = [name for name in self.signature.parameters if name not in annotations]
        if "return" not in annotations:
            missing.append("the result")
        if missing:
            raise DefinitionError(
                f"{self.kind} {self.name} has no annotation for {', '.join(missing)}",
                step=self.name,
                hint="annotate every parameter and the result: stored data is decoded by what the code says",
            )
        if inspect.isasyncgenfunction(self.function) or inspect.isgeneratorfunction(self.function):
            raise DefinitionError(
                f"{self.kind} {self.name} is a generator",
                step=self.name,
                hint="return a list, or call one step for each item",
            )


class Workflow(Definition[P, R]):
    """An `async def` function that decides what happens; deterministic.

    Args:
        timeout: How long a run may take whose start does not say otherwise.
        durability: Of a run whose start does not say otherwise.
        pin: Whether only workers of the build that has begun a run move it.
    """

    kind = "workflow"

    def __init__(
        self,
        function: Callable[..., Any],
        name: str = "",
        timeout: timedelta | None = None,
        durability: Durability = "sync",
        *,
        pin: bool = False,
    ) -> None:
        super().__init__(function, name)
        self.pin = pin
        self.durability: Durability = check_durability(durability, what=f"workflow {self.name}")
        self.timeout_seconds = run_seconds(timeout, what=f"workflow {self.name}")

    def _check_signature(self) -> None:
        super()._check_signature()
        if not inspect.iscoroutinefunction(self.function):
            raise DefinitionError(
                f"workflow {self.name} is not an async function",
                step=self.name,
                hint="write `async def`; blocking work belongs into a @step",
            )
        findings = check_source(self.function)
        if findings:
            lines = "\n  ".join(str(finding) for finding in findings)
            raise ForbiddenInWorkflowError(
                f"workflow {self.name} uses what replay cannot repeat:\n  {lines}",
                step=self.name,
                hint="put it into a @step, or use outlast.now(), outlast.random(), outlast.uuid4()",
            )
        early = early_bindings(self.function)
        if early:
            raise ForbiddenInWorkflowError(
                f"workflow {self.name} uses {', '.join(early)} as imported before outlast",
                step=self.name,
                hint="write `import asyncio` and call it through the module",
            )

    def start(self, arguments: bytes) -> Coroutine[Any, Any, Any]:
        """Decode the arguments and return the body's coroutine."""
        args, kwargs = self.arguments.decode(arguments)
        return self.function(*args, **kwargs)

    def encode(self, value: Any) -> bytes:
        """Encode what the body returned."""
        return self.result.encode(value)

    def enter(self, context: Context, call: Call[Any]) -> Any:
        """Refuse: a workflow inside a workflow would have no journal of its own."""
        raise DefinitionError(
            f"workflow {self.name} was awaited inside a workflow",
            step=self.name,
            hint=f"write `await outlast.run_child({self.name}(…))` for a run of its own; call its plain function "
            f"({self.name}.function(…)) to make it part of this run",
        )


class AttemptOptions(msgspec.Struct, frozen=True):
    """How attempts of a step or effect are made.

    Args:
        retry: When to try again.
        start_to_close_timeout: How long one attempt may take.
        raises: Exception types that reach the workflow as themselves.
        schedule_to_close_timeout: How long all attempts and the waits between them may take, from the call on.
        heartbeat_timeout: How long one attempt may be silent.
    """

    retry: RetryPolicy = msgspec.field(default_factory=RetryPolicy)
    start_to_close_timeout: timedelta | None = None
    raises: tuple[type[BaseException], ...] = ()
    schedule_to_close_timeout: timedelta | None = None
    heartbeat_timeout: timedelta | None = None


class Step(Definition[P, R]):
    """Work whose outcome is journaled and which is harmless to run again."""

    kind = "step"

    def __init__(
        self,
        function: Callable[..., Any],
        name: str,
        options: AttemptOptions,
        placement: Placement = HERE,
    ) -> None:
        super().__init__(function, name)
        self.options = options
        self.placement = placement.check(self.name)
        _check_options(self, options)
        is_timed = options.start_to_close_timeout or options.schedule_to_close_timeout
        self._is_untimed = not (is_timed or options.heartbeat_timeout)

    @property
    def is_simple(self) -> bool:
        """Whether it runs on its worker's event loop for as long as it likes: so almost all steps do."""
        is_here = self._is_untimed and not self.placement.queue
        return is_here and inspect.iscoroutinefunction(self.function)

    def enter(self, context: Context, call: Call[Any]) -> Any:
        """Begin the step in a workflow."""
        return context.perform(
            StepRequest(
                name=self.name,
                arguments=self.arguments.encode(call.args, call.kwargs),
                decode=self.result.decode,
                raises=self.options.raises,
                has_deadline=self.options.schedule_to_close_timeout is not None,
                definition=self,
            )
        )

    def plain(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Call the function itself, unjournaled."""
        return self.function(*args, **kwargs)


class EffectOptions(msgspec.Struct, frozen=True):
    """How an effect may be repeated.

    Args:
        idempotent: The receiver answers an equal key with the first result.
        probe: Asks the remote system whether the effect happened; takes the effect's arguments.
        settle: How much longer than its timeout an attempt can act.
        not_applied: Exception types that prove that nothing happened.
        repeats: An equal call after a success is another effect.
        key_on: The parameters that make the key; all of them when empty.
        version: Part of what an approval binds to.
        compensate: The effect that undoes it; takes parameters of it by name, and `result`.
        idempotent_for: How long the receiver remembers a key; None for ever.
        same_as: What makes two calls the same purpose although their keys differ.
        probe_retry: When to ask a probe again that cannot say; `PROBING` when there is none.
        probe_timeout: How long a probe may take; as long as an attempt when there is none.
        approval: How a person is asked before it.
        tool: The foreign tool that it calls.
    """

    idempotent: bool = False
    probe: Callable[..., Any] | None = None
    settle: timedelta = SETTLE
    not_applied: tuple[type[BaseException], ...] = ()
    repeats: bool = False
    key_on: tuple[str, ...] = ()
    version: str = ""
    compensate: Any = None
    idempotent_for: timedelta | None = None
    same_as: SameAs | None = None
    probe_retry: RetryPolicy | None = None
    probe_timeout: timedelta | None = None
    approval: Approval | None = None
    tool: ForeignTool | None = None


class Pattern(msgspec.Struct, frozen=True):
    """Calls of one effect whose named arguments have these values."""

    cover: Cover
    fields: Mapping[str, str]
    effect: Effect[..., Any]


class Effect(Definition[P, R]):
    """Work that changes the world."""

    kind = "effect"

    def __init__(
        self,
        function: Callable[..., Any],
        name: str,
        options: AttemptOptions,
        rules: EffectOptions,
    ) -> None:
        self.options = options
        self.rules = rules
        super().__init__(function, name)
        check_flags(self.name, idempotent=rules.idempotent, repeats=rules.repeats)
        _check_options(self, options)
        check_texts(self.name, key_on=rules.key_on, version=rules.version)
        self._check_rules()
        if rules.compensate is not None:
            has_timeout = options.start_to_close_timeout is not None
            check_compensation(cast("Undoable", self), rules.compensate, has_timeout=has_timeout)

    @property
    def repeat(self) -> Repeat:
        """How an attempt may be repeated after an unknown outcome."""
        if self.rules.idempotent:
            return Repeat.IDEMPOTENT
        return Repeat.PROBED if self.rules.probe is not None else Repeat.NEVER

    @property
    def version(self) -> str:
        """Of what it does: what its declaration says; of a foreign tool, the hash of the definition, too."""
        tool = self.rules.tool
        return self.rules.version if tool is None else f"{self.rules.version} {tool.sha256}".strip()

    def resolve(self) -> None:
        """Resolve the annotations now, and hold those of its compensation against them."""
        super().resolve()
        if self.rules.compensate is not None:
            check_types(cast("Undoable", self), self.rules.compensate)

    @property
    def probe_retry(self) -> RetryPolicy:
        """When its probe is asked again."""
        return self.rules.probe_retry or PROBING

    def where(self, **fields: Any) -> Pattern:
        """Return the pattern of calls whose named arguments equal these, for `covers=`.

        Raises:
            DefinitionError: The effect has no parameter of that name, or no field is given.
        """
        unknown = [name for name in fields if name not in self.signature.parameters]
        if unknown or not fields:
            known = ", ".join(self.signature.parameters)
            raise DefinitionError(
                f"{self.name}.where({', '.join(fields)}) names no parameter of the effect"
                if unknown
                else f"{self.name}.where() would cover every call",
                step=self.name,
                hint=f"name at least one of: {known}",
            )
        values = {name: canonical(value).decode() for name, value in fields.items()}
        agent, version = current_agent.get(), self.version or UNSET
        cover = Cover(self.name, where=values, agent=agent, version=version)
        return Pattern(cover, values, self)

    def cover(self, call: Call[Any]) -> tuple[Cover, Mapping[str, str]]:
        """Return the cover of exactly this call, and its arguments by name."""
        call.use()
        fields = self._fields(self.arguments.bind(call.args, call.kwargs))
        return Cover(self.name, self._action_sha256(fields), agent=current_agent.get()), fields

    def enter(self, context: Context, call: Call[Any]) -> Any:
        """Begin the effect in a workflow."""
        return context.perform(self.request(call.args, call.kwargs))

    def request(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> EffectRequest:
        """Return what is asked of the run for a call."""
        bound = self.arguments.bind(args, kwargs)
        arguments = self.arguments.encode(args, kwargs)
        fields = self._fields(bound)
        keyed = {name: bound[name] for name in self.rules.key_on} if self.rules.key_on else bound
        action_sha256, same_as = self._action_sha256(fields), self.rules.same_as
        cover = Cover(self.name, action_sha256, agent=current_agent.get())
        return EffectRequest(
            name=self.name,
            arguments=arguments,
            payload_sha256=payload_sha256(keyed),
            action_sha256=action_sha256,
            fields=fields,
            repeats=self.rules.repeats,
            same_arguments=lambda recorded: self.arguments.recode(recorded) == arguments,
            decode=self.result.decode,
            raises=self.options.raises,
            has_deadline=self.options.schedule_to_close_timeout is not None,
            definition=self,
            undo=self._undo,
            purpose=None if same_as is None else same_as.purpose(cover, fields),
            remake=self.remake,
            version=self.version,
            agent=current_agent.get(),
        )

    def remake(self, arguments: bytes) -> EffectRequest:
        """Return what is asked of the run for a call with these arguments.

        Args:
            arguments: JSON object by parameter name.

        Raises:
            DecodeError: They do not fit.
            EncodeError: They cannot be stored, or hashed.
        """
        args, kwargs = self.arguments.decode(arguments)
        return self.request(args, kwargs)

    @cached_property
    def _undo(self) -> Undo | None:
        """How it is undone; made once, since each call needs it."""
        compensation = self.rules.compensate
        return None if compensation is None else undo_of(cast("Undoable", self), compensation)

    def outside(self, call: Call[Any]) -> Coroutine[Any, Any, Any]:
        """Refuse: a lost context must never mean an unguarded payment."""
        check_not_probing(self.name)
        raise EffectOutsideWorkflowError(
            f"effect {self.name} was called outside a workflow, or inside a step",
            step=self.name,
            hint=f"await it in the body of a @workflow; {self.name}.plain(…) runs it without any protection",
        )

    def plain(self, *args: P.args, **kwargs: P.kwargs) -> Any:
        """Call the function itself: no journal, no key, no approval, no protection.

        Raises:
            EffectOutsideWorkflowError: A probe calls it.
        """
        check_not_probing(self.name)
        return self.function(*args, **kwargs)

    def _fields(self, bound: Mapping[str, Any]) -> dict[str, str]:
        return {name: canonical(value).decode() for name, value in bound.items()}

    def _action_sha256(self, fields: Mapping[str, str]) -> str:
        action = {
            "effect": self.name,
            "version": self.version,
            "arguments": {name: msgspec.json.decode(value) for name, value in fields.items()},
        }
        return sha256_of(action)

    def _check_rules(self) -> None:
        rules, options = self.rules, self.options
        if rules.idempotent and rules.probe is not None:
            raise self._refused(
                "is both idempotent and probed",
                "keep one: a key that the receiver honours needs no probe",
            )
        if self.repeat is not Repeat.IDEMPOTENT and options.start_to_close_timeout is None:
            raise self._refused(
                "has no start_to_close_timeout",
                "give one, as start_to_close_timeout=timedelta(seconds=30): nothing may be done about an unknown outcome before the "
                "attempt can no longer act; or declare idempotent=True, if the receiver honours the key. A probe= says how to find "
                "out what became of it; with neither, a person has to say",
            )
        if self.repeat is Repeat.NEVER and options.retry.maximum_attempts != 1:
            raise self._refused(
                "would be repeated although nothing makes that safe",
                "declare idempotent=True or probe=…, or leave the retry policy out",
            )
        parameters = list(self.signature.parameters.values())
        check_errors(self.name, rules.not_applied)
        check_names(self.name, "key_on", rules.key_on, parameters)
        check_probe(self.name, rules.probe, parameters)
        check_settle(self.name, rules.settle)
        check_memory(
            self.name,
            rules.idempotent_for,
            idempotent=rules.idempotent,
            timeout=options.start_to_close_timeout,
            settle=rules.settle,
        )
        check_purpose(
            self.name, rules.same_as, parameters, key_on=rules.key_on, repeats=rules.repeats
        )
        check_approval(self.name, rules.approval, parameters)
        check_tool(self.name, rules.tool)
        unknown = [name for name in rules.key_on if name not in self.signature.parameters]
        if unknown:
            raise self._refused(
                f"has no parameter {', '.join(unknown)}", "name parameters in key_on="
            )
        asks = {"probe_retry": rules.probe_retry, "probe_timeout": rules.probe_timeout}
        given = " and ".join(name for name, value in asks.items() if value is not None)
        if rules.probe is None and given:
            raise self._refused(
                f"has {given} and no probe",
                "give probe=…, or leave that out: only a probe is asked",
            )
        if rules.probe_timeout is not None:
            check_probe_time(self.name, rules.probe_timeout)
        if rules.probe is not None:
            wanted = list(self.signature.parameters)
            found = list(inspect.signature(_bare(rules.probe)).parameters)
            if wanted != found:
                raise self._refused(
                    f"has a probe that takes ({', '.join(found)})",
                    f"a probe takes the effect's own parameters: ({', '.join(wanted)})",
                )

    def _refused(self, what: str, hint: str) -> DefinitionError:
        return refuse(self.name, what, hint)


def _bare(function: Callable[..., Any]) -> Callable[..., Any]:
    return function.function if isinstance(function, Definition) else function


def probe_function(effect: Effect[Any, Any]) -> Callable[..., Any]:
    """Return the function that asks; a step given as a probe is used as its plain function."""
    assert effect.rules.probe is not None
    return _bare(effect.rules.probe)


def once_unless(rules: EffectOptions, retry: RetryPolicy | None) -> RetryPolicy:
    """Return the policy of an effect: the given one, or the default that its declaration can bear."""
    if retry is not None:
        return retry  # checked with the other options
    return RetryPolicy() if rules.idempotent or rules.probe is not None else ONCE


def _check_options(definition: Definition[Any, Any], options: AttemptOptions) -> None:
    _check_types(definition, options)
    check_times(definition.kind, definition.name, {name: getattr(options, name) for name in TIMES})
    unfit = [one for one in options.raises if not _can_arrive(one)]
    if unfit:
        raise DefinitionError(
            f"{definition.kind} {definition.name} has raises={unfit}, which cannot arrive in a workflow",
            step=definition.name,
            hint="name exception types of your own; StopIteration and those that end the process are none",
        )


def _check_types(definition: Definition[Any, Any], options: AttemptOptions) -> None:
    """Refuse what a declaration without a type checker may hold; here, where the author sees it."""
    given: list[tuple[str, Any, type[Any], str]] = [
        (
            "retry",
            options.retry,
            RetryPolicy,
            "a RetryPolicy, as retry=RetryPolicy(maximum_attempts=3)",
        ),
        ("raises", options.raises, tuple, "a tuple of exception types, as raises=(ValueError,)"),
    ]
    times: list[tuple[str, Any]] = [
        (name, time) for name in TIMES if (time := getattr(options, name)) is not None
    ]
    if isinstance(definition, Effect):
        rules = definition.rules
        times.append(("settle", rules.settle))
        if rules.probe_timeout is not None:
            times.append(("probe_timeout", rules.probe_timeout))
        if rules.probe_retry is not None:
            wanted = "a RetryPolicy, as probe_retry=RetryPolicy(maximum_attempts=3)"
            given.append(("probe_retry", rules.probe_retry, RetryPolicy, wanted))
        given.append(
            (
                "not_applied",
                rules.not_applied,
                tuple,
                "a tuple of exception types, as not_applied=(ValueError,)",
            )
        )
        given.append(
            ("key_on", rules.key_on, tuple, 'a tuple of parameter names, as key_on=("invoice_id",)')
        )
    given += [
        (name, value, timedelta, f"a timedelta, as {name}=timedelta(seconds=30)")
        for name, value in times
    ]
    for name, value, kind, wanted in given:
        if not isinstance(value, kind):
            raise DefinitionError(
                f"{definition.kind} {definition.name} has {name}={value!r}, which is no {kind.__name__}",
                step=definition.name,
                hint=f"give {wanted}",
            )


def _can_arrive(kind: Any) -> bool:
    return (
        isinstance(kind, type)
        and issubclass(kind, Exception)
        and not issubclass(kind, StopIteration | StopAsyncIteration)
    )
