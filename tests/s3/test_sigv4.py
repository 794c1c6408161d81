"""Signatures against the published examples and against botocore, a signer that is not ours."""

from __future__ import annotations

import hashlib
import hmac

from gateway.s3.sigv4 import ChunkSigner

SECRET = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
SCOPE = "20130524/us-east-1/s3/aws4_request"


def signing_key() -> bytes:
    key = b"AWS4" + SECRET.encode()
    for part in SCOPE.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    return key


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def test_chunk_signatures_of_the_published_example() -> None:
    """The three chunk signatures of S3's "sigv4-streaming" page come out in their chain."""
    seed = "4f232c4386841ef735655705268965c44a0e4690baa4adea153f7db9fa80a0a9"
    signer = ChunkSigner(signing_key(), "20130524T000000Z", SCOPE, seed)
    assert [signer.chunk_signature(sha256(b"a" * n)) for n in (65536, 1024, 0)] == [
        "ad80c730a21e5b8d04586a2213dd63b9a0e99e0e2307b0ade35a65485a288648",
        "0055627c9e194cb4542bae2aa5492e3c1575bbb81b612b7d234b86a503ef5497",
        "b6c6ea8a5354eaf15b3cb7646744f4275b71ea724fed81ceb9323e279d449df9",
    ]


def test_trailer_signature_of_the_published_example() -> None:
    """The chunk and trailer signatures of S3's "sigv4-streaming-trailers" page come out in their chain."""
    seed = "106e2a8a18243abcf37539882f36619c00e2dfc72633413f02d3b74544bfeb8e"
    signer = ChunkSigner(signing_key(), "20130524T000000Z", SCOPE, seed)
    assert [signer.chunk_signature(sha256(b"a" * n)) for n in (65536, 1024, 0)] == [
        "b474d8862b1487a5145d686f57f013e54db672cee1c953b3010fb58501ef5aa2",
        "1c1344b170168f8e65b41376b44b20fe354e373826ccbbe2c1d40a8cae51e5c7",
        "2ca2aba2005185cf7159c6277faf83795951dd77a3a99e6e65d5c9f85863f992",
    ]
    trailer = sha256(b"x-amz-checksum-crc32c:sOO8/Q==\n")
    assert (
        signer.trailer_signature(trailer)
        == "d81f82fc3505edab99d459891051a732e8730629a2e4a59689829ca17fe2e435"
    )
