"""The cipher of session tokens: AES-SIV (RFC 5297), its keys derived by HKDF (RFC 5869).

A module of its own, loaded when the first token is sealed or opened: what it stands on takes some 10 MB, which a
gateway without bound credentials need not have.
"""

from __future__ import annotations

import hmac

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESSIV
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

_CIPHER_KEY_BYTES = 64
_MAC_KEY_BYTES = 32


class Cipher:
    """What one sealing key does. `info` says for what, as HKDF understands it."""

    def __init__(self, key: bytes, info: bytes) -> None:
        derived = HKDF(SHA256(), length=_CIPHER_KEY_BYTES + _MAC_KEY_BYTES, salt=None, info=info).derive(key)
        self._aead = AESSIV(derived[:_CIPHER_KEY_BYTES])
        self._mac_key = derived[_CIPHER_KEY_BYTES:]

    def encrypt(self, contents: bytes, *beside: bytes) -> bytes:
        """Encrypt `contents`, and authenticate what stands beside them, too."""
        return self._aead.encrypt(contents, list(beside))

    def decrypt(self, sealed: bytes, *beside: bytes) -> bytes | None:
        """What `encrypt` was given; None where it has not made this, or not beside these."""
        try:
            return self._aead.decrypt(sealed, list(beside))
        except InvalidTag:
            return None

    def mac(self, data: bytes) -> bytes:
        """32 bytes that only the key's holder can tell."""
        return hmac.digest(self._mac_key, data, "sha256")
