"""Scenarios as text: what is no scenario, or says more than one can, is refused and not passed over."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from outlast.errors import DecodeError
from outlast.testing.simulation.scenario import Scenario

FULL: dict[str, Any] = {
    "seed": 1,
    "plans": [
        {
            "shape": {
                "type": "Several",
                "how": "seq",
                "parts": [{"type": "Limit", "seconds": 1.0, "part": {"type": "Work", "n": 1}}],
            },
            "sendings": [{"signal": 1, "value": 2}],
            "deciding": {"answer": "deny"},
        }
    ],
    "disturbances": [{"harm": "kill", "at": 1.0}],
    "faults": {"latency": 0.3},
    "fates": {"late": 0.3},
}
PLACES: list[tuple[Any, ...]] = [
    (),
    ("plans", 0),
    ("plans", 0, "shape"),
    ("plans", 0, "shape", "parts", 0),
    ("plans", 0, "shape", "parts", 0, "part"),
    ("plans", 0, "sendings", 0),
    ("plans", 0, "deciding"),
    ("disturbances", 0),
    ("faults",),
    ("fates",),
]


@pytest.mark.parametrize("place", PLACES, ids=str)
def test_a_field_that_no_scenario_has_is_refused_wherever_it_stands(place: tuple[Any, ...]) -> None:
    """A misspelt field must not leave a scenario that does something else."""
    text = msgspec.json.encode(FULL)
    Scenario.from_json(text)
    raw = msgspec.json.decode(text)
    part = raw
    for step in place:
        part = part[step]
    part["latencyy"] = 1
    with pytest.raises(DecodeError, match="latencyy") as refused:
        Scenario.from_json(msgspec.json.encode(raw))
    assert "Scenario.to_json" in refused.value.hint


@pytest.mark.parametrize(
    "text",
    [
        *("", "nope", "[]", "{}", '{"seed": 1}', '{"seed": 1, "plans": [], "faults": 3}'),
        *('{"seed": 1, "plans": [{"shape": {"type": "Wrk", "n": 1}}]}', '"\ud800"', b"\xff"),
        '{"seed": 1, "plans": [{"shape": ' + '{"type": "Tidy", "part": ' * 100_000,
    ],
    ids=lambda text: repr(text[:20]),
)
def test_a_text_that_is_no_scenario_is_refused_in_words(text: str | bytes) -> None:
    """Whatever is given, the error is one of Outlast's, and says what a scenario is."""
    with pytest.raises(DecodeError, match="no scenario") as refused:
        Scenario.from_json(text)
    assert "Scenario.to_json" in refused.value.hint
