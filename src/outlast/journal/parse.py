"""The one way in for JSON: from bytes to data, or one error, within bounds of depth that do not depend on who calls.

A parser that recurses reads as deep as the stack that is left, so that what one caller took another could not read. Here
the depth is counted before anything is parsed. Numbers are bounded by the parser: an integer has at most 4,300 digits, a
float is finite. Of keys that occur twice the last one counts.
"""

from __future__ import annotations

import re
from itertools import accumulate
from typing import Any, TypeVar

import msgspec

from outlast.errors import DecodeError
from outlast.journal.plan import VALUE_NESTING, printable

T = TypeVar("T")

_TEXTS = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_STEPS = {ord("["): 1, ord("{"): 1, ord("]"): -1, ord("}"): -1}


class NotJsonError(ValueError):
    """Bytes that are no JSON, are nested too deep, or have another shape than was asked for."""


def parse(data: bytes | str, *, nesting: int = VALUE_NESTING) -> Any:
    """Return the data (None, bool, int, float, str, list, dict) of JSON.

    Args:
        nesting: The deepest nesting that is read.

    Raises: NotJsonError: It is no JSON, or too deep.
    """
    return parse_as(_anything, data, nesting=nesting)


def parse_as(
    decoder: msgspec.json.Decoder[T], data: bytes | str, *, nesting: int = VALUE_NESTING
) -> T:
    """Return what a decoder makes of JSON.

    Raises: NotJsonError: It is no JSON, too deep, or not of the decoder's type.
    """
    try:
        plain = data.encode() if isinstance(data, str) else bytes(data)
        if is_deeper(plain, nesting):
            raise NotJsonError(f"nesting is deeper than {nesting} levels")
        return decoder.decode(plain)
    except (msgspec.MsgspecError, UnicodeError) as error:
        raise NotJsonError(printable(str(error))) from None
    except RecursionError:
        raise NotJsonError("nesting is deeper than the stack that is left") from None


def read(data: bytes | str, what: str) -> Any:
    """Return the data of stored JSON.

    Args:
        what: What it is, for the message, as `the result`.

    Raises: DecodeError: It is no JSON, or too deep.
    """
    return read_as(_anything, data, what)


def read_as(decoder: msgspec.json.Decoder[T], data: bytes | str, what: str) -> T:
    """Return what a decoder makes of stored JSON.

    Raises: DecodeError: It is no JSON, too deep, or not of the decoder's type.
    """
    try:
        return parse_as(decoder, data)
    except NotJsonError as error:
        raise DecodeError(
            f"{what} cannot be read: {error}", hint="the store was changed by hand or is damaged"
        ) from None


def is_deeper(data: bytes, nesting: int) -> bool:
    """Say whether JSON is nested deeper than that; of what is no JSON, whether a parser could be led deeper.

    Takes time in proportion to the length, and a stack of no depth.
    """
    if data.count(b"[") + data.count(b"{") <= nesting:
        return False
    brackets = _TEXTS.sub(b"", data).translate(None, _NO_BRACKETS)
    return max(accumulate(map(_STEPS.__getitem__, brackets)), default=0) > nesting


_anything: msgspec.json.Decoder[Any] = msgspec.json.Decoder()
