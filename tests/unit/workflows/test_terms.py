"""How a person is asked, as it is declared: what cannot be meant is refused where it is written, by the name of the keyword."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

import outlast
from outlast.errors import DefinitionError
from outlast.journal.asking import Rung, Terms
from outlast.replay.context import current_context
from outlast.workflows.decorator import effect, step
from outlast.workflows.terms import Approval

HOUR = timedelta(hours=1)


@step
async def look(amount: int) -> int:
    """Look."""
    return amount


@step
async def look_elsewhere(place: str) -> str:
    """Look at what the effect is not called with."""
    return place


def declare(**more: Any) -> Approval:
    """Return an approval that is declared so."""
    return Approval(**{"role": "boss", "expires_in": HOUR, **more})


def test_what_is_said_is_what_is_asked() -> None:
    """All of it is in the terms; lists are tuples."""
    approval = declare(
        use_within=2 * HOUR,
        quorum=2,
        four_eyes=True,
        escalate=[Rung("chief", HOUR)],
        remind=[HOUR / 2],
        edits="second",
        preconditions={"sum": look},
    )
    assert approval.terms == Terms(
        "boss", HOUR, 2 * HOUR, 2, True, "second", (Rung("chief", HOUR),), (HOUR / 2,)
    )
    assert approval.preconditions == {"sum": look}
    assert declare(sticky="run").terms == Terms("boss", HOUR, sticky="run")
    assert repr(approval).startswith("Approval('boss', expires_in=")


@pytest.mark.parametrize(
    ("keyword", "value"),
    [
        ("role", ""),
        ("role", "a:b"),
        ("expires_in", 3600),
        ("expires_in", timedelta(0)),
        ("expires_in", timedelta(days=40_000)),
        ("use_within", timedelta(-1)),
        ("use_within", "1h"),
        ("use_within", HOUR - timedelta(microseconds=1)),
        ("quorum", 0),
        ("quorum", True),
        ("quorum", 1.0),
        ("quorum", 101),
        ("four_eyes", "no"),
        ("edits", True),
        ("edits", "maybe"),
        ("escalate", Rung("chief", HOUR)),
        ("escalate", ["chief"]),
        ("escalate", [Rung("chief", timedelta(0))]),
        ("escalate", [Rung("", HOUR)]),
        ("escalate", [Rung("chief", timedelta(days=30_000))] * 2),
        ("escalate", [Rung("chief", HOUR)] * 101),
        ("remind", HOUR),
        ("remind", [HOUR]),
        ("remind", [timedelta(0)]),
        ("preconditions", [look]),
        ("preconditions", {"": look}),
        ("preconditions", {"sum": len}),
    ],
)
def test_what_cannot_be_meant_is_refused(keyword: str, value: Any) -> None:
    """In a declaration, and where a workflow asks: before anything is asked."""
    with pytest.raises(DefinitionError):
        declare(**{keyword: value})
    with pytest.raises(DefinitionError):
        ask(**{keyword: value})


def test_a_time_to_begin_outlasts_each_time_to_decide() -> None:
    """A yes that comes last lets something begin, on every rung; the error says on which it would not."""
    with pytest.raises(DefinitionError, match="of rung 2: a yes could come") as caught:
        declare(use_within=2 * HOUR, escalate=[Rung("chief", HOUR), Rung("owner", 3 * HOUR)])
    assert "use_within" in (caught.value.hint or "")
    same = declare(use_within=2 * HOUR, escalate=[Rung("chief", 2 * HOUR)])
    assert same.terms.use_within == 2 * HOUR


def ask(**more: Any) -> None:
    """Ask in a workflow, as far as the terms."""
    asked: Any = SimpleNamespace()
    token = current_context.set(asked)
    try:
        asking = outlast.approval("?", **{"role": "boss", "expires_in": HOUR, **more})
        asking.send(None)
    finally:
        current_context.reset(token)


@pytest.mark.parametrize(
    "approval",
    [
        "boss",
        declare(preconditions={"place": look_elsewhere}),
        declare(preconditions={"sum": look(1)}),
    ],
)
def test_an_effect_that_could_not_ask_is_refused(approval: Any) -> None:
    """No approval; a precondition on what the effect is not called with; a call in place of the step."""
    with pytest.raises(DefinitionError, match="effect pay"):

        @effect(idempotent=True, approval=approval)
        async def pay(amount: int) -> int:
            return amount


@pytest.mark.parametrize("sticky", ["ever", "", True, None])
def test_a_yes_sticks_nowhere_else(sticky: Any) -> None:
    """A reach has a name."""
    with pytest.raises(DefinitionError, match="sticky=") as refused:
        declare(sticky=sticky)
    assert "workflow" in (refused.value.hint or "")


@pytest.mark.parametrize("beside", [{"quorum": 2}, {"preconditions": {"sum": look}}])
def test_what_sticks_is_one_persons_yes_and_rests_on_no_facts(beside: dict[str, Any]) -> None:
    """One yes is no yes of several, and what was so then need not be so later."""
    with pytest.raises(DefinitionError, match="sticky='run'"):
        declare(sticky="run", **beside)


@pytest.mark.parametrize(
    ("least", "far"), [("no", 0), ("call", 1), ("turn", 2), ("run", 3), ("workflow", 4)]
)
def test_a_yes_may_stick_as_far_and_nearer(least: Any, far: int) -> None:
    """The reaches are in order."""
    reaches: list[Any] = ["call", "turn", "run", "workflow"]
    terms = Terms("boss", HOUR, sticky=least)
    assert [one for one in reaches if terms.may_stick(one)] == reaches[:far]


def test_a_precondition_is_on_parameters_of_the_effect() -> None:
    """By their names, some or all of them."""

    @effect(idempotent=True, approval=declare(preconditions={"sum": look}))
    async def pay_it(amount: int, note: str) -> int:
        return amount

    assert pay_it.rules.approval is not None
