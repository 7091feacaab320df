"""From an annotation to its plan: the one place that knows which types can be stored.

Annotations alone decide. A type that cannot be stored, or whose values could not be told apart, is refused here, when
the function is registered, and never when a value is at hand.
"""

from __future__ import annotations

import collections
import collections.abc
import enum
import typing
from collections.abc import Callable
from typing import Any

from outlast.journal.choice import TablePlan, enum_plan, literal_plan
from outlast.journal.container import MappingPlan, PairsPlan, SequencePlan, SetPlan, TuplePlan
from outlast.journal.hint import alias_value, bare_of, described, is_alias, union_members
from outlast.journal.plan import Plan, ReferencePlan, Unfit, kind_of, shown_name
from outlast.journal.record import Field
from outlast.journal.scalar import (
    ComplexPlan,
    FloatPlan,
    IntPlan,
    NaturalPlan,
    NullPlan,
    RangePlan,
    TextPlan,
)
from outlast.journal.text import IntKeyPlan, StringPlan, string_plan
from outlast.journal.union import UnionPlan

_abc = collections.abc
_UNION_OF: dict[Any, tuple[type[Any], ...]] = {
    _abc.Sequence: (list, tuple),
    _abc.Collection: (list, tuple),
    _abc.Iterable: (list, tuple),
    _abc.Set: (set, frozenset),
}
_SAME_AS: dict[Any, Any] = {
    _abc.MutableSequence: list,
    _abc.MutableSet: set,
    _abc.Mapping: dict,
    _abc.MutableMapping: dict,
}
_LEAVES: dict[Any, Callable[[], Plan]] = {
    type(None): NullPlan,
    bool: lambda: NaturalPlan(bool),
    int: IntPlan,
    float: FloatPlan,
    str: TextPlan,
    complex: ComplexPlan,
    range: RangePlan,
    typing.Never: NullPlan,
    typing.NoReturn: NullPlan,
}
_HINT = "annotate a type that can be stored: a dataclass, a list of one, str, int, …"


class JsonPlan(UnionPlan):
    """`Any` and `object`: JSON data, and nothing else."""

    __slots__ = ()

    def __init__(self) -> None:
        items = SequencePlan(list, self)
        members = MappingPlan(dict, TextPlan(), self)
        natural = [NullPlan(), NaturalPlan(bool), IntPlan(), FloatPlan(), TextPlan()]
        super().__init__([*natural, items, members])
        self.label = "JSON data"

    def refuse(self, value: Any) -> Unfit:
        """Return the refusal of a value that is not JSON data."""
        return Unfit(
            f"an unannotated place holds JSON data only, got {shown_name(kind_of(value))}",
            "annotate the type of this value",
        )


class Builder:
    """Builds the plan of one annotation, with the plans of all that it names."""

    def __init__(self) -> None:
        self._known: dict[Any, Plan] = {}
        self._json: Plan | None = None

    def build(self, annotation: Any) -> Plan:
        """Return the plan of an annotation.

        Raises: Unfit: It cannot be stored; the path leads through the fields of the type.
        """
        key = annotation if _hashable(annotation) else None
        if key is not None and key in self._known:
            return self._known[key]
        bare = bare_of(annotation)
        members = [] if is_alias(bare) else union_members(bare)
        if len(members) == 1:
            plan = self._single(members[0])
            return plan if key is None else self._known.setdefault(key, plan)
        reference = ReferencePlan(str(annotation))  # for what leads back to this alias or union
        if key is not None:
            self._known[key] = reference
        plan = self.build(alias_value(bare)) if is_alias(bare) else self._union(members)
        reference.target = plan
        if key is not None:
            self._known[key] = plan
        return plan

    def _union(self, members: list[Any]) -> Plan:
        if not members:
            return NullPlan()
        if any(each in (Any, object) for each in members):
            if any(each not in (Any, object, type(None)) for each in members):
                raise Unfit("Any and other types in one union", "annotate either Any or the types")
            return self._any()
        plans: list[Plan] = []
        for member in members:
            plan = self.build(member)
            plans += plan.members if type(plan) is UnionPlan else [plan]
        return UnionPlan(plans)

    def _any(self) -> Plan:
        self._json = self._json or JsonPlan()
        return self._json

    def _single(self, leaf: Any) -> Plan:
        if leaf in (Any, object):
            return self._any()
        origin: Any = typing.get_origin(leaf) or leaf
        arguments = typing.get_args(leaf)
        if origin in _LEAVES:
            return _LEAVES[origin]()
        if origin is typing.Literal:
            return literal_plan(arguments)
        if origin in _UNION_OF:
            item = self._under("[]", arguments[0] if arguments else Any)
            return UnionPlan([collection_plan(each, item) for each in _UNION_OF[origin]])
        origin = _SAME_AS.get(origin, origin)
        if origin is tuple:
            return self._tuple(leaf, arguments)
        if not isinstance(origin, type):
            raise Unfit(f"{leaf!r} cannot be stored", _HINT)
        if origin in (list, collections.deque, set, frozenset):
            return collection_plan(origin, self._under("[]", arguments[0] if arguments else Any))
        if origin in (dict, collections.OrderedDict, collections.Counter):
            return self._mapping(origin, arguments)
        return self._class(leaf, origin, arguments)

    def _under(self, step: str, annotation: Any) -> Plan:
        try:
            return self.build(annotation)
        except Unfit as unfit:
            raise unfit.under(step) from None

    def _tuple(self, leaf: Any, arguments: tuple[Any, ...]) -> Plan:
        if leaf in (tuple, typing.Tuple):  # noqa: UP006  (bare, which is not the empty tuple)
            return SequencePlan(tuple, self._any())
        if len(arguments) == 2 and arguments[1] is Ellipsis:
            return SequencePlan(tuple, self._under("[]", arguments[0]))
        return TuplePlan(tuple(self._under(f"[{n}]", each) for n, each in enumerate(arguments)))

    def _mapping(self, kind: type[Any], arguments: tuple[Any, ...]) -> Plan:
        if kind is collections.Counter:
            arguments = (*(arguments or (str,)), int)
        key_type, value_type = arguments or (str, Any)
        key = self._under("[key]", str if key_type in (Any, object) else key_type)
        value = self._under("[]", value_type)
        if type(key) is IntPlan:
            key = IntKeyPlan()
        if isinstance(key, StringPlan | TextPlan | TablePlan) and not key.kinds - {str}:
            return MappingPlan(kind, key, value)
        return PairsPlan(kind, key, value)

    def _class(self, leaf: Any, kind: type[Any], arguments: tuple[Any, ...]) -> Plan:
        if issubclass(kind, enum.Enum):
            return enum_plan(kind)
        found = string_plan(kind)
        if found is not None:
            return found
        plan, fields = described(kind, arguments, self._any)
        self._known[leaf] = plan  # before its fields, which may lead back to it
        plan.fields = tuple(
            Field(each.name, self._under(each.name, each.annotation), each.default)
            for each in fields
        )
        return plan


def collection_plan(kind: type[Any], item: Plan) -> Plan:
    """Return the plan of a list, tuple, deque, set or frozenset of items."""
    return SetPlan(kind, item) if kind in (set, frozenset) else SequencePlan(kind, item)


def _hashable(annotation: Any) -> bool:
    try:
        hash(annotation)
    except TypeError:  # an Annotated with a list, for one
        return False
    return True
