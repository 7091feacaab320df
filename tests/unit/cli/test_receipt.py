"""`outlast approvals receipt`, `outlast approvals verify` and `outlast keys`: a record that is proved where there is no store."""

from __future__ import annotations

import json
import stat
import subprocess
import sys
import warnings
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner, Result

from outlast.approvals.receipt import PURPOSE, read_receipt
from outlast.cli.main import app
from outlast.crypto import SigningKey, sign, verify
from outlast.errors import KeyExposedWarning

from .conftest import World

NOW = datetime(2026, 1, 31, tzinfo=UTC)


def cli(*words: str | Path) -> Result:
    """Run a command that needs no database."""
    environment = {"OUTLAST_DATABASE_URL": "sqlite:////nowhere/x.db"}
    return CliRunner(env=environment).invoke(app, [str(one) for one in words])


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the private key of a pair; the public one is beside it."""
    place = tmp_path_factory.mktemp("keys") / "key.pem"
    assert cli("keys", "generate", "--out", place).exit_code == 0
    return place


@pytest.fixture
def signed(world: World, pair: Path) -> Path:
    """Return the receipt of a request that waits."""
    place = world.folder / "receipt.json"
    done = world.cli("approvals", "receipt", "approval", "--key", str(pair), "--out", str(place))
    assert done.exit_code == 0, done.output
    assert f"written to {place}" in done.stdout
    return place


def test_receipt_is_verified_without_a_database(signed: Path, pair: Path) -> None:
    """Every check is printed, and what the receipt is of."""
    done = cli("approvals", "verify", signed, "--key", pair.with_name("key.pub.pem"))
    assert done.exit_code == 0, done.output
    for words in (
        "1~r:1: pending",
        "approval (flow)",
        "nothing under it",
        "signature",
        "holds",
        "fix \\u202eevil",
    ):
        assert words in done.stdout
    assert "the receipt holds" in done.stdout
    report = json.loads(
        cli("approvals", "verify", signed, "--key", pair.with_name("key.pub.pem"), "--json").stdout
    )
    assert report["holds"] is True
    assert report["receipt"]["state"] == "pending"
    names = [one["name"] for one in report["checks"]]
    assert names[:2] == ["signature", "tenant"]
    assert "decision" in names


def test_receipt_is_printed_and_its_key_may_be_in_the_environment(world: World, pair: Path) -> None:
    """Standard output holds the signed line alone; it may expire."""
    runner = CliRunner(
        env={"OUTLAST_DATABASE_URL": world.url, "OUTLAST_SIGNING_KEY": pair.read_text()}
    )
    words = ["approvals", "receipt", "approval", "1~r:1", "--expires-in", "2h"]
    text = runner.invoke(app, words).stdout
    found = verify(text.encode(), PURPOSE, key=SigningKey.read(pair).public, now=NOW)
    assert found.expires_at is not None
    assert (found.expires_at - found.signed_at).total_seconds() == 7200
    assert read_receipt(bytes(found.body)).run_id == "approval"


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("pending", "approved", "changed after it was signed"),
        ("Ed25519", "Ed25518", "Ed25518"),
        ('"}\n', "", "cut short"),
        ("{", "{ ", "not written as it was signed"),
    ],
)
def test_changed_receipt_is_refused(
    signed: Path, pair: Path, old: str, new: str, told: str
) -> None:
    """The exit status says so, and the text says what is wrong; nothing of the receipt is shown."""
    signed.write_text(signed.read_text().replace(old, new, 1))
    done = cli("approvals", "verify", signed, "--key", pair.with_name("key.pub.pem"))
    assert done.exit_code == 1
    assert told in done.stdout
    assert "the receipt does not hold: 1 check broken" in done.stdout
    assert "1~r:1" not in done.stdout


def test_another_key_and_another_purpose(signed: Path, pair: Path, tmp_path: Path) -> None:
    """What somebody else signed, or what was signed for something else."""
    other = tmp_path / "other.pem"
    cli("keys", "generate", "--out", other)
    done = cli("approvals", "verify", signed, "--key", tmp_path / "other.pub.pem")
    assert done.exit_code == 1
    assert SigningKey.read(pair).public.id in done.stdout
    note = tmp_path / "note.json"
    note.write_bytes(sign(b"{}", "note", key=SigningKey.read(pair), at=NOW))
    done = cli("approvals", "verify", note, "--key", pair.with_name("key.pub.pem"))
    assert done.exit_code == 1
    assert "signed as a note" in done.stdout


def test_receipt_that_is_signed_and_wrong(signed: Path, pair: Path) -> None:
    """The right key does not make it true: another tenant, what was never so, and what is no receipt."""
    key, public = SigningKey.read(pair), pair.with_name("key.pub.pem")
    body = bytes(verify(signed.read_bytes(), PURPOSE, key=key.public, now=NOW).body)
    forged = msgspec.json.decode(body)
    forged["state"] = "approved"
    for text, tenant, name in (
        (body, "acme", "tenant"),
        (msgspec.json.encode(forged), "default", "drawn"),
        (b"{}", "default", "form"),
    ):
        signed.write_bytes(sign(text, PURPOSE, key=key, at=NOW, tenant=tenant))
        done = cli("approvals", "verify", signed, "--key", public, "--json")
        assert done.exit_code == 1
        checks = {one["name"]: one["verdict"] for one in json.loads(done.stdout)["checks"]}
        assert checks["signature"] == "holds"
        assert [each for each, verdict in checks.items() if verdict == "broken"] == [name]


def test_expired_receipt(signed: Path, pair: Path) -> None:
    """It counts until its time, and no longer."""
    key = SigningKey.read(pair)
    body = bytes(verify(signed.read_bytes(), PURPOSE, key=key.public, now=NOW).body)
    signed.write_bytes(sign(body, PURPOSE, key=key, at=NOW, expires_at=NOW))
    done = cli("approvals", "verify", signed, "--key", pair.with_name("key.pub.pem"))
    assert (done.exit_code, "it counted until 2026-01-31" in done.stdout) == (1, True)


def test_files_that_are_not_there_or_no_keys(signed: Path, pair: Path, world: World) -> None:
    """Each says which file, and what to do."""
    for words in (
        ("approvals", "verify", "/nowhere/r.json", "--key", str(pair.with_name("key.pub.pem"))),
        ("approvals", "verify", str(signed), "--key", "/nowhere/key.pem"),
        ("approvals", "verify", str(signed), "--key", str(pair)),
        ("approvals", "receipt", "approval", "--key", str(pair.with_name("key.pub.pem"))),
        ("approvals", "receipt", "approval", "--key", str(pair), "--out", "/nowhere/r.json"),
        ("approvals", "receipt", "approval"),
        ("approvals", "receipt", "signal", "--key", str(pair)),
    ):
        done = world.cli(*words)
        assert (done.exit_code, done.stdout) == (1, "")
        assert "→" in done.stderr


def test_keys_are_never_overwritten(tmp_path: Path) -> None:
    """The private one is for this user alone, and is not shown."""
    done = cli("keys", "generate", "--out", tmp_path / "k.pem")
    assert done.exit_code == 0
    assert "k.pub.pem" in done.stdout
    assert stat.S_IMODE((tmp_path / "k.pem").stat().st_mode) == 0o600
    text = (tmp_path / "k.pem").read_text()
    assert text.splitlines()[1] not in done.output
    again = cli("keys", "generate", "--out", tmp_path / "k.pem")
    assert again.exit_code == 1
    assert "is there already" in again.stderr
    assert (tmp_path / "k.pem").read_text() == text


def test_key_that_others_can_read_is_warned_of(world: World, pair: Path, tmp_path: Path) -> None:
    """The receipt is signed all the same."""
    exposed = tmp_path / "key.pem"
    exposed.write_text(pair.read_text())
    exposed.chmod(0o644)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", KeyExposedWarning)
        done = world.cli("approvals", "receipt", "approval", "--key", str(exposed))
    assert done.exit_code == 0
    assert "chmod 600" in str(caught[0].message)


def test_without_the_extra_the_command_says_what_to_install(signed: Path, pair: Path) -> None:
    """A process that has Outlast alone, and no store, is told; the other commands are there."""
    code = (
        "import sys; sys.modules['cryptography'] = None\n"
        "from outlast.cli.main import app; app(sys.argv[1:])"
    )
    words = ["approvals", "verify", str(signed), "--key", str(pair.with_name("key.pub.pem"))]
    done = subprocess.run(
        [sys.executable, "-c", code, *words], capture_output=True, text=True, timeout=60, cwd="/"
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert "pip install 'outlast[crypto]'" in done.stderr
    assert "Traceback" not in done.stderr
