"""What an Idempotency-Key looks like, and how it is read from a request's header.

The value is a Structured Field Item that is a String (`"8e03978e-40d5"`, with its quotes); parameters have no meaning. Whatever is
not in the published format is refused before anything is looked up with it.

Source: draft-ietf-httpapi-idempotency-key-header; RFC 9651, 3.3.3.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, cast

import http_sf

from outlast.errors import DefinitionError
from outlast.http.asgi import Scope, values_of

HEADER = "idempotency-key"
LONGEST = 255
_MOST = 1024
_LONGEST_VALUE_BYTES = 8192
"""Beyond it a header is not parsed: the longest key, each character escaped, and room for parameters."""
_RAW = re.compile(r"[!#-+\--:<-~]+")
"""An unquoted key: visible ASCII but for the quote, and for comma and semicolon, which would end it."""


class MalformedKeyError(ValueError):
    """A header that is not in the published format; its text says why, to the client."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyFormat:
    """The published format of a key.

    Args:
        shortest: Fewest characters. With keys that can be guessed one client could ask for another one's answers, were it not for the principal.
        longest: Most characters, up to 1024.
        pattern: A regular expression for the whole key, as `[0-9a-f-]{36}`; any printable ASCII by default.
        lenient: Take an unquoted value too, as most vendors' clients send it.

    Raises:
        DefinitionError: The lengths are none, or the pattern is no regular expression.

    Example:
        ```python
        from outlast.http import KeyFormat

        uuids = KeyFormat(shortest=36, longest=36, pattern="[0-9a-f-]{36}", lenient=True)
        ```
    """

    shortest: int = 1
    longest: int = LONGEST
    pattern: str = ""
    lenient: bool = False

    def __post_init__(self) -> None:
        shortest, longest, pattern, lenient = self._given()
        if type(shortest) is not int or type(longest) is not int:
            raise DefinitionError(
                f"shortest={shortest!r}, longest={longest!r} are no lengths", hint="give integers"
            )
        if not isinstance(pattern, str) or not isinstance(lenient, bool):
            raise DefinitionError(
                f"pattern={pattern!r}, lenient={lenient!r} cannot be",
                hint='a pattern is text, "" for none; lenient is True or False',
            )
        if not 1 <= self.shortest <= self.longest <= _MOST:
            raise DefinitionError(
                f"a key cannot have from {self.shortest} to {self.longest} characters",
                hint=f"shortest is at least 1, longest at most {_MOST}",
            )
        try:
            re.compile(self.pattern)
        except re.error as error:
            raise DefinitionError(
                f"the pattern of a key is no regular expression: {error}",
                hint="it is one of Python's, for the whole key: `[0-9a-f-]{36}`",
            ) from None

    def _given(self) -> tuple[Any, Any, Any, Any]:
        return self.shortest, self.longest, self.pattern, self.lenient

    def read(self, scope: Scope) -> str | None:
        """Return the key of a request, or None when it has none.

        Raises: MalformedKeyError: The header is there, and not in this format.
        """
        values = values_of(scope, HEADER)
        if not values:
            return None
        if len(values) > 1:
            raise MalformedKeyError("the header is there more than once")
        if len(values[0]) > _LONGEST_VALUE_BYTES:
            raise MalformedKeyError(f"the header is longer than {_LONGEST_VALUE_BYTES} bytes")
        key = self._value(values[0])
        if not self.shortest <= len(key) <= self.longest or not key.strip():
            raise MalformedKeyError(
                f"a key has from {self.shortest} to {self.longest} characters, and is not blank"
            )
        if self.pattern and re.fullmatch(self.pattern, key) is None:
            raise MalformedKeyError(f"a key has this pattern: {self.pattern}")
        return key

    def _value(self, value: bytes) -> str:
        if self.lenient and not value.lstrip().startswith(b'"'):
            raw = value.decode("latin-1").partition(";")[0].strip()
            if _RAW.fullmatch(raw) is None:
                raise MalformedKeyError("an unquoted key is visible ASCII without comma or quote")
            return raw
        try:
            item = cast("tuple[object, object]", http_sf.parse(value, tltype="item"))
        except ValueError:
            item = (None, None)
        parsed = item[0]
        # A token, a number, a date: Structured Fields too, and some of them a kind of `str`.
        if type(parsed) is not str:
            raise MalformedKeyError('the value is no quoted string; send Idempotency-Key: "…"')
        return parsed
