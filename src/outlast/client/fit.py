"""Whether an answer fits the JSON schema with which it is asked, as far as the schemas go that are made of Python types.

What no rule here knows is let pass: the worker decodes the answer with the type itself, and asks again where that fails.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

_KINDS: dict[str, tuple[type, ...]] = {
    "null": (type(None),),
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
    "string": (str,),
    "array": (list,),
    "object": (dict,),
}
_NOTHING: Mapping[str, Any] = {}
_DEEPEST = 100
"""Levels of a schema that refers to itself: no answer is nested deeper."""


def misfit(value: Any, schema: Any) -> str:
    """Return what does not fit, as `$.amount: expected integer`; empty where nothing is found.

    Args:
        value: Plain JSON data.
        schema: As it is stored; one that is none fits everything.
    """
    whole = _mapping(schema)
    return _misfit(value, whole, whole, "$", 0)


def _misfit(value: Any, schema: Any, whole: Mapping[str, Any], path: str, depth: int) -> str:
    if not isinstance(schema, Mapping) or depth > _DEEPEST:
        return ""
    rules = _mapping(cast("Any", schema))
    if "$ref" in rules:
        return _misfit(value, _named(rules["$ref"], whole), whole, path, depth + 1)
    if isinstance(rules.get("anyOf"), list):
        found = [_misfit(value, one, whole, path, depth + 1) for one in rules["anyOf"]]
        if found and all(found):
            return found[0] if len(found) == 1 else f"{path}: fits none of {len(found)} shapes"
    return _own_misfit(value, rules, path) or _part_misfit(value, rules, whole, path, depth)


def _mapping(given: Any) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", given) if isinstance(given, Mapping) else _NOTHING


def _list(given: Any) -> list[Any]:
    return cast("list[Any]", given) if isinstance(given, list) else []


def _named(reference: Any, whole: Mapping[str, Any]) -> Any:
    place: Any = whole
    for step in str(reference).removeprefix("#/").split("/"):
        place = _mapping(place).get(step)
    return place


def _own_misfit(value: Any, rules: Mapping[str, Any], path: str) -> str:
    kinds: Any = rules.get("type")
    names = _list(kinds) or ([kinds] if isinstance(kinds, str) else [])
    if names and not any(_is(value, one) for one in names):
        return f"{path}: expected {' or '.join(map(str, names))}"
    if isinstance(rules.get("enum"), list) and not any(_same(value, one) for one in rules["enum"]):
        return f"{path}: expected one of {', '.join(map(repr, rules['enum']))}"
    if "const" in rules and not _same(value, rules["const"]):
        return f"{path}: expected {rules['const']!r}"
    return ""


def _is(value: Any, kind: Any) -> bool:
    known = _KINDS.get(kind) if isinstance(kind, str) else None
    if known is None:
        return True
    if isinstance(value, bool):
        return bool in known
    return isinstance(value, known)


def _same(value: Any, other: Any) -> bool:
    return type(value) is type(other) and value == other


def _part_misfit(
    value: Any, rules: Mapping[str, Any], whole: Mapping[str, Any], path: str, depth: int
) -> str:
    if isinstance(value, dict):
        return _field_misfit(cast("dict[str, Any]", value), rules, whole, path, depth)
    if isinstance(value, list):
        shapes = _list(rules.get("prefixItems"))
        for place, one in enumerate(cast("list[Any]", value)):
            shape = shapes[place] if place < len(shapes) else rules.get("items")
            if found := _misfit(one, shape, whole, f"{path}[{place}]", depth + 1):
                return found
    return ""


def _field_misfit(
    value: dict[str, Any], rules: Mapping[str, Any], whole: Mapping[str, Any], path: str, depth: int
) -> str:
    for name in _list(rules.get("required")):
        if name not in value:
            return f"{path}: {name!r} is missing"
    fields = _mapping(rules.get("properties"))
    others = rules.get("additionalProperties")
    for name, one in value.items():
        if name not in fields and others is False:
            return f"{path}: there is no {name!r}"
        if found := _misfit(one, fields.get(name, others), whole, f"{path}.{name}", depth + 1):
            return found
    return ""
