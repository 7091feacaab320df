"""Reading OSV records and asking them about versions."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.version import Version

from outlast.demo.osv import (
    FindingError,
    MalformedRecordError,
    NoFixPublishedError,
    PackageNotAffectedError,
    Record,
    WrongEcosystemError,
    fixed_version,
    fixed_versions,
    read_record,
)

NAME = "langgraph-checkpoint"


def made(*ranges: list[dict[str, str]], versions: tuple[str, ...] = (), **extra: object) -> Record:
    """Return a record about `thing` with ECOSYSTEM ranges."""
    affected = {
        "package": {"ecosystem": "PyPI", "name": "thing"},
        "ranges": [{"type": "ECOSYSTEM", "events": events} for events in ranges],
        "versions": versions,
    }
    return read_record(json.dumps({"id": "TEST-1", "affected": [affected], **extra}))


def test_shipped_record_holds_the_published_facts(record: Record) -> None:
    """Id, alias, rating, package and range are those of the advisory."""
    assert (record.id, record.aliases, record.rating) == (
        "GHSA-wwqv-p2pp-99h5",
        ("CVE-2025-64439",),
        "HIGH",
    )
    assert fixed_version(record, "LangGraph_Checkpoint", "2.1.1") == Version("3.0.0")


@pytest.mark.parametrize(
    ("version", "affected"),
    [
        ("0", True),
        ("0.0.dev1", True),
        ("2.1.2", True),
        ("3.0.0rc1", True),
        ("3.0.0", False),
        ("3.0", False),
        ("3.0.0.post1", False),
    ],
)
def test_is_affected_at_the_edges(record: Record, version: str, affected: bool) -> None:
    """Introduced "0" reaches below version 0, and pre-releases of the fix are affected."""
    assert record.is_affected(NAME, version) is affected


def test_lowest_fix_that_no_other_range_affects() -> None:
    """A fix that a second range affects again is passed over."""
    both = made(
        [{"introduced": "0"}, {"fixed": "1.5"}],
        [{"introduced": "1.4"}, {"fixed": "2.0.1"}],
        [{"introduced": "3"}, {"fixed": "3.1"}],
    )
    assert [str(each) for each in fixed_versions(both, "thing", "1.0")] == ["2.0.1", "3.1"]
    assert fixed_version(both, "thing", "3.0.5") == Version("3.1")


def test_a_listed_version_is_affected_without_a_range() -> None:
    """The list of versions counts as the ranges do, by PEP 440's equality."""
    listed = made([{"introduced": "5"}, {"fixed": "6"}], versions=("1.0", "not a version"))
    assert listed.is_affected("thing", "1.0.0")
    assert not listed.is_affected("thing", "1.1")
    assert fixed_version(listed, "thing", "1.0") == Version("6")


def test_last_affected_is_itself_affected_and_no_fix() -> None:
    """`last_affected` closes a range behind itself and names nothing to move to."""
    ending = made([{"introduced": "1"}, {"last_affected": "2"}])
    assert [ending.is_affected("thing", each) for each in ("0.9", "1", "2", "2.0.1")] == [
        False,
        True,
        True,
        False,
    ]
    with pytest.raises(NoFixPublishedError, match="above 1.5"):
        fixed_version(ending, "thing", "1.5")


def test_limit_bounds_a_range() -> None:
    """Nothing at or above the highest limit is affected; `*` bounds nothing."""
    limited = made([{"introduced": "0"}, {"limit": "2"}])
    assert limited.is_affected("thing", "1.9")
    assert not limited.is_affected("thing", "2")
    assert made([{"introduced": "0"}, {"limit": "*"}]).is_affected("thing", "99")


_numbers = st.lists(st.integers(0, 30), min_size=1, max_size=8, unique=True)


@given(turns=_numbers, order=st.randoms(use_true_random=False), version=st.integers(0, 31))
def test_order_of_events_does_not_matter(turns: list[int], order: object, version: int) -> None:
    """Alternating introduced and fixed, in any order of writing, mean what walking up the versions means."""
    turns = sorted(turns)
    events = [{("introduced", "fixed")[n % 2]: f"1.{turn}"} for n, turn in enumerate(turns)]
    expected = sum(turn <= version for turn in turns) % 2 == 1
    order.shuffle(events)  # type: ignore[attr-defined]
    assert made(events).is_affected("thing", f"1.{version}") is expected


@given(fixes=_numbers, current=st.integers(0, 30))
def test_a_chosen_fix_is_published_higher_and_safe(fixes: list[int], current: int) -> None:
    """Whatever the record says, the choice has the three properties, and no lower version has them."""
    overlapping = made(
        *[[{"introduced": f"1.{max(0, fix - 7)}"}, {"fixed": f"1.{fix}"}] for fix in fixes]
    )
    chosen = fixed_versions(overlapping, "thing", f"1.{current}")
    safe = [
        f for f in sorted(fixes) if f > current and not overlapping.is_affected("thing", f"1.{f}")
    ]
    assert [str(each) for each in chosen] == [f"1.{each}" for each in safe]


def test_unaffected_and_unknown_packages_are_told_apart_from_work() -> None:
    """A version outside the ranges, and another package, are clear errors."""
    thing = made([{"introduced": "0"}, {"fixed": "2"}])
    with pytest.raises(PackageNotAffectedError, match="thing 2.5 is not affected"):
        fixed_version(thing, "thing", "2.5")
    with pytest.raises(PackageNotAffectedError, match="it is about: thing"):
        fixed_version(thing, "other", "1")


def test_withdrawn_record_is_not_acted_on() -> None:
    """A record that its publisher took back asks for nothing."""
    with pytest.raises(FindingError, match="withdrawn"):
        fixed_version(
            made([{"introduced": "0"}, {"fixed": "2"}], withdrawn="2026-01-01T00:00:00Z"),
            "thing",
            "1",
        )


def test_other_ecosystem_is_refused() -> None:
    """An npm record is an error that says so; a suffixed PyPI is PyPI."""
    document = {
        "id": "X-1",
        "affected": [{"package": {"ecosystem": "npm", "name": "thing"}, "versions": ["1"]}],
    }
    with pytest.raises(WrongEcosystemError, match="npm"):
        read_record(json.dumps(document))
    document["affected"][0]["package"]["ecosystem"] = "PyPI:https://index.example"  # type: ignore[index]
    assert read_record(json.dumps(document)).is_affected("thing", "1")


@pytest.mark.parametrize(
    "document",
    [
        "",
        "[]",
        "{}",
        b"\xff",
        '{"id": "", "affected": [{"package": {"ecosystem": "PyPI", "name": "a"}, "versions": ["1"]}]}',
        '{"id": "a\\nb", "affected": [{"package": {"ecosystem": "PyPI", "name": "a"}, "versions": ["1"]}]}',
        "\ud800",
        '{"id": "X", "more": ' + "[" * 100_000,
        '{"id": "X", "affected": [{"package": {"ecosystem": "PyPI", "name": "a"}}]}',
        '{"id": "X", "affected": [{"package": {"ecosystem": "PyPI", "name": "a"}, "ranges": [{"type": "SEMVER", "events": []}]}]}',
    ],
)
def test_malformed_documents_are_refused(document: str | bytes) -> None:
    """What is no record, or has nothing to evaluate, raises the one error for it."""
    with pytest.raises(MalformedRecordError):
        read_record(document)


@pytest.mark.parametrize(
    "event",
    [
        {},
        {"introduced": "1", "fixed": "2"},
        {"fixed": "new"},
        {"introduced": ""},
        {"fixed": "1" * 5_000},
    ],
)
def test_malformed_events_are_refused_at_reading(event: dict[str, str]) -> None:
    """An event with no or two turning points, or no PEP 440 version, never reaches a decision."""
    with pytest.raises(MalformedRecordError):
        made([event])


def test_numbers_that_python_does_not_read_are_no_versions() -> None:
    """Listed, such a version equals none; asked about, it is an error of the record's kind."""
    record = made(versions=("1" * 5_000, "2"))
    assert record.is_affected("thing", "2")
    assert not record.is_affected("thing", "3")
    with pytest.raises(MalformedRecordError, match="PEP 440"):
        record.is_affected("thing", "1" * 5_000)
