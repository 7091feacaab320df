"""Declarations of effects that could not work are refused where they are written, and say what to write instead."""

# ruff: noqa: D103 - the effects of a test say what they do by what they declare
from __future__ import annotations

import functools
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

import outlast
from outlast.effects.retry import RetryPolicy
from outlast.errors import DefinitionError

MINUTE = timedelta(minutes=1)
TIMED: dict[str, Any] = {"start_to_close_timeout": MINUTE}
IDEMPOTENT: dict[str, Any] = {"idempotent": True, **TIMED}


async def pay(to: str, amount: int, note: str = "") -> str:
    return to


async def find(to: str, amount: int, note: str = "") -> Any:
    return outlast.NotApplied()


async def find_in(orders: dict[str, int], to: str, amount: int, note: str = "") -> Any:
    return outlast.NotApplied()


async def find_by_name(*, to: str, amount: int, note: str) -> Any:
    return outlast.NotApplied()


async def find_other(to: str, note: str) -> Any:
    return outlast.NotApplied()


def find_one_by_one(to: str, amount: int, note: str = "") -> Iterator[Any]:
    yield outlast.NotApplied()


class Finder:
    """Can be called, and has no name to be found by."""

    def __call__(self, to: str, amount: int, note: str = "") -> Any:
        """Answer."""
        return outlast.NotApplied()


@outlast.effect(idempotent=True)
async def acting(to: str, amount: int, note: str = "") -> Any:
    return outlast.NotApplied()


@outlast.workflow
async def deciding(to: str, amount: int, note: str = "") -> Any:
    return outlast.NotApplied()


REFUSED: dict[str, tuple[dict[str, Any], str, str]] = {
    # what the declaration says, what is wrong with it, what to do
    "repeated although nothing protects it": (
        {**TIMED, "retry": RetryPolicy(maximum_attempts=2)},
        "would be repeated although nothing makes that safe",
        "idempotent=True or probe=",
    ),
    "repeated without end": (
        {**TIMED, "retry": RetryPolicy()},
        "would be repeated although nothing makes that safe",
        "leave the retry policy out",
    ),
    "neither, without a time": ({}, "has no start_to_close_timeout", "can no longer act"),
    "probed, without a time": (
        {"probe": find},
        "has no start_to_close_timeout",
        "start_to_close_timeout=timedelta(seconds=30)",
    ),
    "idempotent and probed": (
        {**IDEMPOTENT, "probe": find},
        "is both idempotent and probed",
        "keep one",
    ),
    "a flag that is a word": (
        {"idempotent": "no"},
        "has idempotent='no', which is no bool",
        "idempotent=True",
    ),
    "a flag that is a number": (
        {**IDEMPOTENT, "repeats": 2},
        "has repeats=2, which is no bool",
        "repeats=True",
    ),
    "a version that is a number": (
        {**IDEMPOTENT, "version": 2},
        "has version=2, which is no text",
        'version="2"',
    ),
    "a tool that is a name": (
        {**IDEMPOTENT, "tool": "files:write_file"},
        "has tool='files:write_file', which is no ForeignTool",
        "tool=ForeignTool(",
    ),
    "a key on what does not exist": (
        {**IDEMPOTENT, "key_on": ("to", "sum")},
        "has no parameter sum",
        "name parameters in key_on=: to, amount, note",
    ),
    "a key on one thing twice": (
        {**IDEMPOTENT, "key_on": ("to", "to")},
        "names to twice in key_on=",
        "once",
    ),
    "a key on what is no name": (
        {**IDEMPOTENT, "key_on": (1,)},
        "has key_on=(1,), which names no parameters",
        "give names",
    ),
    "every error": (
        {**IDEMPOTENT, "not_applied": (ValueError, Exception)},
        "has not_applied=(Exception,), which a lost connection is, too",
        "name types",
    ),
    "every error of all": (
        {**IDEMPOTENT, "not_applied": (BaseException,)},
        "has not_applied=(BaseException,), which a lost connection is, too",
        "name types",
    ),
    "errors that are none": (
        {**IDEMPOTENT, "not_applied": ("CardDeclinedError",)},
        "has not_applied=['CardDeclinedError'], which are no exception types",
        "name types",
    ),
    "a probe of other parameters": (
        {**TIMED, "probe": find_other},
        "has a probe that takes (to, note)",
        "(to, amount, note)",
    ),
    "a probe that is called in another way": (
        {**TIMED, "probe": find_by_name},
        "has a probe that takes (*, to, amount, note)",
        "(to, amount, note)",
    ),
    "a probe that is an effect": (
        {**TIMED, "probe": acting},
        "has the effect acting for a probe",
        "a probe only asks",
    ),
    "a probe that is a workflow": (
        {**TIMED, "probe": deciding},
        "has the workflow deciding for a probe",
        "a probe only asks",
    ),
    "a probe that is no function": (
        {**TIMED, "probe": "find"},
        "has probe='find', which is no function that answers",
        "returns Applied(value)",
    ),
    "a probe that is an object": ({**TIMED, "probe": Finder()}, "is no function that answers", ""),
    "a probe that yields": ({**TIMED, "probe": find_one_by_one}, "is no function that answers", ""),
    "settled before its end": (
        {**TIMED, "settle": timedelta(seconds=-1)},
        "has a settle of -1 day",
        "settle=timedelta(seconds=2)",
    ),
    "settled never": ({**TIMED, "settle": timedelta.max}, "has a settle of", "longer than its"),
    "a memory of keys that nobody honours": (
        {**TIMED, "idempotent_for": timedelta(hours=24)},
        "has idempotent_for and is not idempotent",
        "declare idempotent=True",
    ),
    "a memory beside a probe": (
        {**TIMED, "probe": find, "idempotent_for": timedelta(hours=24)},
        "has idempotent_for and is not idempotent",
        "leave it out",
    ),
    "a memory in hours": (
        {**IDEMPOTENT, "idempotent_for": 24},
        "has idempotent_for=24, which is no timedelta",
        "timedelta(hours=24)",
    ),
    "a memory, and attempts that may act at any time": (
        {"idempotent": True, "idempotent_for": timedelta(hours=24)},
        "has idempotent_for and no start_to_close_timeout",
        "forgotten the key",
    ),
    "a memory shorter than an attempt": (
        {**IDEMPOTENT, "idempotent_for": timedelta(seconds=62)},
        "has an idempotent_for of 0:01:02, and an attempt can act for 0:01:02",
        "longer than start_to_close_timeout and settle",
    ),
    "a memory of nothing": ({**IDEMPOTENT, "idempotent_for": timedelta(0)}, "idempotent_for", ""),
    "a memory without end": (
        {**IDEMPOTENT, "idempotent_for": timedelta.max},
        "has an idempotent_for of",
        "shorter than a hundred years",
    ),
    "a purpose that is a name": (
        {**IDEMPOTENT, "same_as": "to"},
        "has same_as='to', which is no SameAs",
        'outlast.SameAs("to", "amount")',
    ),
    "a purpose of what does not exist": (
        {**IDEMPOTENT, "same_as": outlast.SameAs("to", "sum")},
        "has no parameter sum",
        "name parameters in same_as=",
    ),
    "a purpose of one thing twice": (
        {**IDEMPOTENT, "same_as": outlast.SameAs("to", "to")},
        "names to twice in same_as=",
        "once",
    ),
    "a purpose that all equal keys have": (
        {**IDEMPOTENT, "key_on": ("to", "amount"), "same_as": outlast.SameAs("amount", "to")},
        "has a key on no more than same_as names (to, amount)",
        "leave same_as= out",
    ),
    "a purpose of everything": (
        {**IDEMPOTENT, "same_as": outlast.SameAs("to", "amount", "note")},
        "has a key on no more than same_as names",
        "name fewer parameters",
    ),
    "a name that makes keys ambiguous": (
        {**IDEMPOTENT, "name": "pay#2"},
        "'pay#2' cannot be the name of an effect",
        "no ':', no '#'",
    ),
}


@pytest.mark.parametrize(("options", "words", "hint"), REFUSED.values(), ids=REFUSED)
def test_what_cannot_work_is_refused(options: dict[str, Any], words: str, hint: str) -> None:
    """The error names the effect, what is wrong with it, and what to write."""
    with pytest.raises(DefinitionError) as caught:
        outlast.effect(**options)(pay)
    assert words in caught.value.message
    assert hint in caught.value.hint
    assert "pay" in str(caught.value)


@pytest.mark.parametrize(
    "options",
    [
        IDEMPOTENT,
        {"idempotent": True},
        {**IDEMPOTENT, "idempotent_for": timedelta(seconds=62, microseconds=1)},
        {**IDEMPOTENT, "key_on": ("to", "amount"), "not_applied": (ValueError, OSError)},
        {**TIMED, "probe": find, "settle": timedelta(0)},
        {**TIMED, "probe": outlast.step(find)},
        {**TIMED, "probe": functools.partial(find_in, {})},
        {**TIMED, "retry": RetryPolicy(maximum_attempts=1)},
        {**IDEMPOTENT, "same_as": outlast.SameAs("to", "amount")},
        {**IDEMPOTENT, "key_on": ("to", "note"), "same_as": outlast.SameAs("to", "amount")},
        {
            **IDEMPOTENT,
            "key_on": ("to",),
            "same_as": outlast.SameAs("to", "amount"),
            "repeats": True,
        },
    ],
)
def test_what_can_work_is_taken(options: dict[str, Any]) -> None:
    """What stands beside each limit is none of the refused."""
    assert outlast.effect(**options)(pay).name == "pay"


@pytest.mark.parametrize(
    ("names", "options", "words"),
    [
        ((), {}, "SameAs names ()"),
        ((1,), {}, "SameAs names (1,)"),
        (("to",), {"within": timedelta(0)}, "SameAs has within="),
        (("to",), {"within": 24}, "SameAs has within=24"),
        (("to",), {"within": timedelta.max}, "SameAs has within="),
        (("to",), {"role": "boss"}, "SameAs needs role= and expires_in=, or neither"),
        (("to",), {"expires_in": MINUTE}, "SameAs needs role= and expires_in=, or neither"),
        (("to",), {"role": "boss", "expires_in": timedelta(0)}, "SameAs has expires_in="),
        (("to",), {"role": " ", "expires_in": MINUTE}, "' ' cannot be the name of a role"),
        (("to",), {"role": None, "expires_in": MINUTE}, "None cannot be the name of a role"),
    ],
)
def test_a_purpose_that_cannot_be_meant_is_refused(
    names: tuple[Any, ...], options: dict[str, Any], words: str
) -> None:
    """Where it is written, in words; what was written is shown as it was."""
    with pytest.raises(DefinitionError) as caught:
        outlast.SameAs(*names, **options)
    assert words in caught.value.message
    shown = "SameAs('to', within=datetime.timedelta(seconds=60))"
    assert repr(outlast.SameAs("to", within=MINUTE)) == shown
