"""A policy as a TOML text, and back. Everything in it is known, or the whole is refused: a rule with a typing error must not be a wider rule."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, cast

from outlast.errors import PolicyError
from outlast.journal.plan import printable
from outlast.policy.mode import Mode
from outlast.policy.opinion import Callback, Hook
from outlast.policy.policy import Policy
from outlast.policy.predicate import OPERATORS, Predicate
from outlast.policy.rule import EFFECTS, Effect, Rule
from outlast.policy.shown import shown
from outlast.policy.span import span_of
from outlast.policy.window import Window

LARGEST_FILE_BYTES = 1024 * 1024
_TOP = ("mode", "agents", "trusted", *EFFECTS)
_TEXTS = (
    "tool",
    "server",
    "agent",
    "principal",
    "tenant",
    "workflow",
    "role",
    "reason",
    "name",
    "sticky",
)
_RULE = (*_TEXTS, "when", "between", "expires_in")
_WINDOW = ("zone", "days", "hours")
_BARE = re.compile(r"[A-Za-z0-9_-]+")
_SHOWN = 60


def policy_of(
    text: str,
    *,
    file: str = "",
    hooks: tuple[Hook, ...] = (),
    callback: Callback | None = None,
    callback_tools: tuple[str, ...] = ("*",),
) -> Policy:
    """Return the policy that a TOML text holds, with hooks and a callback, which are code, as they are given.

    Args:
        file: Its name, for messages.

    Raises:
        PolicyError: It cannot be used; the message names file, table and key, and the hint says what to write.

    Example:
        ```python
        from outlast.policy import policy_of

        policy = policy_of('''
        mode = "dont_ask"

        [[deny]]
        tool = "pay"
        when = { amount = { greater = 100 } }
        reason = "over 100"
        ''')
        assert policy.mode == "dont_ask" and str(policy.rules[0]) == "deny pay when amount greater 100"
        ```
    """
    where = _Place(file)
    table = _table_of(text, where)
    where.refuse_unknown(table, _TOP)
    rules = tuple(
        rule for effect in EFFECTS for rule in _rules(table.get(effect, []), effect, where)
    )
    agents = where.table(
        table.get("agents", {}), "agents", 'as [agents], then researcher = ["search", "read_*"]'
    )
    trusted = where.table(
        table.get("trusted", {}),
        "trusted",
        'as [trusted], then files = "https://files.example/mcp"',
    )
    mode: Mode = table.get("mode", "default")
    try:
        return Policy(rules, mode, agents, hooks, callback, callback_tools, trusted)
    except PolicyError as error:
        raise where.of(error) from None


def toml_of(policy: Policy) -> str:
    """Return the data parts of a policy as TOML, which `policy_of` reads as the same policy.

    Raises:
        PolicyError: It has hooks or a callback: without them it would allow more than it does. Or it holds null against an argument.

    Example:
        ```python
        from outlast.policy import Policy, Rule, policy_of, toml_of

        policy = Policy(rules=(Rule("deny", "delete_*", reason="nothing is deleted"),))
        assert policy_of(toml_of(policy)) == policy
        ```
    """
    if policy.hooks or policy.callback is not None:
        raise PolicyError(
            "hooks and callbacks are code, which no file holds",
            hint="write a policy without them, and give them to PolicyFile",
        )
    found = policy.data()
    lines = [f"mode = {_written(found['mode'])}"]
    for name in ("agents", "trusted"):
        if table := found.get(name):
            lines += [
                "",
                f"[{name}]",
                *(f"{_key(key)} = {_written(value)}" for key, value in table.items()),
            ]
    for effect in EFFECTS:
        for rule in found.get(effect, []):
            lines += [
                "",
                f"[[{effect}]]",
                *(f"{_key(name)} = {_written(one)}" for name, one in rule.items()),
            ]
    return "\n".join(lines) + "\n"


def _table_of(text: str, where: _Place) -> dict[str, Any]:
    import tomllib  # not loaded with `import outlast`: most policies are written in Python, or there is none

    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise where.wrong(
            f"it is no TOML: {printable(str(error))}", "TOML is described at https://toml.io"
        ) from None
    except (RecursionError, ValueError):  # nested too deep, or a number of too many digits
        raise where.wrong(
            "no such TOML can be read", "write less deep tables, and shorter numbers"
        ) from None


class _Place:
    """Where in a file something stands.

    Args:
        table: The table, as `[[deny]] number 2`.
    """

    def __init__(self, file: str, table: str = "") -> None:
        self.file = file
        self.name = table

    def wrong(self, what: str, hint: str, key: str = "") -> PolicyError:
        """Return the error that something there is wrong."""
        parts = [self.file, self.name, key and f"key {key}", what]
        return PolicyError(
            ": ".join(filter(None, parts)), hint=hint, file=self.file, place=self.name, key=key
        )

    def of(self, error: PolicyError, key: str = "") -> PolicyError:
        """Return an error with the place where it arose."""
        return self.wrong(error.message, error.hint, key)

    def refuse_unknown(
        self, table: Mapping[str, Any], known: tuple[str, ...], key: str = ""
    ) -> None:
        """Refuse keys that mean nothing."""
        for name in table:
            if name not in known:
                path = f"{key}.{name}" if key else name
                raise self.wrong(
                    "there is no such key", f"keys here are {', '.join(known)}", path[:_SHOWN]
                )

    def table(self, value: Any, key: str, hint: str) -> dict[str, Any]:
        """Return a value that has to be a table."""
        if not isinstance(value, dict):
            raise self.wrong("it is no table", f"write it {hint}", key)
        return cast("dict[str, Any]", value)


def _rules(given: Any, effect: Effect, file: _Place) -> Iterator[Rule]:
    if not isinstance(given, list):
        raise file.wrong(
            "it is no array of tables", f"write each rule under a line [[{effect}]]", effect
        )
    for number, one in enumerate(cast("list[Any]", given), 1):
        place = _Place(file.file, f"[[{effect}]] number {number}")
        table = place.table(one, "", f"under a line [[{effect}]]")
        place.refuse_unknown(table, _RULE)
        if "tool" not in table:
            raise place.wrong("it names no tool", 'write tool = "*" for all of them', "tool")
        yield _rule(table, effect, place)


def _rule(table: dict[str, Any], effect: Effect, place: _Place) -> Rule:
    fields: dict[str, Any] = {}
    key = ""
    try:
        for key, value in table.items():
            fields[key] = _field(key, value, place)
        key = ""
        return Rule(effect, **fields)
    except PolicyError as error:
        raise (error if error.place or error.file else place.of(error, key)) from None


def _field(key: str, value: Any, place: _Place) -> Any:
    match key:
        case "when":
            return tuple(
                _predicates(
                    place.table(value, key, "as when = { amount = { greater = 100 } }"), place
                )
            )
        case "between":
            table = place.table(
                value,
                key,
                'as between = { zone = "UTC", days = ["mon-fri"], hours = "08:00-18:00" }',
            )
            place.refuse_unknown(table, _WINDOW, key)
            if "zone" not in table:
                raise place.wrong(
                    "it does not say whose clock counts",
                    'write zone = "Europe/Berlin", or zone = "UTC"',
                    "between.zone",
                )
            return Window(**table)
        case "expires_in":
            return span_of(value, key)
        case _:
            if not isinstance(value, str):
                raise place.wrong(f"it is no text: {shown(value)}", f'write {key} = "…"', key)
            return value


def _predicates(table: dict[str, Any], place: _Place) -> Iterator[Predicate]:
    for path, asked in table.items():
        key = f"when.{path}"[:_SHOWN]
        hint = f"as {{ greater = 100 }}; operators are {', '.join(OPERATORS)}"
        found = place.table(asked, key, hint)
        if not found:
            raise place.wrong("it asks nothing of the argument", f"write it {hint}", key)
        for operator, value in found.items():
            if operator not in OPERATORS:
                raise place.wrong(
                    "there is no such operator",
                    f'operators are {", ".join(OPERATORS)}; a path with dots stands in quotes: "{path}.{operator}" = {{ … }}'[
                        :400
                    ],
                    f"{key}.{operator}"[:_SHOWN],
                )
            try:
                yield Predicate(path, operator, value)
            except PolicyError as error:
                raise place.of(error, f"{key}.{operator}"[:_SHOWN]) from None


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else _written(name)


def _written(value: Any) -> str:
    """Return a value as TOML has it."""
    if isinstance(value, dict):
        table = cast("dict[str, Any]", value)
        fields = ", ".join(f"{_key(name)} = {_written(one)}" for name, one in table.items())
        return f"{{ {fields} }}" if fields else "{}"
    if isinstance(value, list):
        return f"[{', '.join(map(_written, cast('list[Any]', value)))}]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if value is None:
        raise PolicyError(
            "TOML has no null", hint="write exists = false, or keep the policy in Python"
        )
    return json.dumps(value)
