"""Plans of containers: lists, tuples, deques, sets and dicts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import msgspec

from outlast.journal.plan import Plan, Unfit, Walk, key_step, unrestored


class SequencePlan(Plan):
    """A list, a tuple of any length, or a deque, as a JSON array."""

    __slots__ = ("item", "kind", "make")

    def __init__(self, kind: type[Any], item: Plan) -> None:
        super().__init__(kind.__name__, (kind,), (list,))
        self.kind = kind
        self.item = item
        self.make: Callable[[list[Any]], Any] = kind

    @property
    def natural(self) -> bool:
        """Say that a list is an array."""
        return self.kind is list

    def encode(self, value: Any, walk: Walk) -> list[Any]:
        """Encode each member."""
        if type(value) is not self.kind:
            raise self.refuse(value)
        if getattr(value, "maxlen", None) is not None:
            raise Unfit("the maxlen of a deque would be lost", "store a list")
        walk.enter(len(value))
        data: list[Any] = []
        encode = self.item.encode
        try:
            for each in value:
                data.append(encode(each, walk))  # noqa: PERF401  (the length so far is the path)
        except Unfit as unfit:
            raise unfit.under(len(data)) from None
        walk.depth -= 1
        return data

    def decode(self, data: Any, walk: Walk) -> Any:
        """Decode each member."""
        return self.make(self.decode_items(data, walk))

    def decode_items(self, data: Any, walk: Walk) -> list[Any]:
        """Return the decoded members of an array."""
        if type(data) is not list:
            raise self.misfit(data)
        walk.enter(0)
        values: list[Any] = []
        decode = self.item.decode
        try:
            for each in cast("list[Any]", data):
                values.append(decode(each, walk))  # noqa: PERF401  (the length so far is the path)
        except Unfit as unfit:
            raise unfit.under(len(values)) from None
        walk.depth -= 1
        return values


class SetPlan(SequencePlan):
    """A set or frozenset, as an array sorted by the members' JSON text, so that equal sets give equal bytes."""

    __slots__ = ()

    def encode(self, value: Any, walk: Walk) -> list[Any]:
        """Encode each member and sort."""
        return sorted(super().encode(value, walk), key=msgspec.json.encode)

    def decode(self, data: Any, walk: Walk) -> Any:
        """Decode each member."""
        values = self.decode_items(data, walk)
        try:
            return self.make(values)
        except Exception as error:  # noqa: BLE001  (an author's __hash__ and __eq__ may raise anything)
            raise unrestored(error) from None


class TuplePlan(Plan):
    """A tuple of fixed length, as an array."""

    __slots__ = ("items",)

    def __init__(self, items: tuple[Plan, ...]) -> None:
        super().__init__("tuple", (tuple,), (list,))
        self.items = items

    def encode(self, value: Any, walk: Walk) -> list[Any]:
        """Encode each member by its own plan."""
        if type(value) is not tuple:
            raise self.refuse(value)
        members = cast("tuple[Any, ...]", value)
        if len(members) != len(self.items):
            raise Unfit(f"expected a tuple of {len(self.items)}, got one of {len(members)}")
        walk.enter(len(members))
        data: list[Any] = []
        try:
            for plan, each in zip(self.items, members, strict=True):
                data.append(plan.encode(each, walk))
        except Unfit as unfit:
            raise unfit.under(len(data)) from None
        walk.depth -= 1
        return data

    def decode(self, data: Any, walk: Walk) -> tuple[Any, ...]:
        """Decode each member by its own plan."""
        if type(data) is not list:
            raise self.misfit(data)
        members = cast("list[Any]", data)
        if len(members) != len(self.items):
            raise Unfit(f"expected an array of {len(self.items)}, found one of {len(members)}")
        walk.enter(0)
        values: list[Any] = []
        try:
            for plan, each in zip(self.items, members, strict=True):
                values.append(plan.decode(each, walk))
        except Unfit as unfit:
            raise unfit.under(len(values)) from None
        walk.depth -= 1
        return tuple(values)


class MappingPlan(Plan):
    """A dict whose keys become strings, as an object."""

    __slots__ = ("key", "kind", "value")

    def __init__(self, kind: type[Any], key: Plan, value: Plan) -> None:
        super().__init__(kind.__name__, (kind,), (dict,))
        self.kind = kind
        self.key = key
        self.value = value

    @property
    def natural(self) -> bool:
        """Say that a dict is an object."""
        return self.kind is dict

    @property
    def open(self) -> bool:
        """Say that any key can occur."""
        return True

    def encode(self, value: Any, walk: Walk) -> dict[str, Any]:
        """Encode each key and value."""
        if type(value) is not self.kind:
            raise self.refuse(value)
        walk.enter(len(value))
        data: dict[str, Any] = {}
        encode_key, encode_value = self.key.encode, self.value.encode
        key: Any = ""
        try:
            for key, each in value.items():
                data[encode_key(key, walk)] = encode_value(each, walk)
        except Unfit as unfit:
            raise unfit.under(key_step(key)) from None
        if len(data) != len(value):
            raise Unfit("two keys of the dict become the same string")
        walk.depth -= 1
        return data

    def decode(self, data: Any, walk: Walk) -> Any:
        """Decode each key and value."""
        if type(data) is not dict:
            raise self.misfit(data)
        walk.enter(0)
        values: Any = self.kind()
        decode_key, decode_value = self.key.decode, self.value.decode
        key: Any = ""
        try:
            for key, each in cast("dict[str, Any]", data).items():
                _put(values, decode_key(key, walk), decode_value(each, walk))
        except Unfit as unfit:
            raise unfit.under(key) from None
        walk.depth -= 1
        return values


class PairsPlan(Plan):
    """A dict whose keys are not strings in JSON, as an array of `[key, value]`."""

    __slots__ = ("kind", "pairs")

    def __init__(self, kind: type[Any], key: Plan, value: Plan) -> None:
        super().__init__(kind.__name__, (kind,), (list,))
        self.kind = kind
        self.pairs = SequencePlan(list, TuplePlan((key, value)))

    def encode(self, value: Any, walk: Walk) -> list[Any]:
        """Encode each pair."""
        if type(value) is not self.kind:
            raise self.refuse(value)
        pairs: list[Any] = list(value.items())
        return self.pairs.encode(pairs, walk)

    def decode(self, data: Any, walk: Walk) -> Any:
        """Decode each pair."""
        values: Any = self.kind()
        for place, (key, each) in enumerate(self.pairs.decode_items(data, walk)):
            try:
                _put(values, key, each)
            except Unfit as unfit:
                raise unfit.under(place) from None
        return values


def _put(values: dict[Any, Any], key: Any, value: Any) -> None:
    """Add a member to a dict that has none of that key, so that none is lost.

    Raises: Unfit: It has one, or the key cannot be one.
    """
    known = len(values)
    try:
        values[key] = value
    except Exception as error:  # noqa: BLE001  (an author's __hash__ and __eq__ may raise anything)
        raise unrestored(error) from None
    if len(values) == known:
        raise Unfit("two keys are the same")
