"""Manifests of Python dependencies: finding an exact pin and moving it to another version.

Guards: an edit changes the version of that one package and not a byte more (comments, extras, markers, spacing and line
ends stay), and what cannot be edited truthfully is refused with the reason. Texts go in, texts come out; only
`find_pins` and `move_pins` touch a directory, and they never leave it. Reading takes time in proportion to a text's length,
and lengths are bounded: a manifest is somebody else's.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from outlast.errors import OutlastError

PATTERNS = ("requirements*.txt", "constraints*.txt", "requirements/*.txt", "pyproject.toml")
FILE_LIMIT = 500_000  # bytes, five times the longest that large applications have
LINE_LIMIT = 10_000  # characters of one requirement, continuation lines included
_DOTS = 200  # in a line of TOML; memory for a dotted key grows with the square of its length
# Each quantifier is possessive: a text that is no pin is left after one pass. That it is a requirement was asked before.
_PIN = re.compile(
    r"(?P<before>\s*+[A-Za-z0-9][A-Za-z0-9._-]*+\s*+(?:\[[^\]]*+\]\s*+)?+(?:\(\s*+)?+)"
    r"(?P<operator>===?+)(?P<space>\s*+)(?P<version>[^\s;,)*]++)(?P<after>\s*+(?:\)\s*+)?+(?:;.*+)?+)",
    re.DOTALL,
)
# str.splitlines would also cut at form feeds and the like.
_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+$")
_COMMENT = re.compile(r"(?:^|(?<=\s))#.*", re.DOTALL)
_OPTION = re.compile(r"\s--?[A-Za-z].*", re.DOTALL)


class ManifestError(OutlastError):
    """A manifest that cannot be edited truthfully."""

    code = "manifest"


class PackageNotInManifestError(ManifestError):
    """No manifest names the package."""

    code = "manifest_missing"


@dataclass(frozen=True, slots=True)
class Pin:
    """One exact pin: where it stands, and what it says. `line` counts from 1; it is 0 in a pyproject.toml."""

    path: str
    package: str
    version: str
    line: int


def pins_of(text: str, package: str, *, path: str = "requirements.txt") -> tuple[Pin, ...]:
    """Return the pins of a package in a manifest's text.

    Raises:
        ManifestError: The package is there, but not pinned by `==`; or hashes protect the file; or it cannot be read.
    """
    wanted = canonicalize_name(package)
    return tuple(
        Pin(path, package, _pin(requirement, path, line)["version"], line)
        for line, requirement in _requirements(text, path)
        if _name(requirement, path, line) == wanted
    )


def replace_pin(
    text: str, package: str, fixed: Version | str, *, path: str = "requirements.txt"
) -> str:
    """Return the manifest's text with each pin of the package moved to `==fixed`.

    Raises:
        PackageNotInManifestError: It does not name the package.
        ManifestError: As `pins_of`.
    """
    if not pins_of(text, package, path=path):
        raise PackageNotInManifestError(
            f"{path} does not name {package}", hint="name the manifest that installs it"
        )
    edited = (
        _replace_toml(text, package, str(fixed), path)
        if _is_toml(path)
        else _replace_lines(text, package, str(fixed), path)
    )
    # The edit is read back before anybody trusts it.
    assert {pin.version for pin in pins_of(edited, package, path=path)} == {str(fixed)}
    return edited


def find_pins(root: Path, package: str) -> tuple[Pin, ...]:
    """Return the pins of a package in the manifests of a directory, which all name one version.

    Raises:
        PackageNotInManifestError: No manifest names the package.
        ManifestError: The pins differ, or one is no PEP 440 version; or as `pins_of`.
    """
    names = sorted(
        {found.relative_to(root).as_posix() for pattern in PATTERNS for found in root.glob(pattern)}
    )
    pins = tuple(
        pin for name in names for pin in pins_of(read_manifest(root, name), package, path=name)
    )
    if not pins:
        looked = ", ".join(names) or "no manifest at all"
        raise PackageNotInManifestError(
            f"no manifest of the repository names {package}",
            hint=f"looked at: {looked}; patterns: {', '.join(PATTERNS)}",
        )
    if len({_parsed(pin) for pin in pins}) > 1:
        said = ", ".join(f"{pin.path}:{pin.line} says {pin.version}" for pin in pins)
        raise ManifestError(
            f"the pins of {package} differ: {said}", hint="pin it to one version first"
        )
    return pins


def move_pins(root: Path, pins: tuple[Pin, ...], fixed: Version | str) -> tuple[str, ...]:
    """Move the pins to another version, in place, and return the paths of the edited manifests."""
    paths = tuple(dict.fromkeys(pin.path for pin in pins))
    for path in paths:
        edited = replace_pin(read_manifest(root, path), pins[0].package, fixed, path=path)
        (root / path).write_bytes(edited.encode())
    return paths


def read_manifest(root: Path, path: str) -> str:
    """Read a manifest of a directory, line ends as they are.

    Raises:
        ManifestError: It is a link, lies outside the directory, is too large, or is not UTF-8.
    """
    file = root / path
    # A repository is somebody else's: a link would let it have any file at all read and rewritten.
    if file.is_symlink() or not file.resolve().is_relative_to(root.resolve()):
        raise ManifestError(
            f"{path} is a link or leaves the repository", hint="make it an ordinary file"
        )
    try:
        with file.open("rb") as opened:
            content = opened.read(FILE_LIMIT + 1)
        _require_size(len(content), path)
        return content.decode()
    except (OSError, UnicodeDecodeError) as error:
        raise ManifestError(
            f"{path} cannot be read: {error}", hint="manifests are files in UTF-8"
        ) from error


def _is_toml(path: str) -> bool:
    return path.endswith(".toml")


def _require_size(size: int, path: str) -> None:
    if size > FILE_LIMIT:
        raise ManifestError(
            f"{path} is larger than {FILE_LIMIT} bytes", hint="split it, or edit it by hand"
        )


def _requirements(text: str, path: str) -> Iterator[tuple[int, str]]:
    _require_size(len(text), path)
    for line, requirement in _every(text, path):
        if len(requirement) > LINE_LIMIT:
            raise ManifestError(
                f"{path}:{line} has a requirement of more than {LINE_LIMIT} characters: {requirement[:40]!r}…",
                hint="shorten it, or edit the manifest by hand",
            )
        yield line, requirement


def _every(text: str, path: str) -> Iterator[tuple[int, str]]:
    if _is_toml(path):
        yield from ((0, requirement) for requirement in _toml_requirements(_toml(text, path)))
        return
    for line, logical in _logical_lines(text):
        body = (
            _COMMENT.sub("", logical)
            .replace("\\\r\n", " ")
            .replace("\\\n", " ")
            .strip()
            .removeprefix("\ufeff")
        )
        if re.search(r"(?:^|\s)--(?:hash|require-hashes)\b", body):
            raise ManifestError(
                f"{path}:{line} protects the manifest by hashes, which this agent cannot look up",
                hint="regenerate it with the tool that wrote the hashes (pip-compile, uv pip compile)",
            )
        if body and not body.startswith("-"):
            yield line, _OPTION.sub("", body)


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield each line with its number, continuation lines joined to the first."""
    start, parts = 1, list[str]()
    for number, match in enumerate(_LINE.finditer(text), start=1):
        start = start if parts else number
        parts.append(match[0])
        if not match[0].rstrip("\r\n").endswith("\\") or match[0].lstrip().startswith("#"):
            yield start, "".join(parts)
            parts = []
    if parts:
        yield start, "".join(parts)


def _name(requirement: str, path: str, line: int) -> str | None:
    try:
        return canonicalize_name(Requirement(requirement).name)
    except (ValueError, RecursionError) as error:  # also what the parser did not expect
        if re.match(r"[./~]|[A-Za-z]:\\|[A-Za-z+]+:", requirement):
            return None  # a path or a bare URL, which names no package
        raise ManifestError(
            f"{path}:{line} is not a requirement: {error}", hint="correct the line"
        ) from error


def _pin(requirement: str, path: str, line: int) -> re.Match[str]:
    match = _PIN.fullmatch(requirement)
    if match is None:
        raise ManifestError(
            f"{path}:{line} does not pin one version: {requirement.strip()}",
            hint="write it as `name==version`; a range or URL does not say which version is installed",
        )
    return match


def _moved(requirement: str, fixed: str) -> str:
    match = _PIN.fullmatch(requirement)
    assert match is not None  # `pins_of` was asked first
    return f"{match['before']}=={match['space']}{fixed}{match['after']}"


def _replace_lines(text: str, package: str, fixed: str, path: str) -> str:
    chosen = {pin.line for pin in pins_of(text, package, path=path)}
    return "".join(
        _moved_line(line, fixed) if number in chosen else line
        for number, line in _logical_lines(text)
    )


def _moved_line(line: str, fixed: str) -> str:
    # Only the version's own span is exchanged, found in the line as written, so that all around it stays.
    found = re.search(r"(===?+)(\s*+(?:\\\r?\n\s*+)?+)([^\s;,)*#\\]++)", line)
    assert found is not None
    return f"{line[: found.start(1)]}=={found[2]}{fixed}{line[found.end(3) :]}"


def _toml(text: str, path: str) -> dict[str, Any]:
    if any(line.count(".") > _DOTS for line in text.split("\n")):
        raise ManifestError(
            f"{path} has a line with more than {_DOTS} dots",
            hint="break the line, or edit it by hand",
        )
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # also numbers without end and deep nesting
        raise ManifestError(f"{path} is not TOML: {error}", hint="correct the file") from error


def _toml_requirements(document: dict[str, Any]) -> Iterator[str]:
    project = _table(document.get("project"))
    groups = [project.get("dependencies"), *_table(project.get("optional-dependencies")).values()]
    groups += _table(document.get("dependency-groups")).values()
    for group in groups:
        if isinstance(group, list):
            # What is no string is a table, which includes another group.
            yield from (each for each in cast("list[object]", group) if isinstance(each, str))


def _table(value: object) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _replace_toml(text: str, package: str, fixed: str, path: str) -> str:
    wanted = canonicalize_name(package)
    every = list(_toml_requirements(_toml(text, path)))
    for requirement in dict.fromkeys(each for each in every if _name(each, path, 0) == wanted):
        literals = [f"{quote}{requirement}{quote}" for quote in ('"', "'")]
        if sum(text.count(literal) for literal in literals) != every.count(requirement):
            raise ManifestError(
                f"{path} spells the pin {requirement} with escapes, or also holds it outside the dependencies",
                hint="edit this manifest by hand",
            )
        for literal in literals:
            text = text.replace(literal, f"{literal[0]}{_moved(requirement, fixed)}{literal[0]}")
    return text


def _parsed(pin: Pin) -> Version:
    try:
        return Version(pin.version)
    except ValueError as error:  # InvalidVersion, or a number that Python does not read
        raise ManifestError(
            f"{pin.path}:{pin.line} pins {pin.version[:100]!r}, which is no PEP 440 version",
            hint="correct the pin",
        ) from error
