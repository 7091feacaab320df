"""The page `docs/cases.md` and the tests of this folder say the same."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "cases.md"
SECTIONS = {
    "A": "1 2 4 5 7 8 10 11 13 14 16",
    "B": "17 19 20 22 23 25 26 28 29",
    "C": "31 32 34 35 37 38 40 41 43 44",
    "D": "46 47 49 50 52 53 55 56 58 59 61 62 64 65 67 68 70 71 73 74",
    "E": "76 77 79 80 82 83 85 86",
    "F": "88 89 91 92 94 95 97 98 100 101 103 104 106 107",
    "G": "109 110 112 113 115 116 118 119 121 122 124 125 127",
    "I": "136 137 139 140 142 143 145 146 148 149",
    "J": "151 152 154 155",
}
"""The numbers that each section has."""

TEST = re.compile(r"`(tests/cases/\w+\.py)::(test_case_(\d{3})_\w+)`")
LATER = re.compile(r"later: [a-z][\w ,-]*")


def rows(section: str) -> list[list[str]]:
    """Return the cells of each row of a section: number, fault, what happens, test."""
    (text,) = re.findall(
        rf"^## {section}\..*?\n(.*?)(?=^## |\Z)", PAGE.read_text(), re.MULTILINE | re.DOTALL
    )
    lines = [line for line in text.splitlines() if re.match(r"\| \d", line)]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]


def written() -> Counter[tuple[str, str]]:
    """Return each test of a case, by file and name."""
    found: Counter[tuple[str, str]] = Counter()
    for path in sorted((ROOT / "tests" / "cases").glob("test_*.py")):
        names = re.findall(r"^(?:async )?def (test_case_\w+)\(", path.read_text(), re.MULTILINE)
        found.update((path.relative_to(ROOT).as_posix(), name) for name in names)
    return found


@pytest.mark.parametrize("section", SECTIONS)
def test_every_number_of_a_section_is_in_its_table_once(section: str) -> None:
    """The tables have the numbers of the sections, in order, and no others."""
    assert [row[0] for row in rows(section)] == SECTIONS[section].split()


@pytest.mark.parametrize("section", SECTIONS)
def test_every_row_names_its_tests_or_says_what_it_waits_for(section: str) -> None:
    """A row has four cells; the last names tests of its own number, or `later:` and a subject."""
    for number, fault, what, tests in rows(section):
        assert fault
        assert what
        named = TEST.findall(tests)
        rest = TEST.sub("", tests).replace("<br>", "").strip()
        if named:
            assert {int(one[2]) for one in named} == {int(number)}
            assert rest == ""
        else:
            assert LATER.fullmatch(tests)


def test_every_test_is_named_once_and_every_name_is_a_test() -> None:
    """No test of a case is missing from the page, and none that it names is missing here."""
    named = Counter((path, name) for path, name, _ in TEST.findall(PAGE.read_text()))
    assert named == written()
    assert set(named.values()) == {1}
