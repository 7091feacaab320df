"""The plan of a union: members that JSON tells apart stay as they are, all others are tagged.

`datetime | str` is `"text"` or `{"$type": "datetime", "value": "…"}`. A tag is a label that is looked up in the
annotation; it never names a class to construct. Which members are tagged follows from the annotation alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from outlast.journal.choice import LiteralPlan, literal_plan
from outlast.journal.plan import Plan, Unfit, Walk, kind_of
from outlast.journal.record import TypedDictPlan

TAG = "$type"


class UnionPlan(Plan):
    """A value of one of several types, chosen by its exact runtime type.

    Raises: Unfit: Two members cannot be told apart.
    """

    __slots__ = ("by_class", "by_kind", "by_tag", "members")

    def __init__(self, members: Sequence[Plan]) -> None:
        members = _merged(members)
        label = " | ".join(sorted(each.label for each in members))
        super().__init__(
            label,
            {each for member in members for each in member.classes},
            {each for member in members for each in member.kinds},
        )
        self.members = members
        _check_classes(members, label)
        tagged = _tagged(members)
        tags = _tags(tagged)
        self.by_class = {
            kind: (member, tags.get(id(member))) for member in members for kind in member.classes
        }
        self.by_kind = {
            kind: each for each in members if id(each) not in tags for kind in each.kinds
        }
        self.by_tag = {tags[id(each)]: each for each in tagged}
        if float in self.by_class and int not in self.by_class:
            self.by_class[int] = self.by_class[float]
            if float in self.by_kind and int not in self.by_kind:
                self.by_kind[int] = self.by_kind[float]

    def encode(self, value: Any, walk: Walk) -> Any:
        """Encode by the member of this exact type."""
        kind = cast("type[Any]", type(value))
        found = self.by_class.get(kind)
        if found is None:
            raise self.refuse(value)
        member, tag = found
        data = member.encode(value, walk)
        return data if tag is None else {TAG: tag, "value": data}

    def decode(self, data: Any, walk: Walk) -> Any:
        """Decode by the tag, or else by the kind of data."""
        kind = kind_of(data)
        if kind is dict and self.by_tag and TAG in data:
            return self._decode_tagged(data, walk)
        member = self.by_kind.get(kind)
        if member is None:
            raise self.misfit(data)
        return member.decode(data, walk)

    def _decode_tagged(self, data: dict[str, Any], walk: Walk) -> Any:
        tag = data[TAG]
        member = self.by_tag.get(tag) if isinstance(tag, str) else None
        if member is None or "value" not in data:
            raise Unfit(
                f"the tag names no member of {self.label}", "was a type renamed or removed?"
            )
        return member.decode(data["value"], walk)


class TypedDictsPlan(Plan):
    """Several TypedDicts that a required key with different Literals tells apart."""

    __slots__ = ("by_value", "key")

    def __init__(self, key: str, members: Sequence[TypedDictPlan]) -> None:
        super().__init__(" | ".join(sorted(each.label for each in members)), (dict,), (dict,))
        self.key = key
        self.by_value = {
            pair: member for member in members for pair in (_literals(member).get(key) or {})
        }

    def encode(self, value: Any, walk: Walk) -> Any:
        """Encode by the TypedDict that the key names."""
        if kind_of(value) is not dict:
            raise self.refuse(value)
        return self._member(value).encode(value, walk)

    def decode(self, data: Any, walk: Walk) -> Any:
        """Decode by the TypedDict that the key names."""
        if kind_of(data) is not dict:
            raise self.misfit(data)
        return self._member(data).decode(data, walk)

    def _member(self, value: dict[str, Any]) -> Plan:
        found = value.get(self.key)
        try:
            return self.by_value[kind_of(found), found]
        except (KeyError, TypeError):
            raise Unfit(f"the key names no member of {self.label}").under(self.key) from None


def _telling_key(members: Sequence[TypedDictPlan]) -> str | None:
    """Return the first key that each member requires, with a Literal that no other has; None if there is none."""
    literals = [_literals(each) for each in members]
    for key in literals[0]:
        pairs = [pair for each in literals for pair in each.get(key) or {}]
        if all(key in each for each in literals) and len(set(pairs)) == len(pairs):
            return key
    return None


def _literals(member: TypedDictPlan) -> dict[str, Mapping[tuple[type[Any], Any], Any]]:
    return {
        field.name: field.plan.to_data
        for field in member.fields
        if field.default is None and isinstance(field.plan, LiteralPlan) and field.plan.natural
    }


def _merged(members: Iterable[Plan]) -> list[Plan]:
    """Return the members without repetition, literals merged, and literals of a type that is a member left out."""
    result: list[Plan] = []
    values: list[Any] = []
    for member in members:
        if isinstance(member, LiteralPlan):
            values += [value for value, _ in member.pairs]
        elif member not in result:
            result.append(member)
    whole = {kind for each in result for kind in each.classes}
    values = [value for value in values if type(value) not in whole]
    if values:
        result.append(literal_plan(values))
    dicts = [each for each in result if isinstance(each, TypedDictPlan)]
    key = _telling_key(dicts) if len(dicts) > 1 else None
    if key is None:
        return result
    return [*(each for each in result if each not in dicts), TypedDictsPlan(key, dicts)]


def _check_classes(members: Sequence[Plan], label: str) -> None:
    count = Counter(kind for each in members for kind in each.classes)
    for kind, times in count.items():
        if times > 1:
            raise Unfit(
                f"{label}: the members with the runtime type {kind.__name__} cannot be told apart",
                "use dataclasses, TypedDicts with a Literal key, or one type that holds them all",
            )


def _tagged(members: Sequence[Plan]) -> list[Plan]:
    """Return the members to tag: those whose kind of data another has too, unless the data is the value itself."""
    count = Counter(kind for each in members for kind in each.kinds)
    tagged = [
        each for each in members if any(count[kind] > 1 for kind in each.kinds) and not each.natural
    ]
    if tagged:  # beside tags, an object with any key could be taken for one
        tagged += [each for each in members if each.open and each not in tagged]
    return tagged


def _tags(tagged: Sequence[Plan]) -> dict[int, str]:
    """Return a tag for each plan: its short name, or its full one where two have the same."""
    count = Counter(each.label for each in tagged)
    tags = {id(each): each.label if count[each.label] == 1 else each.origin for each in tagged}
    if len(set(tags.values())) < len(tags):
        raise Unfit("two members of the union have the same name", "rename one of them")
    return tags
