"""Plans of types whose values are one string in JSON: times, bytes, paths, identifiers, exact numbers.

Each value comes back exactly or is refused. `ONE_STRING` is the table of types whose text is exact and that their own
constructor reads back; it is kept by name, so that none of their modules is imported here.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Callable
from datetime import date, datetime, time, timedelta, timezone, tzinfo
from pathlib import PurePath
from typing import Any

from outlast.journal.plan import Plan, Unfit, Walk, type_name, unread
from outlast.journal.scalar import check_int, check_text

ONE_STRING = frozenset(
    {
        "uuid.UUID",
        "decimal.Decimal",
        "ipaddress.IPv4Address",
        "ipaddress.IPv4Interface",
        "ipaddress.IPv4Network",
        "ipaddress.IPv6Address",
        "ipaddress.IPv6Interface",
        "ipaddress.IPv6Network",
        "pydantic.networks.AnyUrl",
        "pydantic.networks.AnyHttpUrl",
        "pydantic.networks.HttpUrl",
    }
)
_DURATION = re.compile(r"(-)?P(\d{1,9})DT(\d{1,5})(?:\.(\d{6}))?S", re.ASCII)
_ZONES = frozenset({"zoneinfo.ZoneInfo", "zoneinfo._zoneinfo.ZoneInfo"})
_MOST_DIGITS = 4_300
"""Digits of an integer in text: as many as JSON's own may have, whatever limit the program has set for Python's."""

_FRACTION = re.compile(rf"(-?\d{{1,{_MOST_DIGITS}}})/(\d{{1,{_MOST_DIGITS}}})", re.ASCII)


class StringPlan(Plan):
    """A type whose values are one string in JSON.

    Args:
        classes: The exact types accepted.
        write: Gives the text of a value.
        read: Gives the value of a text; any exception means that the text is none.
    """

    __slots__ = ("read", "write")

    def __init__(
        self,
        label: str,
        classes: tuple[type, ...],
        write: Callable[[Any], str],
        read: Callable[[str], Any],
    ) -> None:
        super().__init__(label, classes, (str,))
        self.write = write
        self.read = read

    def encode(self, value: Any, walk: Walk) -> str:
        """Write the value as text."""
        if type(value) not in self.classes:
            raise self.refuse(value)
        try:
            text = self.write(value)
        except Unfit:
            raise
        except Exception as error:  # noqa: BLE001  (a tzinfo is the author's code)
            raise unread(error) from None
        walk.charge(len(text))
        check_text(text)
        return text

    def decode(self, data: Any, walk: Walk) -> Any:
        """Read the value from text."""
        if type(data) is not str:
            raise self.misfit(data)
        try:
            value = self.read(data)
        except Exception:  # noqa: BLE001  (a constructor of the standard library may raise anything on hostile text)
            raise Unfit(f"the text is no {self.label}") from None
        if type(value) not in self.classes:
            raise Unfit(f"the text is no {self.label}")
        return value


def string_plan(kind: type[Any]) -> Plan | None:
    """Return the plan of a type that is one string in JSON, or None for other types."""
    if kind in _STRINGS:
        write, read = _STRINGS[kind]
        return StringPlan(kind.__name__, (kind,), write, read)
    if issubclass(kind, PurePath):
        return StringPlan(kind.__name__, (type(kind()),), str, kind)
    name = type_name(kind)
    if name in ONE_STRING:
        return StringPlan(kind.__name__, (kind,), str, kind)
    if name == "fractions.Fraction":
        return StringPlan(
            kind.__name__, (kind,), _write_fraction, lambda text: _read_fraction(kind, text)
        )
    if name in _ZONES:
        return StringPlan(kind.__name__, (kind,), _write_zone, kind)
    return None


def write_datetime(moment: datetime) -> str:
    """Return the ISO text of an aware datetime, with the key of its zone in brackets where it has one (RFC 9557).

    Raises: Unfit: The datetime is naive.
    """
    if moment.utcoffset() is None:
        raise Unfit(
            "a naive datetime means nothing on another machine",
            "give it a timezone, as datetime.now(UTC)",
        )
    zone = moment.tzinfo
    # Other classes have a key too, which names no zone.
    if any(type_name(kind) in _ZONES for kind in type(zone).__mro__):
        return f"{moment.isoformat()}[{_write_zone(zone)}]"
    return moment.isoformat()


def _read_datetime(text: str) -> datetime:
    if not text.endswith("]"):
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is None:
            raise ValueError(text)
        return moment
    instant, _, key = text[:-1].partition("[")
    moment = datetime.fromisoformat(instant)
    local = moment.replace(tzinfo=_zone(key))
    # A moment that clocks show twice is told apart by its offset.
    return local if local.utcoffset() == moment.utcoffset() else _other_fold(local, moment)


def _other_fold(local: datetime, moment: datetime) -> datetime:
    other = local.replace(fold=1)
    # Where the rules of the zone have changed since, the instant is kept and the wall time follows.
    return other if other.utcoffset() == moment.utcoffset() else moment.astimezone(local.tzinfo)


def _zone(key: str) -> tzinfo:
    from zoneinfo import ZoneInfo  # only where a stored value has a zone: 5 ms at import

    return ZoneInfo(key)


def _write_zone(zone: Any) -> str:
    key = zone.key
    try:
        _zone(key)
    except Exception:  # noqa: BLE001  (it was made from a file, under a name that may be anything)
        raise Unfit("a ZoneInfo whose key names no zone cannot be found again") from None
    return key


def _write_time(moment: time) -> str:
    if moment.tzinfo is not None and not isinstance(moment.tzinfo, timezone):
        raise Unfit(
            "the zone of a time would be lost", "use a fixed offset, or store the zone beside it"
        )
    return moment.isoformat()


def write_duration(span: timedelta) -> str:
    """Return an exact ISO 8601 text, as `P1DT30.000001S`, with a sign in front where it is negative."""
    total = (span.days * 86_400 + span.seconds) * 1_000_000 + span.microseconds
    seconds, micros = divmod(abs(total), 1_000_000)
    days, seconds = divmod(seconds, 86_400)
    fraction = f".{micros:06}" if micros else ""
    return f"{'-' if total < 0 else ''}P{days}DT{seconds}{fraction}S"


def _read_duration(text: str) -> timedelta:
    found = _DURATION.fullmatch(text)
    if found is None:
        raise ValueError(text)
    sign = -1 if found[1] else 1
    return timedelta(
        days=sign * int(found[2]),
        seconds=sign * int(found[3]),
        microseconds=sign * int(found[4] or 0),
    )


def _write_offset(zone: timezone) -> str:
    offset = zone.utcoffset(None)
    if zone.tzname(None) != timezone(offset).tzname(None):
        raise Unfit("the name of a timezone would be lost", "use ZoneInfo, or one without a name")
    return write_duration(offset)


def _write_fraction(value: Any) -> str:
    check_int(value.numerator)
    check_int(value.denominator)
    return f"{value.numerator}/{value.denominator}"


def _read_fraction(kind: Callable[[int, int], Any], text: str) -> Any:
    found = _FRACTION.fullmatch(text)
    if found is None:
        raise ValueError(text)
    return kind(int(found[1]), int(found[2]))


def write_bytes(value: bytes | bytearray) -> str:
    """Return standard base64 with padding (RFC 4648 section 4)."""
    return binascii.b2a_base64(value, newline=False).decode("ascii")


def _read_bytes(text: str) -> bytes:
    return binascii.a2b_base64(text, strict_mode=True)


def _date_text(value: date) -> str:
    return value.isoformat()


_STRINGS: dict[type, tuple[Callable[[Any], str], Callable[[str], Any]]] = {
    datetime: (write_datetime, _read_datetime),
    date: (_date_text, date.fromisoformat),
    time: (_write_time, time.fromisoformat),
    timedelta: (write_duration, _read_duration),
    timezone: (_write_offset, lambda text: timezone(_read_duration(text))),
    bytes: (write_bytes, _read_bytes),
    bytearray: (write_bytes, lambda text: bytearray(_read_bytes(text))),
}


class IntKeyPlan(StringPlan):
    """An int as the key of an object."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__("int", (int,), _int_text, _int_of)


def _int_text(value: int) -> str:
    check_int(value)
    return str(value)


def _int_of(text: str) -> int:
    number = int(text) if len(text) <= _MOST_DIGITS + 1 else 0
    if str(number) != text:  # one text per key, or two keys could become one
        raise ValueError(text)
    return number
