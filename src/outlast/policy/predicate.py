"""What a rule asks of a call's arguments: a closed set of operators, each on one value.

Every predicate says yes, no, or that it cannot tell: the value is missing, or of another type than the operator needs. What cannot be told
counts against the call: an allow rule does not match then, and a deny or ask rule does.
"""

from __future__ import annotations

import json
import math
import posixpath
import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from functools import lru_cache
from typing import Any, cast

from msgspec import Struct
from msgspec.structs import force_setattr

from outlast.errors import PolicyError
from outlast.journal.plan import kind_of
from outlast.policy.pattern import LONGEST_TEXT, check_pattern
from outlast.policy.shown import shown

_MAX_EXACT = (1 << 53) - 1
_DEEPEST = 10
"""Levels of lists and tables that a value is held against."""
_NUMBER = re.compile(r"[+-]?[0-9]{1,60}(?:\.[0-9]{1,60})?(?:[eE][+-]?[0-9]{1,3})?")
_LONGEST_PATH = 4_096
"""Characters of a path that is judged, as Linux takes them."""

_MISSING, _ODD = object(), object()
"""What is not there, and what could not be there: the value that should hold it is no object or array."""


class Predicate(Struct, frozen=True):
    """One thing that is asked of an argument.

    Args:
        path: The argument, and what lies in it, with dots between: `amount`, `customer.country`, `lines.0.price`.
        operator: `equals`, `not_equals`, `in`, `not_in`, `less`, `at_most`, `greater`, `at_least`, `matches`, `starts_with`, `inside`,
            `outside`, `exists`.
        value: What it is held against.

    Raises:
        PolicyError: An operator that there is not, or a value that it cannot use.

    Example:
        ```python
        from outlast.policy import Predicate

        large = Predicate("amount", "greater", 100)
        assert large.holds({"amount": "100.01"}) is True  # a Decimal as text is a number
        assert large.holds({"amount": 100}) is False
        assert large.holds({}) is None  # nobody can tell
        ```
    """

    path: str
    operator: str
    value: Any

    def __post_init__(self) -> None:
        """Refuse what could never be judged."""
        path: Any = self.path
        if not isinstance(path, str) or not path.isprintable() or not all(path.split(".")):
            raise PolicyError(
                f"{shown(self.path)} names no argument",
                hint="write it as amount, or customer.country",
            )
        if self.operator not in _OPERATORS:
            raise PolicyError(
                f"there is no operator {shown(self.operator)}",
                hint=f"there are {', '.join(_OPERATORS)}",
            )
        check = _OPERATORS[self.operator][1]
        force_setattr(self, "value", check(_settled(self.value)))

    def holds(self, arguments: Mapping[str, Any]) -> bool | None:
        """Say whether it holds of these arguments; None where that cannot be told."""
        found = _at(arguments, self.path)
        if self.operator == "exists":
            return None if found is _ODD else (found is not _MISSING) == self.value
        if found is _MISSING or found is _ODD:
            return None
        return _OPERATORS[self.operator][0](found, self.value)

    def __str__(self) -> str:
        """Return it in words, as `amount greater 100`."""
        return f"{self.path} {self.operator} {json.dumps(self.value, ensure_ascii=False)}"


def _at(arguments: Mapping[str, Any], path: str) -> Any:
    found: Any = arguments
    for name in path.split("."):
        if isinstance(found, Mapping):
            found = cast("Mapping[str, Any]", found).get(name, _MISSING)
        elif isinstance(found, list) and name.isascii() and name.isdigit() and len(name) < 10:
            items = cast("list[Any]", found)
            found = items[int(name)] if int(name) < len(items) else _MISSING
        else:
            return _ODD
        if found is _MISSING:
            return _MISSING
    return found


def _settled(value: Any, depth: int = 0) -> Any:
    """Return a policy's value as JSON has it: one number is written in one way, and nothing is shared."""
    kind = kind_of(value)
    if kind is bool or value is None or (kind is str and _is_text(value)):
        return value
    if kind is int and abs(value) <= _MAX_EXACT:
        return value
    if kind is float and math.isfinite(value):
        whole = value.is_integer() and abs(value) <= _MAX_EXACT
        return int(value) if whole else value
    if kind in (list, tuple) and depth < _DEEPEST:
        return [_settled(one, depth + 1) for one in value]
    if (
        kind is dict
        and depth < _DEEPEST
        and all(type(name) is str and _is_text(name) for name in value)
    ):
        return {name: _settled(one, depth + 1) for name, one in value.items()}
    raise PolicyError(
        f"{shown(value)} cannot be held against an argument",
        hint='write a text, number, boolean, list or table; times, Decimals and numbers beyond 2^53 as text: "1999.95"',
    )


def _is_text(value: str) -> bool:
    """Whether it can be written down: it holds no lone surrogate."""
    return not any("\ud800" <= character <= "\udfff" for character in value)


def _number(value: Any) -> Decimal | None:
    """Return the number that a value is, also as the text of a Decimal."""
    if type(value) is int:
        return Decimal(value)
    if type(value) is float:
        return Decimal(repr(value))
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        return Decimal(value)
    return None


def _kind(value: Any) -> str:
    return "number" if type(value) in (int, float) else type(value).__name__


def _equal(found: Any, value: Any) -> bool | None:
    """Say whether two values are the same JSON; None where they are of different types. A number is also equal to its text."""
    if _kind(value) == "number":
        mine, yours = _number(found), _number(value)
        return None if mine is None else mine == yours
    if _kind(found) != _kind(value):
        return None
    if isinstance(value, list):
        items, wanted = cast("list[Any]", found), cast("list[Any]", value)
        return len(items) == len(wanted) and all(map(_is_equal, items, wanted))
    if isinstance(value, dict):
        fields, named = cast("dict[str, Any]", found), cast("dict[str, Any]", value)
        return fields.keys() == named.keys() and all(
            _is_equal(fields[name], one) for name, one in named.items()
        )
    return found == value


def _is_equal(found: Any, value: Any) -> bool:
    return _equal(found, value) is True


def _not_equal(found: Any, value: Any) -> bool | None:
    return _not(_equal(found, value))


def _not(said: bool | None) -> bool | None:
    return None if said is None else not said


def _within(found: Any, values: Any) -> bool | None:
    said = [_equal(found, one) for one in values]
    return True if True in said else (False if False in said else None)


def _not_within(found: Any, values: Any) -> bool | None:
    return _not(_within(found, values))


def _compared(judge: Callable[[Decimal, Decimal], bool]) -> Callable[[Any, Any], bool | None]:
    def compare(found: Any, value: Any) -> bool | None:
        mine, yours = _number(found), _number(value)
        return None if mine is None or yours is None else judge(mine, yours)

    return compare


def _matches(found: Any, pattern: str) -> bool | None:
    if not isinstance(found, str) or len(found) > LONGEST_TEXT:
        return None
    return _compiled(pattern).fullmatch(found) is not None


@lru_cache(maxsize=256)
def _compiled(pattern: str) -> re.Pattern[str]:
    return re.compile(pattern)


def _starts_with(found: Any, prefix: str) -> bool | None:
    return found.startswith(prefix) if isinstance(found, str) else None


def _inside(found: Any, folder: str) -> bool | None:
    """Say whether a path lies in a folder, by its text alone. Links are not followed; what some tools expand cannot be told."""
    if not isinstance(found, str) or not _is_clear_path(found):
        return None
    if found.startswith("/") != folder.startswith("/"):
        return None
    path = _normal(found)
    if folder in ("/", "."):
        return path != ".." and not path.startswith("../")
    return path == folder or path.startswith(f"{folder}/")


def _outside(found: Any, folder: str) -> bool | None:
    return _not(_inside(found, folder))


def _is_clear_path(path: str) -> bool:
    """Whether a path means the same to every tool: it is not empty, `~` and backslashes have no part in it, and nothing in it is hidden."""
    return (
        0 < len(path) <= _LONGEST_PATH
        and not path.startswith("~")
        and "\\" not in path
        and path.isprintable()
    )


def _normal(path: str) -> str:
    found = posixpath.normpath(path)
    return f"/{found.lstrip('/')}" if found.startswith("/") else found


def _any_value(value: Any) -> Any:
    return value


def _some_values(value: Any) -> Any:
    if not isinstance(value, list) or not value:
        raise PolicyError(f"{shown(value)} is no list of values", hint='write in = ["EUR", "USD"]')
    return cast("list[Any]", value)


def _a_number(value: Any) -> Any:
    if _number(value) is None:
        raise PolicyError(
            f"{shown(value)} is no number", hint='write greater = 100, or greater = "99.95"'
        )
    return value


def _a_text(value: Any) -> Any:
    if not isinstance(value, str) or not value:
        raise PolicyError(f"{shown(value)} is no text", hint='write starts_with = "draft-"')
    return value


def _a_pattern(value: Any) -> Any:
    return check_pattern(value)


def _a_folder(value: Any) -> Any:
    if not isinstance(value, str) or not _is_clear_path(value) or ".." in value.split("/"):
        raise PolicyError(
            f"{shown(value)} is no folder",
            hint='write a path with / between its parts, and without .. or ~: inside = "/srv/project"',
        )
    return _normal(value)


def _a_choice(value: Any) -> Any:
    if type(value) is not bool:
        raise PolicyError(f"{shown(value)} is neither true nor false", hint="write exists = true")
    return value


_OPERATORS: dict[str, tuple[Callable[[Any, Any], bool | None], Callable[[Any], Any]]] = {
    "equals": (_equal, _any_value),
    "not_equals": (_not_equal, _any_value),
    "in": (_within, _some_values),
    "not_in": (_not_within, _some_values),
    "less": (_compared(lambda found, value: found < value), _a_number),
    "at_most": (_compared(lambda found, value: found <= value), _a_number),
    "greater": (_compared(lambda found, value: found > value), _a_number),
    "at_least": (_compared(lambda found, value: found >= value), _a_number),
    "matches": (_matches, _a_pattern),
    "starts_with": (_starts_with, _a_text),
    "inside": (_inside, _a_folder),
    "outside": (_outside, _a_folder),
    "exists": (lambda found, value: None, _a_choice),
}
"""Of each operator, how it judges what is there, and what it can be held against. `exists` judges what is not there, too."""

OPERATORS = tuple(_OPERATORS)
