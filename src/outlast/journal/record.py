"""Plans of types with named fields: dataclasses, msgspec Structs, Pydantic models, TypedDicts, NamedTuples.

A record is an object by field name. Fields that stored data has and the type has no longer are passed over; fields that
it lacks take their default. A record is restored, not constructed: what was stored comes back, whatever `__init__` or a
validator would make of it today (a Struct runs its `__post_init__`, since only its constructor can make one).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cached_property
from typing import Any, cast

import msgspec
from msgspec import structs

from outlast.journal.plan import Plan, Unfit, Walk, key_step, type_name, unread, unrestored

ABSENT: Any = object()
"""Stands for a field without value."""


class Field:
    """One field of a record.

    Args:
        name: Its name in Python and in JSON.
        plan: How its value is encoded.
        default: Makes the value of a field that stored data lacks; None where it must be there.
    """

    __slots__ = ("default", "name", "plan")

    def __init__(self, name: str, plan: Plan, default: Callable[[], Any] | None) -> None:
        self.name = name
        self.plan = plan
        self.default = default


def read_field(value: Any, name: str) -> Any:
    """Return a field's value.

    Raises: Unfit: It has none, or the author's code raised.
    """
    try:
        return getattr(value, name)
    except AttributeError:
        raise Unfit("the field has no value") from None
    except Exception as error:  # noqa: BLE001  (properties are the author's code)
        raise unread(error) from None


def make_default(make: Callable[[], Any]) -> Any:
    """Return a new default.

    Raises: Unfit: The author's code raised.
    """
    try:
        return make()
    except Exception as error:  # noqa: BLE001  (default factories are the author's code)
        raise unrestored(error) from None


class RecordPlan(Plan):
    """What all records share; `fields` is set once the fields' own plans exist, so that a type can contain itself."""

    __slots__ = ("fields", "kind")

    def __init__(self, kind: type[Any], label: str | None = None) -> None:
        super().__init__(label or kind.__name__, (kind,), (dict,))
        self.origin = type_name(kind)
        self.kind = kind
        self.fields: tuple[Field, ...] = ()

    def encode(self, value: Any, walk: Walk) -> dict[str, Any]:
        """Encode each field."""
        if type(value) is not self.kind:
            raise self.refuse(value)
        walk.enter(len(self.fields))
        data: dict[str, Any] = {}
        name = ""
        try:
            for field in self.fields:
                name = field.name
                each = read_field(value, name)
                if each is not msgspec.UNSET:
                    data[name] = field.plan.encode(each, walk)
        except Unfit as unfit:
            raise unfit.under(name) from None
        try:
            self.check_rest(value)
        except Unfit:
            raise
        except Exception as error:  # noqa: BLE001  (a __dict__ may be the author's code)
            raise unread(error) from None
        walk.depth -= 1
        return data

    def decode(self, data: Any, walk: Walk) -> Any:
        """Decode each field and restore the record."""
        if type(data) is not dict:
            raise self.misfit(data)
        walk.enter(0)
        values = self.decode_fields(cast("dict[str, Any]", data), walk)
        walk.depth -= 1
        try:
            return self.restore(values)
        except Exception as error:  # noqa: BLE001  (a __post_init__ is the author's code)
            raise unrestored(error) from None

    def decode_fields(self, data: Mapping[str, Any], walk: Walk) -> dict[str, Any]:
        """Return the value of each field, by name."""
        values: dict[str, Any] = {}
        name = ""
        try:
            for field in self.fields:
                name = field.name
                each = data.get(name, ABSENT)
                if each is not ABSENT:
                    values[name] = field.plan.decode(each, walk)
                elif field.default is not None:
                    values[name] = make_default(field.default)
                else:
                    raise Unfit(f"the field of {self.label} is missing", "give it a default")
        except Unfit as unfit:
            raise unfit.under(name) from None
        return values

    def check_rest(self, value: Any) -> None:
        """Refuse what the fields do not hold.

        Raises: Unfit: The value has an attribute that is not a field.
        """

    def restore(self, values: dict[str, Any]) -> Any:
        """Return the record with these fields."""
        raise NotImplementedError

    def check_attributes(self, value: Any) -> None:
        """Refuse attributes beside the fields, apart from cached properties.

        Raises: Unfit: There is one.
        """
        attributes: dict[str, Any] | None = getattr(value, "__dict__", None)
        if not attributes:
            return
        for name in attributes.keys() - {field.name for field in self.fields}:
            if not isinstance(getattr(self.kind, name, None), cached_property):
                raise Unfit(
                    f"the attribute is not a field of {self.label}", "declare it as a field"
                ).under(name)


class DataclassPlan(RecordPlan):
    """A dataclass."""

    __slots__ = ()

    def check_rest(self, value: Any) -> None:
        """Refuse attributes that are no fields."""
        self.check_attributes(value)

    def restore(self, values: dict[str, Any]) -> Any:
        """Set the fields of a bare instance."""
        record: Any = object.__new__(self.kind)
        for name, value in values.items():
            object.__setattr__(record, name, value)  # also where the class is frozen
        return record


class StructPlan(RecordPlan):
    """A msgspec Struct."""

    __slots__ = ()

    def check_rest(self, value: Any) -> None:
        """Refuse attributes that are no fields."""
        self.check_attributes(value)

    def restore(self, values: dict[str, Any]) -> Any:
        """Construct, then set the fields again to what was stored."""
        record = self.kind(**values)
        for name, value in values.items():
            structs.force_setattr(record, name, value)
        return record


class NamedTuplePlan(RecordPlan):
    """A NamedTuple, as an object, so that it can gain a field with a default."""

    __slots__ = ()

    def check_rest(self, value: Any) -> None:
        """Refuse attributes that are no fields."""
        self.check_attributes(value)

    def restore(self, values: dict[str, Any]) -> Any:
        """Make the tuple of the values in the order of its fields."""
        make: Callable[[Iterable[Any]], Any] = getattr(self.kind, "_make")  # noqa: B009
        return make(values.values())


class TypedDictPlan(RecordPlan):
    """A TypedDict: a plain dict with known keys, of which some may be absent."""

    __slots__ = ()

    def __init__(self, declaration: type) -> None:
        super().__init__(dict, declaration.__name__)
        self.origin = type_name(declaration)

    def encode(self, value: Any, walk: Walk) -> dict[str, Any]:
        """Encode each key that is there; a key that is not declared is refused."""
        if type(value) is not dict:
            raise self.refuse(value)
        members = cast("dict[Any, Any]", value)
        walk.enter(len(members))
        data: dict[str, Any] = {}
        name = ""
        try:
            for field in self.fields:
                name = field.name
                each = members.get(name, ABSENT)
                if each is not ABSENT:
                    data[name] = field.plan.encode(each, walk)
                elif field.default is None:
                    raise Unfit(f"the key of {self.label} is missing")
        except Unfit as unfit:
            raise unfit.under(name) from None
        if len(data) != len(members):
            extra = next(key for key in members if key not in data)
            raise Unfit(f"a key that {self.label} does not declare").under(key_step(extra))
        walk.depth -= 1
        return data

    def restore(self, values: dict[str, Any]) -> dict[str, Any]:
        """Leave out the keys that are absent."""
        return {name: value for name, value in values.items() if value is not ABSENT}


class ModelPlan(RecordPlan):
    """A Pydantic model; also one that was built without validation and lacks fields.

    `$set` names the fields that were set where that is not all of them, `$absent` those without value.
    """

    __slots__ = ("extra", "rest")

    def __init__(self, kind: Any, rest: Plan) -> None:
        super().__init__(kind)
        self.rest = rest
        self.extra: bool = kind.model_config.get("extra") == "allow"

    @property
    def open(self) -> bool:
        """Say whether the model takes extra fields."""
        return self.extra

    def encode(self, value: Any, walk: Walk) -> dict[str, Any]:
        """Encode the fields that have a value, then the extra ones."""
        if type(value) is not self.kind:
            raise self.refuse(value)
        walk.enter(len(self.fields))
        members: dict[str, Any] = dict(value.__dict__)
        data: dict[str, Any] = {}
        name = ""
        try:
            for field in self.fields:
                name = field.name
                each = members.pop(name, ABSENT)
                if each is not ABSENT:
                    data[name] = field.plan.encode(each, walk)
            absent = [field.name for field in self.fields if field.name not in data]
            extra: dict[str, Any] = value.__pydantic_extra__ or {}
            for name, each in extra.items():
                if name.startswith("$"):
                    raise Unfit("names that begin with $ are taken")
                data[name] = self.rest.encode(each, walk)
        except Unfit as unfit:
            raise unfit.under(name) from None
        self.check_model(value, members)
        self._note(data, "$absent", absent)
        chosen = sorted(name for name in value.model_fields_set if name in data)
        self._note(data, "$set", chosen, when=len(chosen) != len(data) - ("$absent" in data))
        walk.depth -= 1
        return data

    def _note(
        self, data: dict[str, Any], key: str, names: list[str], *, when: bool | None = None
    ) -> None:
        if bool(names) if when is None else when:
            data[key] = names

    def check_model(self, value: Any, members: Mapping[str, Any]) -> None:
        """Refuse what would be lost: private attributes that were changed, attributes that are no fields.

        Raises: Unfit: There is one.
        """
        for name in members:
            if not isinstance(getattr(self.kind, name, None), cached_property):
                raise Unfit(
                    f"the attribute is not a field of {self.label}", "declare it as a field"
                ).under(name)
        private: Mapping[str, Any] = getattr(value, "__pydantic_private__", None) or {}
        if not private:
            return
        defaults = self._private()
        for name, each in private.items():
            if name not in defaults or not _is_equal(defaults[name], each):
                raise Unfit("a private attribute would be lost", "make it a field").under(name)

    def _private(self) -> dict[str, Any]:
        model: Any = self.kind
        return {name: each.get_default() for name, each in model.__private_attributes__.items()}

    def decode(self, data: Any, walk: Walk) -> Any:
        """Decode the fields, then the extra ones, and restore the model without validation."""
        if type(data) is not dict:
            raise self.misfit(data)
        stored = cast("dict[str, Any]", data)
        walk.enter(0)
        absent = _names(stored.get("$absent", []))
        chosen = _names(stored.get("$set", [name for name in stored if not name.startswith("$")]))
        present = [field for field in self.fields if field.name not in absent]
        part = RecordPlan(self.kind)
        part.fields = tuple(present)
        values = part.decode_fields(stored, walk)
        extra = self._decode_extra(stored, walk) if self.extra else None
        walk.depth -= 1
        known = values.keys() | (extra or {}).keys()
        return self._restore(values, extra, {name for name in chosen if name in known})

    def _decode_extra(self, stored: Mapping[str, Any], walk: Walk) -> dict[str, Any]:
        known = {field.name for field in self.fields} | {"$set", "$absent"}
        extra: dict[str, Any] = {}
        name = ""
        try:
            for name, each in stored.items():
                if name in known:
                    continue
                if name.startswith("$"):
                    raise Unfit("names that begin with $ are taken")
                extra[name] = self.rest.decode(each, walk)
        except Unfit as unfit:
            raise unfit.under(name) from None
        return extra

    def _restore(
        self, values: dict[str, Any], extra: dict[str, Any] | None, chosen: set[str]
    ) -> Any:
        model: Any = self.kind
        record = model.__new__(model)
        object.__setattr__(record, "__dict__", values)
        object.__setattr__(record, "__pydantic_fields_set__", chosen)
        if not model.__pydantic_root_model__:
            object.__setattr__(record, "__pydantic_extra__", extra)
            object.__setattr__(record, "__pydantic_private__", self._private() or None)
        return record


def _is_equal(one: Any, other: Any) -> bool:
    try:
        return bool(one == other)
    except Exception as error:  # noqa: BLE001  (an author's __eq__ may raise anything)
        raise unread(error) from None


def _names(data: Any) -> set[str]:
    names = cast("list[Any]", data) if isinstance(data, list) else [None]
    texts = {each for each in names if isinstance(each, str)}
    if len(texts) != len(names):
        raise Unfit("expected an array of field names")
    return texts
