"""AWS Signature Version 4 as S3 speaks it: read what a request claims, verify it, sign requests and chunks.

Pure: the time is an argument (`now`, seconds since the epoch). Rules: S3 API reference, "Authenticating
Requests (AWS Signature Version 4)", with its pages on the Authorization header, on query parameters, and on
chunked uploads with and without trailing headers.
"""

from __future__ import annotations

import hmac

EMPTY_SHA256 = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


class ChunkSigner:
    """The chain of signatures over an aws-chunked body: each covers its chunk and the signature before it.

    `seed_signature` is that of the request itself, `signing_key` what `verify` returned for it."""

    __slots__ = ("_key", "_previous", "_scope")

    def __init__(self, signing_key: bytes, amz_date: str, scope: str, seed_signature: str) -> None:
        self._key = signing_key
        self._scope = f"{amz_date}\n{scope}\n"
        self._previous = seed_signature

    def chunk_signature(self, data_sha256: str) -> str:
        """The signature due for the next chunk, whose data has this SHA-256 (hex); the chain moves on to it."""
        return self._next(
            f"AWS4-HMAC-SHA256-PAYLOAD\n{self._scope}{self._previous}\n{EMPTY_SHA256}\n{data_sha256}"
        )

    def trailer_signature(self, trailer_sha256: str) -> str:
        """The signature due for the trailer: SHA-256 (hex) of its fields as `name:value\\n` each."""
        return self._next(f"AWS4-HMAC-SHA256-TRAILER\n{self._scope}{self._previous}\n{trailer_sha256}")

    def _next(self, string_to_sign: str) -> str:
        self._previous = hmac.digest(self._key, string_to_sign.encode(), "sha256").hex()
        return self._previous
