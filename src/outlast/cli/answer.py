"""Answers of requests that came by HTTP, as an operator writes them: looked at before anything is written, since a client gets them.

`outlast.http` reads them, and is an extra. Without it no such answer is taken: nobody could say whether it will be read.
"""

from __future__ import annotations

from typing import Any, cast

from outlast.client import RequestView
from outlast.errors import DecodeError, OutlastError
from outlast.journal.parse import NotJsonError, parse

TEMPLATE = '{"status": 201, "headers": [["content-type", "application/json"]], "body": "{\\"payment\\": 7}"}'
"""An answer as it is kept; `body_base64` in place of `body` where it is no text."""

_NOTED = frozenset({"method", "path", "principal", "tenant"})
_NESTING = 2


def is_guarded(note: bytes) -> bool:
    """Return whether the note of a request is that of the middleware: JSON with method, path, principal and tenant."""
    try:
        found = parse(note, nesting=_NESTING)
    except NotJsonError:
        return False
    return isinstance(found, dict) and cast("dict[str, Any]", found).keys() == _NOTED


def check_answer(view: RequestView, answer: bytes) -> None:
    """Refuse what nobody could give to the client of a request as its answer.

    Raises:
        DecodeError: It is no answer.
        OutlastError: The extra that reads it is not installed.
    """
    if is_guarded(view.note):
        _read(answer, is_written=True)


def unreadable_part(view: RequestView) -> str:
    """Return why the answer that stands cannot be given to a client; empty where it can, or there is none, or nobody here can say."""
    if view.answer is None or not is_guarded(view.note):
        return ""
    try:
        _read(view.answer)
    except DecodeError as error:
        return error.message
    except OutlastError:
        return ""
    return ""


def _read(answer: bytes, *, is_written: bool = False) -> None:
    try:
        from outlast.http.answer import decode, decode_written  # an extra
    except ModuleNotFoundError as error:
        raise OutlastError(
            f"this request came by outlast.http, which cannot read an answer here: the package {error.name} is missing",
            hint="type this where the service is installed, so that the answer can be checked before it is given to anybody",
        ) from None
    (decode_written if is_written else decode)(answer)
