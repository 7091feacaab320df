"""Ed25519 keys: where they come from, where they are kept, and the id under which they are known.

The private half is never shown: not by `repr`, not in an error, not by copies or pickles. `cryptography` is imported by the functions that need it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from outlast.errors import KeyExposedWarning, MissingExtraError, OutlastError, SigningKeyError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

SIGNING_KEY_VARIABLE = "OUTLAST_SIGNING_KEY"
"""The environment variable that holds the PEM text of a private key."""

_ID_LENGTH = 16
_LARGEST_BYTES = 1 << 16
"""A PEM file of one key has a few hundred bytes."""

_NEW_KEY = "make a pair with `outlast keys generate --out FILE`"


@dataclass(frozen=True, slots=True)
class VerifyingKey:
    """The public half of a key: whoever has it can tell what was signed with the other half.

    Args:
        raw: Its 32 bytes.

    Example:
        ```python
        from outlast.crypto import SigningKey, VerifyingKey

        public = SigningKey.generate().public
        assert VerifyingKey.from_pem(public.to_pem()) == public
        ```
    """

    raw: bytes

    @property
    def id(self) -> str:
        """The first 16 hex digits of the SHA-256 of its bytes."""
        return hashlib.sha256(self.raw).hexdigest()[:_ID_LENGTH]

    @staticmethod
    def from_pem(text: str | bytes) -> VerifyingKey:
        """Return the key of a PEM text (`BEGIN PUBLIC KEY`).

        Raises:
            SigningKeyError: It is no public key of Ed25519.
            MissingExtraError: `cryptography` is not installed.
        """
        ed25519, serialization = _ed25519(), _serialization()
        data = _pem(text)
        if b"PRIVATE KEY" in data:
            raise SigningKeyError(
                "this is a private key, and a public one is asked for",
                hint="give the other file of the pair; nobody but the signer needs the private one",
            )
        try:
            key: Any = serialization.load_pem_public_key(data)
        except Exception:  # noqa: BLE001  (a parser of another project; whatever it says of these bytes, they are no key)
            key = None
        if not isinstance(key, ed25519.Ed25519PublicKey):
            raise SigningKeyError(
                "this is no public key of Ed25519 in PEM form",
                hint=f"its file begins with BEGIN PUBLIC KEY; {_NEW_KEY}",
            )
        return VerifyingKey(key.public_bytes_raw())

    @staticmethod
    def read(place: Path) -> VerifyingKey:
        """Return the key that a PEM file holds. See `from_pem`."""
        return VerifyingKey.from_pem(_read(place))

    def to_pem(self) -> str:
        """Return it as a PEM text."""
        serialization = _serialization()
        key = _ed25519().Ed25519PublicKey.from_public_bytes(self.raw)
        form = serialization.PublicFormat.SubjectPublicKeyInfo
        return key.public_bytes(serialization.Encoding.PEM, form).decode()

    def is_of(self, signature: bytes, message: bytes) -> bool:
        """Whether the other half made this signature of this message."""
        ed25519 = _ed25519()
        from cryptography.exceptions import InvalidSignature

        try:
            ed25519.Ed25519PublicKey.from_public_bytes(self.raw).verify(signature, message)
        except (InvalidSignature, ValueError):
            return False
        return True


class SigningKey:
    """The private half of a key, which signs.

    Example:
        ```python
        from pathlib import Path

        from outlast.crypto import SigningKey

        key = SigningKey.generate()
        public = key.write(Path("receipts.pem"))  # for this user alone; never overwrites
        assert public == Path("receipts.pub.pem")
        assert SigningKey.read(Path("receipts.pem")).public == key.public
        assert repr(key) == f"<SigningKey {key.public.id}>"
        ```
    """

    __slots__ = ("_key", "public")

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key
        self.public = VerifyingKey(key.public_key().public_bytes_raw())

    @staticmethod
    def generate() -> SigningKey:
        """Return a new key, drawn from the system's randomness.

        Raises:
            MissingExtraError: `cryptography` is not installed.
        """
        return SigningKey(_ed25519().Ed25519PrivateKey.generate())

    @staticmethod
    def from_pem(text: str | bytes) -> SigningKey:
        """Return the key of a PEM text (`BEGIN PRIVATE KEY`, PKCS #8, without a passphrase).

        Raises:
            SigningKeyError: It is no private key of Ed25519.
            MissingExtraError: `cryptography` is not installed.
        """
        ed25519, serialization = _ed25519(), _serialization()
        data = _pem(text)
        if b"ENCRYPTED" in data:
            raise SigningKeyError(
                "the private key has a passphrase, which nobody could be asked for",
                hint="keep it without one, readable by this user alone",
            )
        try:
            key: Any = serialization.load_pem_private_key(data, password=None)
        except Exception:  # noqa: BLE001  (a parser of another project; its text could repeat what it read)
            key = None
        if not isinstance(key, ed25519.Ed25519PrivateKey):
            raise SigningKeyError(
                "this is no private key of Ed25519 in PEM form",
                hint=f"its file begins with BEGIN PRIVATE KEY; {_NEW_KEY}",
            )
        return SigningKey(key)

    @staticmethod
    def read(place: Path) -> SigningKey:
        """Return the key that a PEM file holds; warn when others can read the file. See `from_pem`."""
        key = SigningKey.from_pem(_read(place))
        if os.name == "posix" and stat.S_IMODE(place.stat().st_mode) & 0o077:
            text = f"others can read the private key in {place}: chmod 600, or make another one"
            warnings.warn(KeyExposedWarning(text), stacklevel=2)
        return key

    @staticmethod
    def from_environment(name: str = SIGNING_KEY_VARIABLE) -> SigningKey:
        """Return the key whose PEM text an environment variable holds. See `from_pem`."""
        text = os.environ.get(name, "")
        if not text:
            raise SigningKeyError(
                f"no key to sign with: {name} is not set", hint=f"name a file, or {_NEW_KEY}"
            )
        return SigningKey.from_pem(text)

    def sign(self, message: bytes) -> bytes:
        """Return the 64 bytes that only this key makes of a message."""
        return self._key.sign(message)

    def write(self, place: Path) -> Path:
        """Write the pair, the private half readable by this user alone; return where the public half is.

        Raises:
            SigningKeyError: One of the files is there already, or cannot be written; neither is left behind.
        """
        serialization = _serialization()
        beside = place.with_suffix(".pub.pem")
        private = self._key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        _create(place, private, 0o600)
        try:
            _create(beside, self.public.to_pem().encode(), 0o644)
        except BaseException:
            place.unlink(missing_ok=True)
            raise
        return beside

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.public.id}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a private key is neither copied nor pickled: read it where it is used")


def _create(place: Path, data: bytes, mode: int) -> None:
    """Write a file that is not there yet, and see it on the disk."""
    try:
        descriptor = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode)
    except FileExistsError:
        raise SigningKeyError(
            f"{place} is there already", hint="keys are never overwritten: name another file"
        ) from None
    except OSError as error:
        raise _unwritable(place, error) from None
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        with contextlib.suppress(OSError):
            place.unlink()
        raise _unwritable(place, error) from None


def _unwritable(place: Path, error: OSError) -> SigningKeyError:
    return SigningKeyError(
        f"{place} cannot be written: {error.strerror or error}",
        hint="name a file in a folder that is there",
    )


def _read(place: Path) -> bytes:
    try:
        with place.open("rb") as file:
            return file.read(_LARGEST_BYTES)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "no file can have that name"
        raise SigningKeyError(
            f"the key in {place} cannot be read: {why}", hint=f"check the path, or {_NEW_KEY}"
        ) from None


def _pem(text: str | bytes) -> bytes:
    return text.encode(errors="replace") if isinstance(text, str) else text


def _ed25519() -> Any:
    try:
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ModuleNotFoundError as error:
        raise _missing(error) from None
    return ed25519


def _serialization() -> Any:
    try:
        from cryptography.hazmat.primitives import serialization
    except ModuleNotFoundError as error:
        raise _missing(error) from None
    return serialization


def _missing(error: ModuleNotFoundError) -> OutlastError:
    return MissingExtraError(
        f"signing and verifying need the package {error.name or 'cryptography'}",
        hint="pip install 'outlast[crypto]'",
    )
