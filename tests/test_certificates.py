"""Files of certificates and keys: what is wrong with them is told, with what to do."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)

from gateway.certificates import check_authorities, read_identity
from gateway.tls import CertificateError
from tests.authority import Authority, Pair


@pytest.fixture
def pair(authority: Authority) -> Pair:
    """Files that a test may spoil."""
    return authority.issue("s3.example.com", "127.0.0.1")


def fault(cert: Path, key: Path) -> str:
    """What is said of a pair that cannot be used."""
    with pytest.raises(CertificateError) as raised:
        read_identity(cert, key, time.time())
    assert str(raised.value).startswith(f"{raised.value.path}: ")
    assert raised.value.path in (cert, key)
    return str(raised.value)


def test_a_good_pair_tells_its_names_and_its_end(pair: Pair, tmp_path: Path) -> None:
    """The names it is for, and its last moment; also where one file holds both."""
    identity = read_identity(*pair, time.time())
    assert identity.names == ("s3.example.com", "127.0.0.1")
    assert 86_000 < identity.not_after.timestamp() - time.time() <= 86_400
    both = tmp_path / "both.pem"
    both.write_bytes(pair.key.read_bytes() + pair.cert.read_bytes())
    assert read_identity(both, both, time.time()) == identity


def test_a_chain_ends_with_the_first_of_it(authority: Authority) -> None:
    """A certificate is believed no longer than those that vouch for it."""
    pair, above = authority.issue("s3.example.com", to_days=9), authority.issue("issuer.example.com", to_days=2)
    pair.cert.write_bytes(pair.cert.read_bytes() + above.cert.read_bytes())
    assert read_identity(*pair, time.time()).not_after == read_identity(*above, time.time()).not_after


def encrypt(pair: Pair) -> None:
    key = load_pem_private_key(pair.key.read_bytes(), None)
    pair.key.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"sesame")))


def encode_key_in_der(pair: Pair) -> None:
    key = load_pem_private_key(pair.key.read_bytes(), None)
    pair.key.write_bytes(key.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption()))


def encode_in_der(pair: Pair) -> None:
    certificate = x509.load_pem_x509_certificate(pair.cert.read_bytes())
    pair.cert.write_bytes(certificate.public_bytes(Encoding.DER))


def exchange(pair: Pair) -> None:
    cert, key = pair.cert.read_bytes(), pair.key.read_bytes()
    pair.cert.write_bytes(key)
    pair.key.write_bytes(cert)


def damage(path: Path) -> None:
    lines = path.read_text().splitlines()
    path.write_text("\n".join([lines[0], lines[1][:-4] + "AAAA", *lines[2:3], lines[-1]]))


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda pair: pair.cert.unlink(), "cannot be read: No such file"),
        (lambda pair: pair.key.unlink(), "cannot be read: No such file"),
        (lambda pair: (pair.key.unlink(), pair.key.mkdir()), "cannot be read: Is a directory"),
        (lambda pair: pair.cert.write_text(""), "holds no certificate in PEM"),
        (lambda pair: pair.key.write_text("hello"), "holds no private key in PEM"),
        (encrypt, "is encrypted, and nobody is there to be asked for its passphrase. Decrypt it"),
        (encode_in_der, "is DER, and must be PEM: openssl x509 -inform der"),
        (encode_key_in_der, "is DER, and must be PEM: openssl pkey -inform der"),
        (exchange, "are the two files exchanged?"),
        (lambda pair: damage(pair.cert), "holds a certificate that is damaged"),
        (lambda pair: damage(pair.key), "holds a private key that is damaged"),
    ],
)
def test_a_file_that_cannot_be_used(pair: Pair, spoil: Callable[[Pair], object], words: str) -> None:
    """Each fault is named, and no byte of a key is shown."""
    key = pair.key.read_text().splitlines()[1]
    spoil(pair)
    told = fault(*pair)
    assert words in told
    assert key[:16] not in told


def test_a_key_of_another_certificate(pair: Pair, authority: Authority) -> None:
    """A key that does not belong to the certificate is the key's fault."""
    other = authority.issue("s3.example.com")
    assert fault(pair.cert, other.key).startswith(f"{other.key}: is not the key of the certificate in {pair.cert}")


def test_a_chain_the_wrong_way_round(tmp_path: Path) -> None:
    """An issuer before the certificate is told apart from a wrong key."""
    pair = Authority(tmp_path, below=Authority(tmp_path)).issue("s3.example.com")
    end = "-----END CERTIFICATE-----\n"
    own, issuer = [part + end for part in pair.cert.read_text().split(end)[:2]]
    pair.cert.write_text(issuer + own)
    assert "certificate number 2 is the one of the key" in fault(*pair)


def test_certificates_out_of_their_time(pair: Pair, authority: Authority, tmp_path: Path) -> None:
    """Expired, and not valid yet, with the date, and for the chain's other certificates with their place."""
    assert " expired on 20" in fault(*authority.issue("a", from_days=-2, to_days=-1))
    assert "look at this machine's clock" in fault(*authority.issue("a", from_days=1, to_days=2))
    expired = authority.issue("issuer", from_days=-2, to_days=-1)
    pair.cert.write_text(pair.cert.read_text() + expired.cert.read_text())
    assert "certificate number 2 (" in fault(*pair)


def test_authorities(authority: Authority, tmp_path: Path) -> None:
    """A file of authorities holds certificates, and one at least that is valid; others may have expired."""
    check_authorities(authority.file, time.time())
    expired = authority.issue("old", from_days=-2, to_days=-1).cert
    with pytest.raises(CertificateError, match="holds no certificate that is valid now: the first expired on"):
        check_authorities(expired, time.time())
    bundle = tmp_path / "bundle.pem"
    bundle.write_bytes(expired.read_bytes() + authority.file.read_bytes())
    check_authorities(bundle, time.time())
    with pytest.raises(CertificateError, match="cannot be read"):
        check_authorities(tmp_path / "missing", time.time())
