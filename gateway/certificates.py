"""Certificates and keys in files, looked at before TLS uses them: what is wrong, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_private_key

from gateway.tls import CertificateError

_DER_SEQUENCE = b"\x30"  # how every certificate and key begins that is not PEM


@dataclass(frozen=True, slots=True)
class Identity:
    """What a certificate says of its bearer."""

    names: tuple[str, ...]
    """The host names and IP addresses it is for."""
    not_after: datetime
    """Until when it is believed: its own last moment, or that of one in its chain, if that comes before."""


def read_identity(cert: Path, key: Path, now: float) -> Identity:
    """The certificate in `cert`, whose chain may follow it, looked at together with its key. `now` is the wall clock's.

    Raises `CertificateError` unless all is there, belongs together and is valid."""
    chain = _certificates(cert)
    public = _public_key(key)
    if public != _public(chain[0]):
        own = next((number for number, other in enumerate(chain, start=1) if _public(other) == public), None)
        if own is not None:
            raise CertificateError(
                cert, f"certificate number {own} is the one of the key {key}: put it first, its issuers after it"
            )
        raise CertificateError(key, f"is not the key of the certificate in {cert}: the two must be of one issue")
    for number, certificate in enumerate(chain, start=1):
        if fault := _out_of_time(certificate, now):
            which = "" if number == 1 else f"certificate number {number} ({certificate.subject.rfc4514_string()}) "
            raise CertificateError(cert, f"{which}{fault}")
    return Identity(_names(chain[0]), min(certificate.not_valid_after_utc for certificate in chain))


def check_authorities(path: Path, now: float) -> None:
    """Raises `CertificateError` unless `path` holds certificates, one of which at least is valid."""
    faults = [_out_of_time(certificate, now) for certificate in _certificates(path)]
    if None not in faults:
        raise CertificateError(path, f"holds no certificate that is valid now: the first {faults[0]}")


def _certificates(path: Path) -> list[x509.Certificate]:
    data = _read(path)
    if b"-----BEGIN CERTIFICATE-----" not in data:
        if b"PRIVATE KEY-----" in data:
            raise CertificateError(path, "holds a key and no certificate: are the two files exchanged?")
        raise CertificateError(path, _no_pem(data, "certificate", "x509"))
    try:
        return x509.load_pem_x509_certificates(data)
    except ValueError as error:
        raise CertificateError(path, f"holds a certificate that is damaged: {error}") from None


def _public_key(path: Path) -> bytes:
    """The public half of a private key."""
    data = _read(path)
    if b"PRIVATE KEY-----" not in data:
        if b"-----BEGIN CERTIFICATE-----" in data:
            raise CertificateError(path, "holds a certificate and no key: are the two files exchanged?")
        raise CertificateError(path, _no_pem(data, "private key", "pkey"))
    try:
        key = load_pem_private_key(data, password=None)
    except TypeError:
        raise CertificateError(
            path,
            "is encrypted, and nobody is there to be asked for its passphrase. Decrypt it into a file that the "
            f"gateway's user alone can read: openssl pkey -in {path} -out PLAIN.KEY",
        ) from None
    except (ValueError, UnsupportedAlgorithm):
        raise CertificateError(path, "holds a private key that is damaged, or of a kind that is not known") from None
    return key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except PermissionError:
        raise CertificateError(path, "cannot be read: the user that the gateway runs as must be allowed to") from None
    except OSError as error:
        raise CertificateError(path, f"cannot be read: {error.strerror}") from None


def _no_pem(data: bytes, what: str, command: str) -> str:
    if data.startswith(_DER_SEQUENCE):
        return f"is DER, and must be PEM: openssl {command} -inform der -in FILE -out FILE.pem"
    return f"holds no {what} in PEM, which begins with -----BEGIN {what.upper()}-----"


def _public(certificate: x509.Certificate) -> bytes:
    return certificate.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def _out_of_time(certificate: x509.Certificate, now: float) -> str | None:
    """RFC 5280, 4.1.2.5: both ends of the time are within it."""
    moment = datetime.fromtimestamp(now, UTC)
    if moment > certificate.not_valid_after_utc:
        return f"expired on {certificate.not_valid_after_utc:%Y-%m-%d %H:%M:%S} UTC: renew it"
    if moment < certificate.not_valid_before_utc:
        return (
            f"is valid from {certificate.not_valid_before_utc:%Y-%m-%d %H:%M:%S} UTC on, and here it is "
            f"{moment:%Y-%m-%d %H:%M:%S} UTC: look at this machine's clock"
        )
    return None


def _names(certificate: x509.Certificate) -> tuple[str, ...]:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return ()
    addresses = names.get_values_for_type(x509.IPAddress)
    return (*names.get_values_for_type(x509.DNSName), *(str(address) for address in addresses))
