"""Keys are kept for one user, are never overwritten, and never show their private half."""

from __future__ import annotations

import copy
import os
import pickle
import stat
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from outlast.crypto import SigningKey, VerifyingKey
from outlast.errors import KeyExposedWarning, SigningKeyError

KEY = SigningKey.generate()


def pem_of(key: object, encryption: object = NoEncryption()) -> bytes:
    """Return a private key of another project as PEM."""
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption)  # type: ignore[attr-defined]


def test_id_is_of_the_public_bytes() -> None:
    """RFC 8032's first key has the id that anybody can compute; it signs as the RFC says."""
    private = ed25519.Ed25519PrivateKey.from_private_bytes(
        bytes.fromhex("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60")
    )
    key = SigningKey.from_pem(pem_of(private))
    assert (
        key.public.raw.hex() == "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"
    )
    assert key.public.id == "21fe31dfa154a261"
    assert key.sign(b"").hex().startswith("e5564300c360ac729086e2cc806e828a")
    assert key.public.is_of(key.sign(b"a"), b"a")
    assert not key.public.is_of(key.sign(b"a"), b"b")
    assert not KEY.public.is_of(key.sign(b"a"), b"a")
    assert not key.public.is_of(b"short", b"a")


def test_pair_is_written_for_this_user_alone(tmp_path: Path) -> None:
    """Whatever the mask of the process is; both halves are read back, and nobody is warned."""
    before = os.umask(0)
    try:
        public = KEY.write(tmp_path / "key.pem")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "key.pem").stat().st_mode) == 0o600
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert SigningKey.read(tmp_path / "key.pem").public == KEY.public
    assert VerifyingKey.read(public) == KEY.public


@pytest.mark.parametrize("there", ["key.pem", "key.pub.pem"])
def test_neither_half_is_overwritten(tmp_path: Path, there: str) -> None:
    """One file that is there keeps both from being written."""
    (tmp_path / there).write_text("mine")
    with pytest.raises(SigningKeyError, match="is there already"):
        KEY.write(tmp_path / "key.pem")
    assert [one.name for one in tmp_path.iterdir()] == [there]
    assert (tmp_path / there).read_text() == "mine"


def test_pair_that_cannot_be_written(tmp_path: Path) -> None:
    """The error names the place and what to do."""
    with pytest.raises(SigningKeyError, match="cannot be written") as caught:
        KEY.write(tmp_path / "no" / "key.pem")
    assert caught.value.hint


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660])
def test_private_key_that_others_can_read_is_warned_of(tmp_path: Path, mode: int) -> None:
    """It may be anybody's by now."""
    KEY.write(tmp_path / "key.pem")
    (tmp_path / "key.pem").chmod(mode)
    with pytest.warns(KeyExposedWarning, match="chmod 600"):
        SigningKey.read(tmp_path / "key.pem")


def test_private_half_is_never_shown() -> None:
    """Not by its text, a copy or a pickle."""
    secret = pem_of(KEY._key).decode().splitlines()[1]
    assert repr(KEY) == str(KEY) == f"<SigningKey {KEY.public.id}>"
    assert secret not in repr(KEY)
    assert not hasattr(KEY, "__dict__")
    for take in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="neither copied nor pickled"):
            take(KEY)


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"\xff\xfe",
        b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n",
        pem_of(ec.generate_private_key(ec.SECP256R1())),
        pem_of(ed25519.Ed25519PrivateKey.generate(), BestAvailableEncryption(b"pass")),
        KEY.public.to_pem().encode(),
    ],
    ids=["nothing", "no text", "no key", "another algorithm", "a passphrase", "the public half"],
)
def test_what_is_no_private_key(text: bytes) -> None:
    """It is refused, with what to do, and nothing of it is repeated."""
    with pytest.raises(SigningKeyError) as caught:
        SigningKey.from_pem(text)
    assert caught.value.hint
    assert not [
        line for line in text.split(b"\n")[1:2] if line and line.decode() in str(caught.value)
    ]


def test_key_with_a_passphrase_is_told_from_what_is_none() -> None:
    """Nobody could be asked for it, and that is what the error says."""
    text = pem_of(ed25519.Ed25519PrivateKey.generate(), BestAvailableEncryption(b"pass"))
    with pytest.raises(SigningKeyError, match="has a passphrase"):
        SigningKey.from_pem(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "ssh-ed25519 AAAA",
        ec.generate_private_key(ec.SECP256R1())
        .public_key()
        .public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo),
    ],
    ids=["nothing", "another form", "another algorithm"],
)
def test_what_is_no_public_key(text: str) -> None:
    """It is refused, with what to do."""
    with pytest.raises(SigningKeyError, match="no public key of Ed25519") as caught:
        VerifyingKey.from_pem(text)
    assert caught.value.hint


def test_private_key_given_as_the_public_one() -> None:
    """Whoever verifies is told that they should not have it."""
    with pytest.raises(SigningKeyError, match="this is a private key"):
        VerifyingKey.from_pem(pem_of(KEY._key))


def test_key_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The text of a variable is a key; where it is not set, that is said."""
    monkeypatch.setenv("OUTLAST_SIGNING_KEY", pem_of(KEY._key).decode())
    assert SigningKey.from_environment().public == KEY.public
    monkeypatch.delenv("OUTLAST_SIGNING_KEY")
    with pytest.raises(SigningKeyError, match="OUTLAST_SIGNING_KEY is not set"):
        SigningKey.from_environment()


def test_key_file_that_is_not_there(tmp_path: Path) -> None:
    """The path is named."""
    with pytest.raises(SigningKeyError, match=r"no\.pem"):
        VerifyingKey.read(tmp_path / "no.pem")


def test_without_the_extra_the_error_says_what_to_install() -> None:
    """The package is imported all the same; only who signs or verifies is told."""
    code = """
import sys
sys.modules["cryptography"] = None
import outlast.crypto
from outlast.errors import MissingExtraError
for ask in (outlast.crypto.SigningKey.generate, lambda: outlast.crypto.VerifyingKey(b"0" * 32).is_of(b"", b"")):
    try:
        ask()
    except MissingExtraError as error:
        print(error.hint)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "pip install 'outlast[crypto]'\n" * 2
