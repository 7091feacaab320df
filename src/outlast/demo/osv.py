"""Vulnerability records in OSV format: reading one, and asking it about a version.

Guards: a record is data only, and a version counts as safe only when no range and no list of the record names it.
Versions are PEP 440 versions, so only the PyPI ecosystem is understood; another one is an error, never a guess.
Source: the OSV schema, "Evaluation" (https://ossf.github.io/osv-schema/).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Literal, cast

import msgspec
from packaging.utils import canonicalize_name
from packaging.version import Version

from outlast.errors import OutlastError
from outlast.journal.parse import NotJsonError, parse_as
from outlast.journal.plan import printable

ECOSYSTEM = "PyPI"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:+-]{0,99}")
_BEGINNING = "0"  # the schema's word for "before every version", and not the version 0


class FindingError(OutlastError):
    """A finding that cannot be acted on."""

    code = "finding"


class MalformedRecordError(FindingError):
    """The document is not an OSV record, or its ranges cannot be evaluated."""

    code = "finding_malformed"


class WrongEcosystemError(FindingError):
    """The record speaks of packages in another ecosystem than PyPI."""

    code = "finding_ecosystem"


class PackageNotAffectedError(FindingError):
    """The record does not name the package, or does not affect the version in use."""

    code = "finding_not_affected"


class NoFixPublishedError(FindingError):
    """The record names no fixed version above the one in use."""

    code = "finding_no_fix"


class Event(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One turning point of a range; exactly one field is set."""

    introduced: str | None = None
    fixed: str | None = None
    last_affected: str | None = None
    limit: str | None = None

    def turn(self) -> tuple[str, str]:
        """Return kind and version of the turning point.

        Raises:
            MalformedRecordError: None or several of the fields are set.
        """
        turns = [
            (kind, version)
            for kind in self.__struct_fields__
            if (version := getattr(self, kind)) is not None
        ]
        if len(turns) != 1:
            raise MalformedRecordError(
                f"an event of a range must have exactly one of {', '.join(self.__struct_fields__)}; this one has {len(turns)}",
                hint="correct the record's `affected[].ranges[].events`",
            )
        return turns[0]


class Range(msgspec.Struct, frozen=True):
    """One range of affected versions, as a walk over its events."""

    type: Literal["ECOSYSTEM", "SEMVER", "GIT"]
    events: tuple[Event, ...]


class Package(msgspec.Struct, frozen=True):
    """A package's name within its ecosystem."""

    ecosystem: str
    name: str


class Affected(msgspec.Struct, frozen=True):
    """What the record says about one package."""

    package: Package
    ranges: tuple[Range, ...] = ()
    versions: tuple[str, ...] = ()


class Record(msgspec.Struct, frozen=True):
    """An OSV record, as far as the agent uses it.

    `rating` is the publisher's word (`HIGH`), from `database_specific.severity`; empty when there is none.
    """

    id: str
    affected: tuple[Affected, ...]
    summary: str = ""
    details: str = ""
    aliases: tuple[str, ...] = ()
    withdrawn: str = ""
    rating: str = ""

    def is_affected(self, package: str, version: str | Version) -> bool:
        """Say whether a version of a package lies in the record's lists or ranges."""
        wanted = version if isinstance(version, Version) else _version(version)
        return any(_covers(affected, wanted) for affected in _of_package(self, package))


_records = msgspec.json.Decoder(Record)
_objects = msgspec.json.Decoder(dict[str, Any])


def read_record(document: bytes | str) -> Record:
    """Read an OSV record.

    Raises:
        MalformedRecordError: It is not JSON, lacks a field, or a range names a version that is no PEP 440 version.
        WrongEcosystemError: It names no PyPI package.
    """
    try:
        record = parse_as(_records, document)
        extra = parse_as(_objects, document)
    except NotJsonError as error:
        raise MalformedRecordError(
            f"this is not an OSV record: {error}",
            hint="give one JSON object as https://api.osv.dev/v1/vulns/ID returns it",
        ) from error
    bad = [name for name in (record.id, *record.aliases) if not _NAME.fullmatch(name)]
    if bad:  # ids go into branch names and titles; what is no id does not
        raise MalformedRecordError(
            f"'{printable(bad[0])}' is not the id of a record",
            hint="give the record as it was published",
        )
    record = msgspec.structs.replace(record, rating=_rating(extra.get("database_specific")))
    for affected in packages(record):
        _check(affected)
    return record


def packages(record: Record) -> tuple[Affected, ...]:
    """Return the PyPI packages that the record names.

    Raises:
        WrongEcosystemError: There is none.
    """
    # An ecosystem may carry a suffix, as in `PyPI:https://index.example`.
    found = tuple(
        each for each in record.affected if each.package.ecosystem.partition(":")[0] == ECOSYSTEM
    )
    if not found:
        others = ", ".join(sorted({each.package.ecosystem for each in record.affected})) or "none"
        raise WrongEcosystemError(
            f"{record.id} names no {ECOSYSTEM} package (ecosystems: {printable(others)})",
            hint="this agent edits Python manifests; give a record about a PyPI package",
        )
    return found


def fixed_versions(record: Record, package: str, current: str | Version) -> tuple[Version, ...]:
    """Return the published fixes above a version that no range affects, lowest first.

    Raises:
        PackageNotAffectedError: The record does not name the package.
        MalformedRecordError: `current` is no PEP 440 version.
    """
    base = current if isinstance(current, Version) else _version(current)
    published = {
        _version(version)
        for affected in _of_package(record, package)
        for kind, version in _turns(affected)
        if kind == "fixed"
    }
    return tuple(sorted(v for v in published if v > base and not record.is_affected(package, v)))


def fixed_version(record: Record, package: str, current: str | Version) -> Version:
    """Choose the lowest published fix above the version in use.

    Raises:
        PackageNotAffectedError: Nothing is to be fixed.
        NoFixPublishedError: No fix above it was published.
        FindingError: The record was withdrawn.
    """
    if record.withdrawn:
        raise FindingError(
            f"{record.id} was withdrawn on {record.withdrawn}",
            hint="close the finding; nothing is to be fixed",
        )
    if not record.is_affected(package, current):
        raise PackageNotAffectedError(
            f"{package} {current} is not affected by {record.id}",
            hint="close the finding; nothing is to be fixed",
        )
    fixes = fixed_versions(record, package, current)
    if not fixes:
        raise NoFixPublishedError(
            f"{record.id} names no fixed version of {package} above {current}",
            hint="wait for a release, or replace the dependency; read the record's references for a mitigation",
        )
    return fixes[0]


def _of_package(record: Record, package: str) -> tuple[Affected, ...]:
    wanted = canonicalize_name(package)
    every = packages(record)
    found = tuple(each for each in every if canonicalize_name(each.package.name) == wanted)
    if not found:
        names = ", ".join(sorted({each.package.name for each in every}))
        raise PackageNotAffectedError(
            f"{record.id} is not about {package}", hint=f"it is about: {printable(names)}"
        )
    return found


def _rating(specific: object) -> str:
    rating = (
        cast("dict[str, object]", specific).get("severity") if isinstance(specific, dict) else None
    )
    return rating if isinstance(rating, str) and rating.isalpha() and rating.isascii() else ""


def _turns(affected: Affected) -> Iterator[tuple[str, str]]:
    for each in affected.ranges:
        if each.type == "ECOSYSTEM":
            yield from (event.turn() for event in each.events)


def _check(affected: Affected) -> None:
    """Refuse what could only be guessed at: no version at all, foreign orders, unreadable versions."""
    name = printable(affected.package.name)
    if any(each.type == "SEMVER" for each in affected.ranges):
        raise MalformedRecordError(
            f"a range of {name} is of type SEMVER, which {ECOSYSTEM} does not order by",
            hint="the range's type should be ECOSYSTEM",
        )
    turns = list(_turns(affected))
    if not turns and not affected.versions:
        raise MalformedRecordError(
            f"the record says of {name} neither ranges nor versions",
            hint="complete the record's `affected`",
        )
    for kind, version in turns:
        if (kind, version) not in {("introduced", _BEGINNING), ("limit", "*")}:
            _version(version)


def _covers(affected: Affected, version: Version) -> bool:
    return any(_same(listed, version) for listed in affected.versions) or any(
        _in_range(each, version) for each in affected.ranges if each.type == "ECOSYSTEM"
    )


def _same(listed: str, version: Version) -> bool:
    try:
        return Version(listed) == version
    except ValueError:  # InvalidVersion, or a number that Python does not read
        # Lists of old packages hold such names; they equal no version that pip would install.
        return False


def _in_range(each: Range, version: Version) -> bool:
    turns = [event.turn() for event in each.events]
    limits = [text for kind, text in turns if kind == "limit"]
    if limits and not any(text == "*" or version < _version(text) for text in limits):
        return False
    inside = False
    for kind, text in sorted((turn for turn in turns if turn[0] != "limit"), key=_order):
        if kind == "introduced":
            inside = inside or text == _BEGINNING or version >= _version(text)
        elif kind == "fixed":
            inside = inside and version < _version(text)
        else:
            inside = inside and version <= _version(text)
    return inside


def _order(turn: tuple[str, str]) -> tuple[bool, Version, int]:
    # At one version a fix ends the old trouble before a new one begins, and a last affected version was introduced first.
    kind, text = turn
    at_beginning = kind == "introduced" and text == _BEGINNING
    return (
        not at_beginning,
        Version("0") if at_beginning else _version(text),
        ("fixed", "introduced", "last_affected").index(kind),
    )


def _version(text: str) -> Version:
    try:
        return Version(text)
    except ValueError as error:  # InvalidVersion, or a number that Python does not read
        raise MalformedRecordError(
            f"{text[:100]!r} is not a PEP 440 version", hint="correct it where it was written"
        ) from error
