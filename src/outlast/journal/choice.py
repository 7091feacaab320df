"""Plans of closed sets of values: Enum, Flag and Literal."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import Any

from outlast.journal.plan import Plan, Unfit, Walk, kind_of, unread
from outlast.journal.scalar import check_int
from outlast.journal.text import write_bytes


class TablePlan(Plan):
    """A closed set of values, each with its data: an Enum, or a Literal.

    Args:
        pairs: Each value with its data; a value is recognised by type and equality.
    """

    __slots__ = ("pairs", "to_data", "to_value")

    def __init__(self, label: str, pairs: list[tuple[Any, Any]]) -> None:
        super().__init__(
            label, [kind_of(value) for value, _ in pairs], [kind_of(data) for _, data in pairs]
        )
        self.pairs = pairs
        self.to_data: dict[tuple[type[Any], Any], Any] = {
            (type(value), value): data for value, data in pairs
        }
        self.to_value: dict[tuple[type[Any], Any], Any] = {
            (type(data), data): value for value, data in pairs
        }

    def encode(self, value: Any, walk: Walk) -> Any:
        """Look the value up."""
        if type(value) not in self.classes:
            raise self.refuse(value)
        try:
            return self.to_data[type(value), value]
        except KeyError:
            raise Unfit(f"not one of the values of {self.label}") from None
        except Exception as error:  # noqa: BLE001  (an Enum may bring its own __hash__ and __eq__)
            raise unread(error) from None

    def decode(self, data: Any, walk: Walk) -> Any:
        """Look the data up."""
        if type(data) not in self.kinds:
            raise self.misfit(data)
        try:
            return self.to_value[type(data), data]
        except (KeyError, TypeError):
            raise Unfit(f"not one of the values of {self.label}", "was a member removed?") from None


class FlagPlan(Plan):
    """A Flag, as its number, since combinations have no name."""

    __slots__ = ("kind",)

    def __init__(self, kind: type[enum.Flag]) -> None:
        super().__init__(kind.__name__, (kind,), (int,))
        self.kind = kind

    def encode(self, value: Any, walk: Walk) -> int:
        """Write the number."""
        if type(value) is not self.kind:
            raise self.refuse(value)
        check_int(value.value)
        return int(value.value)

    def decode(self, data: Any, walk: Walk) -> Any:
        """Read the number."""
        if type(data) is not int:
            raise self.misfit(data)
        try:
            value = self.kind(data)
        except Exception:  # noqa: BLE001  (a Flag may bring its own _missing_)
            value = None
        if type(value) is not self.kind:
            raise Unfit(f"not a combination of {self.label}", "was a member removed?")
        return value


class LiteralPlan(TablePlan):
    """A Literal: each value as it is, an Enum's member by its own data, bytes as base64."""

    __slots__ = ()

    @property
    def natural(self) -> bool:
        """Say whether every value is its own data."""
        return all(value is data for value, data in self.pairs)


def literal_plan(values: Iterable[Any]) -> LiteralPlan:
    """Return the plan of a Literal.

    Raises: Unfit: Two of the values have the same data.
    """
    pairs: dict[tuple[type, Any], tuple[Any, Any]] = {}
    for value in values:
        data = value
        if isinstance(value, enum.Enum):
            data = enum_plan(type(value)).encode(value, Walk(1 << 20))
        elif isinstance(value, bytes):
            data = write_bytes(value)
        kind = kind_of(data)
        if pairs.setdefault((kind, data), (value, data))[0] is not value:
            raise Unfit("two values of the Literal are the same in JSON", "leave one out")
    return LiteralPlan("Literal", list(pairs.values()))


def enum_plan(kind: type[enum.Enum]) -> Plan:
    """Return the plan of an Enum: by value where all values are texts or all are integers, else by name."""
    if issubclass(kind, enum.Flag):
        return FlagPlan(kind)
    members = list(kind)
    for plain in (str, int):
        if members and all(type(each.value) is plain for each in members):
            return TablePlan(kind.__name__, [(each, each.value) for each in members])
    return TablePlan(kind.__name__, [(each, each.name) for each in members])
