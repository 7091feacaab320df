"""An answer as it is kept under its key, and given again.

Kept is JSON that an operator can read and write: `{"status": 201, "headers": [["content-type", "text/plain"]], "body": "done"}`.
A body that is no UTF-8 stands as `body_base64`. An answer that could not be kept leaves its status and the reason.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import msgspec

from outlast.errors import DecodeError, DefinitionError
from outlast.http.asgi import Headers, Send, send_whole
from outlast.journal.parse import NotJsonError, parse, parse_as

REPLAYED = "idempotent-replayed"

HOP_BY_HOP = frozenset(
    {
        "connection",
        "content-length",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authentication-info",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
        REPLAYED,
    }
)
"""Never kept: they belong to one connection (RFC 9110, 7.6.1), or are written anew with each answer."""

_UNREADABLE = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f]")
"""Control characters that no text holds, and that JSON writes with six characters each."""
_NESTING = 8
_NAME = re.compile(r"[!#$%&'*+\-.^_`|~0-9a-z]+")
_VALUE = re.compile(r"[\t\x20-\x7e\x80-\xff]*")


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole HTTP answer.

    Args:
        status: From 200 to 599.
        headers: Names in lower case, and values.

    Raises:
        DefinitionError: The status is none of an answer, or a header cannot be sent.

    Example:
        ```python
        from outlast.http import Answer

        answer = Answer.json(201, {"payment": 4711}, headers=[("location", "/payments/4711")])
        assert answer.body == b'{"payment": 4711}'
        ```
    """

    status: int
    headers: Headers = ()
    body: bytes = b""

    def __post_init__(self) -> None:
        body: Any = self.body
        why = _unfit(self.status, self.headers)
        if why or not isinstance(body, bytes):
            why = why or f"its body is {type(body).__name__}, not bytes"
            raise DefinitionError(f"this is no answer: {why}", hint="mend what makes the answer")

    @classmethod
    def json(cls, status: int, value: Any, *, headers: Iterable[tuple[str, str]] = ()) -> Answer:
        """Return an answer whose body is `value` as JSON.

        Example:
            ```python
            from outlast.http import Answer

            assert Answer.json(202, None).headers == (("content-type", "application/json"),)
            ```
        """
        lines = (("content-type", "application/json"), *((n.lower(), v) for n, v in headers))
        return cls(status, lines, json.dumps(value).encode())

    async def send(self, send: Send, *, replayed: bool = False) -> None:
        """Send it.

        Args:
            replayed: Say in a header that it is not the first time.

        Example:
            ```python
            from outlast.http import Answer

            sent = []

            async def send(message):
                sent.append(message["type"])

            await Answer(204).send(send)
            assert sent == ["http.response.start", "http.response.body"]
            ```
        """
        mark = ((REPLAYED, "true"),) if replayed else ()
        await send_whole(send, self.status, (*self.headers, *mark), self.body)


@dataclass(frozen=True, slots=True)
class Unkept:
    """What stands in place of an answer that could not be kept.

    Args:
        status: Of the answer, or 0 where that is not known either.
        why: Goes on after "its answer".
    """

    status: int
    why: str


class _Kept(msgspec.Struct, omit_defaults=True):
    """The shape of what is kept."""

    status: int
    headers: list[tuple[str, str]] = []
    body: str = ""
    body_base64: str = ""
    unkept: str = ""


_decoder = msgspec.json.Decoder(_Kept)


def encode(answer: Answer | Unkept) -> bytes:
    """Return the bytes that are kept."""
    if isinstance(answer, Unkept):
        return msgspec.json.encode(_Kept(answer.status, unkept=answer.why))
    kept = _Kept(answer.status, list(answer.headers))
    text = _text_of(answer.body)
    if text is None:
        kept.body_base64 = base64.b64encode(answer.body).decode()
    else:
        kept.body = text
    return msgspec.json.encode(kept)


def decode(data: bytes) -> Answer | Unkept:
    """Return what was kept.

    Raises: DecodeError: It is no answer.
    """
    try:
        kept = parse_as(_decoder, data, nesting=_NESTING)
        if kept.unkept:
            return Unkept(kept.status, kept.unkept)
        body = base64.b64decode(kept.body_base64, validate=True) or kept.body.encode()
        headers = tuple((name.lower(), value) for name, value in kept.headers)
        why = _unfit(kept.status, headers)
    except (NotJsonError, binascii.Error, ValueError) as error:
        why = str(error) or "it is no JSON"
        raise _unreadable(why) from None
    if why:
        raise _unreadable(why)
    return Answer(kept.status, headers, body)


def decode_written(data: bytes) -> Answer | Unkept:
    """Return what a person wrote to be kept: a member that is none of an answer is a slip, and not left out.

    Raises: DecodeError: It is no answer.
    """
    answer = decode(data)
    try:
        members: dict[str, Any] = parse(data, nesting=_NESTING)
    except NotJsonError as error:
        # The name of a member that is none of an answer was not looked at before.
        raise _unreadable(str(error)) from error
    if unknown := sorted(members.keys() - set(_Kept.__struct_fields__)):
        raise _unreadable(f"{unknown[0][:80]!r} is no part of it")
    return answer


def kept_headers(lines: Iterable[tuple[str, str]], keeps: Callable[[str], bool]) -> Headers:
    """Return those headers of an answer that are given again."""
    headers = [(name.lower(), value) for name, value in lines]
    named = {
        one.strip().lower()
        for name, value in headers
        if name == "connection"
        for one in value.split(",")
    }
    return tuple(
        (name, value)
        for name, value in headers
        if name not in HOP_BY_HOP and name not in named and keeps(name)
    )


def _text_of(body: bytes) -> str | None:
    try:
        text = body.decode()
    except UnicodeDecodeError:
        return None
    return None if _UNREADABLE.search(text) else text


def _unreadable(why: str) -> DecodeError:
    return DecodeError(
        f"the kept answer cannot be read: {why}",
        hint='an answer is JSON: {"status": 201, "headers": [["content-type", "text/plain"]], "body": "…"}',
    )


def _unfit(status: int, headers: Headers) -> str:
    if not 200 <= status <= 599:
        return f"{status} is no status of an answer"
    for name, value in headers:
        if _NAME.fullmatch(name) is None or _VALUE.fullmatch(value) is None:
            return f"the header {name[:80]!r} cannot be sent"
    return ""
