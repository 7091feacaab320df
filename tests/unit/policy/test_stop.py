"""The kill switch: what it stops, and that what cannot be read stops everything."""

from __future__ import annotations

from typing import Any

import pytest

from outlast.errors import DecodeError, PolicyError
from outlast.policy import Denied, Policy, Stop, Stops, ToolCall

from .conftest import MONDAY, judge


@pytest.mark.parametrize(
    ("scope", "name", "stopped", "free"),
    [
        ("everything", "*", {}, None),
        ("tenant", "prod-*", {"tenant": "prod-1"}, {"tenant": "test"}),
        ("tool", "pay*", {"name": "pay_out"}, {"name": "repay"}),
        ("tool", "bank:*", {"server": "bank"}, {"server": ""}),
        ("agent", "buyer", {"agent": "buyer"}, {"agent": ""}),
    ],
)
def test_what_a_stop_is_about(scope: Any, name: str, stopped: dict[str, Any], free: Any) -> None:
    """All calls, or those of a tenant, tool or agent."""
    stop = Stop(scope=scope, name=name, at=MONDAY)
    stops = Stops((stop,))
    assert stops.find(ToolCall(**{"name": "t", **stopped})) == stop
    assert free is None or stops.find(ToolCall(**{"name": "t", **free})) is None


def test_a_stop_outranks_everything_and_says_why() -> None:
    """Also where everything would be bypassed."""
    stop = Stop(scope="tool", name="pay", reason="paid twice", by="ann", at=MONDAY)
    verdict = judge(Policy(mode="bypass"), "pay", stopped=stop, may_bypass=True)
    assert isinstance(verdict, Denied)
    assert (verdict.code, verdict.reason) == ("stopped", "tool pay is stopped: paid twice")


def test_orders_are_added_and_taken_back() -> None:
    """One of each kind and name; the oldest that holds is named."""
    pay, all_ = Stop(scope="tool", name="pay", at=MONDAY), Stop(scope="everything", at=MONDAY)
    again = Stop(scope="tool", name="pay", reason="still", at=MONDAY)
    stops = Stops().adding(pay).adding(all_).adding(again)
    assert stops.stops == (all_, again)
    assert stops.find(ToolCall(name="pay")) == all_
    assert stops.without("everything").find(ToolCall(name="pay")) == again
    assert stops.without("everything").find(ToolCall(name="read")) is None
    assert stops.without("agent", "pay") == stops


@pytest.mark.parametrize(
    "data",
    [
        b"", b"[]", b'{"stops":[{"scope":"world","at":"2026-01-01T00:00:00Z"}]}', b'{"stops":[{"scope":"tool","name":"[a]","at":"2026-01-01T00:00:00Z"}]}',
        b'{"stops":[{"scope":"everything","name":"x","at":"2026-01-01T00:00:00Z"}]}',
    ],
)  # fmt: skip
def test_a_switch_that_cannot_be_read(data: bytes) -> None:
    """Is an error, so that whoever asks makes no call."""
    with pytest.raises(DecodeError, match="kill switch"):
        Stops.decode(data)


def test_what_cannot_be_stopped() -> None:
    """By a name that is no glob, or everything by name."""
    for scope, name in (("tool", ""), ("agent", "[a]"), ("everything", "x")):
        with pytest.raises(PolicyError):
            Stop(scope=scope, name=name, at=MONDAY)  # type: ignore[arg-type]
