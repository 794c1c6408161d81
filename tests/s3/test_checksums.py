"""The checksums of S3 against values that others computed."""

from __future__ import annotations

import hashlib
import os

import pytest
from botocore.httpchecksum import _CHECKSUM_CLS

from gateway.s3 import checksums

CHECK = {
    "crc32": "cbf43926",
    "crc32c": "e3069283",
    "crc64nvme": "ae8b14860a799888",
    "md5": "25f9e794323b453885f5181f1b624d0b",
    "sha1": "f7c3bc1d808e04732adf679965ccc34ca7ae3441",
    "xxhash64": "8cb841db40e6ae83",
}
"""The published check values: over the nine bytes 123456789."""


@pytest.mark.parametrize("algorithm", CHECK)
def test_the_published_check_values(algorithm: str) -> None:
    """Each algorithm gives its published value, big-endian, fed byte by byte."""
    running = checksums.start(algorithm)
    for byte in b"123456789":
        running.update(bytes((byte,)))
    assert running.digest().hex() == CHECK[algorithm]


@pytest.mark.parametrize("algorithm", sorted(checksums.ALGORITHMS))
@pytest.mark.parametrize("payload", [b"", b"a", os.urandom(100_000)], ids=["empty", "one", "large"])
def test_they_are_what_the_sdk_sends(algorithm: str, payload: bytes) -> None:
    """Value and length are those that botocore puts on the wire."""
    running = checksums.start(algorithm)
    running.update(payload[:777])
    running.update(payload[777:])
    value = checksums.encode(running.digest())
    if algorithm == "md5":  # which botocore knows by name alone
        assert value == checksums.encode(hashlib.md5(payload).digest())
    else:
        assert value == _CHECKSUM_CLS[algorithm]().handle(payload)
    assert len(value) == checksums.value_length(algorithm)
    decoded = checksums.decode(algorithm, value)
    assert decoded is not None
    assert checksums.encode(decoded) == value


def test_every_algorithm_of_the_service_is_known() -> None:
    """An algorithm that S3's own model gains is noticed here."""
    import botocore.session

    model = botocore.session.get_session().get_service_model("s3")
    assert {name.lower() for name in model.shape_for("ChecksumAlgorithm").enum} == checksums.ALGORITHMS


@pytest.mark.parametrize("value", ["", "AAAA", "AAAAAAA=", "AAAAA===", "AAA=A===", "AA AAA==", "AAAAA-==", "ä"])
def test_what_is_no_checksum_is_none(value: str) -> None:
    """Wrong length, alphabet or padding is told from a checksum."""
    assert checksums.decode("crc32", value) is None
    assert checksums.decode("crc32", "AAAAAA==") == bytes(4)
