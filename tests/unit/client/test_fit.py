"""Whether an answer fits the schema with which it is asked."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import Enum
from typing import Any, Literal

import msgspec
import pytest

from outlast.client.fit import misfit


class Colour(Enum):
    """For a schema with an enumeration."""

    RED = "red"
    BLUE = "blue"


@dataclass
class Item:
    """For a schema with a definition of its own."""

    name: str
    price: float
    tags: list[str]


class Basket(msgspec.Struct, forbid_unknown_fields=True):
    """For a schema that refers to itself."""

    items: list[Item]
    within: Basket | None = None
    paid: bool = False


ITEM = {"name": "lamp", "price": 3, "tags": []}

CASES: list[tuple[Any, Any, str]] = [
    (bool, True, ""),
    (bool, "true", "$: expected boolean"),
    (bool, 1, "$: expected boolean"),
    (int, 5, ""),
    (int, True, "$: expected integer"),
    (int, 5.5, "$: expected integer"),
    (float, 5, ""),
    (str, None, "$: expected string"),
    (str | None, None, ""),
    (int | str, [], "$: fits none of 2 shapes"),
    (Literal["yes", "no"], "no", ""),
    (Literal["yes", "no"], "maybe", "$: expected one of 'no', 'yes'"),
    (Literal[1, 2], True, "$: expected one of 1, 2"),
    (Colour, "green", "$: expected one of 'blue', 'red'"),
    (list[int], [1, "2"], "$[1]: expected integer"),
    (tuple[int, str], [1, 2], "$[1]: expected string"),
    (dict[str, int], {"a": "b"}, "$.a: expected integer"),
    (datetime, "2026-03-01T00:00:00Z", ""),
    (Item, ITEM, ""),
    (Item, {**ITEM, "price": "3"}, "$.price: expected number"),
    (Item, {"name": "lamp", "price": 3}, "$: 'tags' is missing"),
    (Basket, {"items": [ITEM], "within": {"items": []}}, ""),
    (Basket, {"items": [], "within": {"items": 5}}, "$.within: fits none of 2 shapes"),
    (Basket, {"items": [], "colour": 1}, "$: there is no 'colour'"),
]


@pytest.mark.parametrize(
    ("type", "value", "expected"), CASES, ids=[repr(one)[:60] for one in CASES]
)
def test_what_fits_a_type(type: Any, value: Any, expected: str) -> None:
    """The schema that msgspec makes of a type, and JSON that fits it or not; what is said to fit is what the type takes."""
    assert misfit(value, msgspec.json.schema(type)) == expected
    if not expected:
        msgspec.json.decode(msgspec.json.encode(value), type=type)


@pytest.mark.parametrize(
    "schema",
    [None, 5, [], {}, {"type": 5}, {"type": "colour"}, {"$ref": "#/a/b"}, {"enum": 5}, {"anyOf": []}, {"properties": 5},
     {"required": 5}, {"items": 5}, {"prefixItems": 5}, {"$ref": "#"}, {"$ref": 5}],
)  # fmt: skip
def test_a_schema_that_says_nothing_fits_everything(schema: Any) -> None:
    """Also one that is none, or refers to itself without an end: the worker decodes for good."""
    for value in (None, 5, "x", [1], {"a": 1}):
        assert misfit(value, schema) == ""
