"""Finding pins and moving them, byte for byte."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlast.demo.manifest import (
    FILE_LIMIT,
    LINE_LIMIT,
    ManifestError,
    PackageNotInManifestError,
    find_pins,
    move_pins,
    pins_of,
    read_manifest,
    replace_pin,
)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("thing==1.0\n", "thing==2.0\n"),
        ("Thing == 1.0  # why==1.0\r\n", "Thing == 2.0  # why==1.0\r\n"),
        (
            "THING[fast,x]==1.0 ; python_version == '3.11'",
            "THING[fast,x]==2.0 ; python_version == '3.11'",
        ),
        ("thing ===1.0\n", "thing ==2.0\n"),
        ("\ufeffthing==1.0\n", "\ufeffthing==2.0\n"),
        ("thing \\\n  ==1.0\nb==1.0\n", "thing \\\n  ==2.0\nb==1.0\n"),
        (
            "-r more.txt\n./local\n\n# thing==1.0\nthings==1.0\nthing==1.0",
            "-r more.txt\n./local\n\n# thing==1.0\nthings==1.0\nthing==2.0",
        ),
        ("a==1\x0c\nthing==1.0\n", "a==1\x0c\nthing==2.0\n"),
        ("thing==1.0 --config-settings=a=b\n", "thing==2.0 --config-settings=a=b\n"),
        (
            "thing==1.0; python_version<'3.12'\nthing==1.0; python_version>='3.12'",
            "thing==2.0; python_version<'3.12'\nthing==2.0; python_version>='3.12'",
        ),
    ],
)
def test_only_the_version_changes(before: str, after: str) -> None:
    """Comments, extras, markers, spacing, line ends and other lines stay as they were."""
    assert replace_pin(before, "thing", "2.0") == after


_other = st.sampled_from(
    [
        "",
        "# a thing==9",
        "other==1.0",
        "-r x.txt",
        "other[a]>=2 ; python_version > '3'",
        "  ",
        "things==1.0",
    ]
)
_end = st.sampled_from(["\n", "\r\n", "\r"])


@given(
    st.lists(st.tuples(_other, _end)),
    st.lists(st.tuples(_other, _end)),
    _end,
    st.sampled_from(["", " # c", "; python_version>'3'"]),
)
def test_edit_is_local_and_reversible(
    head: list[tuple[str, str]], tail: list[tuple[str, str]], end: str, rest: str
) -> None:
    """Around the pin not a byte differs, and moving back gives the first text."""
    before, after = ("".join(f"{line}{stop}" for line, stop in part) for part in (head, tail))
    text = f"{before}thing==1.0{rest}{end}{after}"
    moved = replace_pin(text, "thing", "2.0")
    assert moved == f"{before}thing==2.0{rest}{end}{after}"
    assert replace_pin(moved, "thing", "1.0") == text
    assert [pin.version for pin in pins_of(moved, "thing")] == ["2.0"]


@pytest.mark.parametrize(
    "line",
    [
        "thing>=1",
        "thing",
        "thing==1.*",
        "thing==1,<2",
        "thing @ https://example.org/thing.whl",
        "thing~=1.0",
    ],
)
def test_what_is_no_exact_pin_is_refused(line: str) -> None:
    """A range does not say what is installed; the error quotes the line."""
    with pytest.raises(ManifestError, match="does not pin one version") as caught:
        replace_pin(f"a==1\n{line}\n", "thing", "2")
    assert ":2 " in str(caught.value)


@pytest.mark.parametrize(
    "text",
    [
        "thing==1 --hash=sha256:00\n",
        "thing==1 \\\n    --hash=sha256:00\n",
        "--require-hashes\nthing==1\n",
        "b==1 --hash=sha256:00\nthing==1",
    ],
)
def test_hashes_are_refused_with_the_reason(text: str) -> None:
    """A hash of a new file cannot be made up, anywhere in the file."""
    with pytest.raises(ManifestError, match="hashes"):
        replace_pin(text, "thing", "2")


def test_pyproject_dependencies_are_moved() -> None:
    """Dependencies, extras and groups are edited in place, and the rest stays."""
    text = (
        '[project]\nname = "a"  # note\ndependencies = [\n  "thing[x]==1.0 ; python_version > \'3\'",\n  "other>=2",\n]\n'
        "[project.optional-dependencies]\nmore = ['Thing==1.0']\n"
        '[dependency-groups]\ndev = ["thing==1.0", {include-group = "b"}]\nb = []\n'
    )
    assert replace_pin(text, "thing", "2.0", path="pyproject.toml") == text.replace(
        "==1.0", "==2.0"
    )


def test_pyproject_that_hides_its_pin_is_refused() -> None:
    """A pin spelled with escapes, or repeated in another table, is left to a person."""
    for text in (
        '[project]\ndependencies = ["thing\\u003d=1.0"]\n',
        '[project]\ndependencies = ["thing==1.0"]\n[tool.x]\na = "thing==1.0"\n',
    ):
        with pytest.raises(ManifestError, match="by hand|escapes"):
            replace_pin(text, "thing", "2.0", path="pyproject.toml")
    with pytest.raises(ManifestError, match="not TOML"):
        pins_of("[", "thing", path="pyproject.toml")
    assert pins_of("project = 1\n", "thing", path="pyproject.toml") == ()


def test_directory_is_searched_and_edited(tmp_path: Path) -> None:
    """Every manifest that pins the package is moved, with its line ends."""
    (tmp_path / "requirements.txt").write_bytes(b"thing==1.0\r\n")
    (tmp_path / "requirements").mkdir()
    (tmp_path / "requirements" / "dev.txt").write_bytes(b"a==1\nthing==1\n")
    pins = find_pins(tmp_path, "Thing")
    assert [(pin.path, pin.line, pin.version) for pin in pins] == [
        ("requirements.txt", 1, "1.0"),
        ("requirements/dev.txt", 2, "1"),
    ]
    assert move_pins(tmp_path, pins, "2.0") == ("requirements.txt", "requirements/dev.txt")
    assert (tmp_path / "requirements.txt").read_bytes() == b"thing==2.0\r\n"


def test_missing_package_names_what_was_looked_at(tmp_path: Path) -> None:
    """The error lists the manifests, or says that there was none."""
    with pytest.raises(PackageNotInManifestError, match="no manifest at all"):
        find_pins(tmp_path, "thing")
    (tmp_path / "requirements.txt").write_text("a==1\n")
    with pytest.raises(PackageNotInManifestError, match=r"looked at: requirements\.txt"):
        find_pins(tmp_path, "thing")
    with pytest.raises(PackageNotInManifestError):
        replace_pin("a==1\n", "thing", "2")


def test_differing_and_unreadable_pins_are_refused(tmp_path: Path) -> None:
    """Two versions of one package, and a version that is none, are a person's business."""
    (tmp_path / "requirements.txt").write_text("thing==1.0\n")
    (tmp_path / "requirements-dev.txt").write_text("thing==1.1\n")
    with pytest.raises(ManifestError, match="differ"):
        find_pins(tmp_path, "thing")
    (tmp_path / "requirements-dev.txt").write_text("thing===old\n")
    with pytest.raises(ManifestError, match="PEP 440"):
        find_pins(tmp_path, "thing")
    (tmp_path / "requirements-dev.txt").write_text("what is this?\n")
    with pytest.raises(ManifestError, match="not a requirement"):
        find_pins(tmp_path, "thing")


def test_a_link_out_of_the_repository_is_refused(tmp_path: Path) -> None:
    """Neither a linked manifest nor one in a linked directory is read."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "secret.txt").write_text("thing==1.0\n")
    root = tmp_path / "root"
    root.mkdir()
    (root / "requirements.txt").symlink_to(outside / "secret.txt")
    with pytest.raises(ManifestError, match="link"):
        find_pins(root, "thing")
    (root / "requirements.txt").unlink()
    (root / "requirements").symlink_to(outside)
    with pytest.raises(ManifestError, match="leaves the repository"):
        read_manifest(root, "requirements/secret.txt")
    (root / "latin.txt").write_bytes(b"# \xe9\n")
    with pytest.raises(ManifestError, match="UTF-8"):
        read_manifest(root, "latin.txt")


READ = """
import sys
from outlast.demo.manifest import ManifestError, pins_of
path, text = sys.argv[1], sys.stdin.read()
try:
    print(*[pin.version for pin in pins_of(text, "thing", path=path)])
except ManifestError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("path", "text", "said"),
    [
        ("a.txt", "thing" + " " * 9_900 + ">=1\n", "does not pin one version"),
        ("a.txt", "thing" + " " * 9_900 + "==1\n", "1\n"),
        ("a.txt", "thing" + " " * 100_000 + ">=1\n", f"more than {LINE_LIMIT} characters"),
        ("a.txt", " " * 100_000 + "\nthing==1\n", "1\n"),
        ("a.txt", "#" * 100_000 + "\nthing==1\n", "1\n"),
        (
            "pyproject.toml",
            f"[project]\ndependencies = ['thing{' ' * 9_900}>=1']\n",
            "does not pin",
        ),
        ("pyproject.toml", f"[project]\ndependencies = ['thing{' ' * 99_000}>=1']\n", "more than"),
        ("pyproject.toml", f"a{'.a' * 5_000} = 1\n", "more than 200 dots"),
    ],
    ids=["range", "pin", "over-long", "blank", "comment", "toml", "over-long-toml", "dotted-key"],
)
def test_long_lines_are_read_or_refused(path: str, text: str, said: str) -> None:
    """Spaces without end cost no more than their length; the process is killed where they do."""
    done = subprocess.run(
        [sys.executable, "-c", READ, path],
        input=text,
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    assert said in done.stdout


def test_a_manifest_has_a_size(tmp_path: Path) -> None:
    """A file over the limit is refused, and one at the limit is read."""
    line = "thing==1\n"
    text = line + "#" * (FILE_LIMIT - len(line))
    (tmp_path / "requirements.txt").write_text(text)
    assert [pin.version for pin in find_pins(tmp_path, "thing")] == ["1"]
    (tmp_path / "requirements.txt").write_text(text + "#")
    with pytest.raises(ManifestError, match=f"larger than {FILE_LIMIT} bytes"):
        find_pins(tmp_path, "thing")
    with pytest.raises(ManifestError, match="larger than"):
        pins_of(text + "#", "thing")


def test_what_the_parsers_do_not_expect_is_an_error_of_this_module(tmp_path: Path) -> None:
    """Numbers that Python does not read and nesting without end are a manifest's fault."""
    (tmp_path / "requirements.txt").write_text(f"thing=={'1' * 5_000}\n")
    with pytest.raises(ManifestError, match="PEP 440"):
        find_pins(tmp_path, "thing")
    for value in ("1" * 5_000, "[" * 100_000):
        with pytest.raises(ManifestError, match="not TOML"):
            pins_of(f"a = {value}\n", "thing", path="pyproject.toml")
    with pytest.raises(ManifestError, match="not a requirement"):
        pins_of(f"thing==1; {'(' * 4_000}\n", "thing")
