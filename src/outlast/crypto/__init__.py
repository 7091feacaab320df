"""What leaves is signed: Ed25519 keys, and JSON documents that say by whom, for what and when they were signed.

Needs the extra `outlast[crypto]`; it is asked for where it is used, and never by an import.
"""

from outlast.crypto.key import SIGNING_KEY_VARIABLE, SigningKey, VerifyingKey
from outlast.crypto.signing import Signed, sign, verify

__all__ = ["SIGNING_KEY_VARIABLE", "Signed", "SigningKey", "VerifyingKey", "sign", "verify"]
