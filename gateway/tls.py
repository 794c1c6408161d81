"""TLS on both sides: contexts from files, a listener's certificate changed under way, a failed handshake in words.

TLS 1.2 is the least, and nothing here can be told not to verify. Looking at the files before they are used, so that
their faults are told in words, is `gateway.certificates`'s.
"""

from __future__ import annotations

import re
import ssl
from pathlib import Path

_FIRST_CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)

# What X509_verify_cert(3) says when nothing that is trusted vouches for a certificate.
_UNKNOWN_AUTHORITY = frozenset({2, 18, 19, 20, 21})
_EXPIRED, _NOT_YET_VALID = 10, 9
_OTHER_NAME = frozenset({62, 64})  # a host name, an IP address


class CertificateError(Exception):
    """A file of certificates, or of a key, cannot be used. The message names it and says what to do."""

    def __init__(self, path: Path, message: str) -> None:
        super().__init__(f"{path}: {message}")
        self.path = path


def server_context(cert: Path, key: Path) -> ssl.SSLContext:
    """For a listener that shows the certificate in `cert` and its chain. Raises `OSError` (`ssl.SSLError`)."""
    context = _strict(ssl.create_default_context(ssl.Purpose.CLIENT_AUTH))
    context.load_cert_chain(cert, key)
    return context


def client_context(ca: Path | None = None, cert: Path | None = None, key: Path | None = None) -> ssl.SSLContext:
    """For connections to servers for which one in `ca` vouches, by default the system's authorities (OpenSSL's own
    SSL_CERT_FILE and SSL_CERT_DIR included), and whose certificate bears their name. `cert` and `key` are shown to a
    server that asks. Raises `OSError` (`ssl.SSLError`)."""
    context = _strict(ssl.create_default_context(cafile=ca))
    if ca is not None:
        # Whatever Python's version: what has been named is trusted for itself, also an authority that another one has
        # signed, and one made by `openssl req -x509`, which lacks what RFC 5280 demands of public ones.
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if cert is not None:
        context.load_cert_chain(cert, key)
    return context


def pinned_context(cert: Path) -> ssl.SSLContext:
    """For connections to the one server that bears the first certificate in `cert`, by whatever name it is called:
    nobody else has its key. Raises `OSError`, ValueError where the file holds none."""
    found = _FIRST_CERTIFICATE.search(cert.read_text("ascii", "replace"))
    if found is None:
        raise ValueError(f"{cert} holds no certificate in PEM")
    context = _strict(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
    context.load_verify_locations(cadata=found[0])
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.check_hostname = False
    return context


def _strict(context: ssl.SSLContext) -> ssl.SSLContext:
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # Without it, a server could still ask for a certificate once it has a request: `refused_by_server` rests on this.
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.set_alpn_protocols(["http/1.1"])
    return context


class ChangingCertificate:
    """A listener's context whose certificate can be changed: new handshakes get the one that was given last, running
    connections keep theirs."""

    def __init__(self, first: ssl.SSLContext) -> None:
        self._current = first
        first.sni_callback = self._choose  # called for every handshake, also for one that names no host

    def change(self, context: ssl.SSLContext) -> None:
        """Show this one's certificate from now on."""
        self._current = context

    def _choose(self, connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        connection.context = self._current


def handshake_fault(error: ssl.SSLError, ca_setting: str) -> str:
    """Why a handshake with a server failed, and what to do. `ca_setting` names the setting of its authorities."""
    if isinstance(error, ssl.SSLCertVerificationError):
        if error.verify_code == _EXPIRED:
            return "its certificate has expired"
        if error.verify_code == _NOT_YET_VALID:
            return "its certificate is not valid yet, or this machine's clock is slow"
        if error.verify_code in _OTHER_NAME:
            return f"its certificate is for another name ({error.verify_message.rstrip('.')})"
        if error.verify_code in _UNKNOWN_AUTHORITY:
            return (
                f"no authority that is known here vouches for its certificate ({error.verify_message}): name its own "
                f"in {ca_setting}"
            )
        return f"its certificate does not verify: {error.verify_message}"
    reason = (error.reason or "").upper().replace(" ", "_")
    if reason in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "PACKET_LENGTH_TOO_LONG", "RECORD_LAYER_FAILURE"):
        return "it does not speak TLS there (is it http:// instead of https://?)"
    if reason in ("UNSUPPORTED_PROTOCOL", "TLSV1_ALERT_PROTOCOL_VERSION"):
        return "it speaks no TLS 1.2 or later"
    if refused_by_server(error):
        why = str(_alert(error)).lower().replace("_", " ")
        return f"it refuses the certificate that it was shown, or wants one ({why})"
    if _alert(error) == "HANDSHAKE_FAILURE":
        return "it ends the handshake: it wants a certificate, or has no cipher in common with this side"
    return f"the TLS handshake failed: {error.reason or error}"


def refused_by_server(error: ssl.SSLError) -> bool:
    """Whether the server has ended the handshake by an alert about our certificate. In TLS 1.3 it does so when the
    client already holds the handshake for done and may have sent a request, which the server then has not read: it
    takes application data only from a client that it has accepted (RFC 8446, 4.4.2.4 and 6.2)."""
    return _alert(error) in _OF_OUR_CERTIFICATE


def said_farewell(connection: ssl.SSLObject) -> bool:
    """Whether the other side has ended TLS, by close_notify. A connection that ends without it may have been cut by
    anybody (RFC 8446, 6.1; RFC 9112, 9.8)."""
    try:
        return connection.read(1) == b""
    except ssl.SSLError:  # there is nothing to read, and yet no end
        return False


_OF_OUR_CERTIFICATE = frozenset(
    {
        "ACCESS_DENIED",
        "BAD_CERTIFICATE",
        "CERTIFICATE_EXPIRED",
        "CERTIFICATE_REQUIRED",
        "CERTIFICATE_REVOKED",
        "CERTIFICATE_UNKNOWN",
        "UNKNOWN_CA",
        "UNSUPPORTED_CERTIFICATE",
    }
)


def _alert(error: ssl.SSLError) -> str | None:
    """The name of the alert (RFC 8446, 6.2) that the other side sent; None if that is not what happened."""
    _, alert, name = (error.reason or "").upper().replace(" ", "_").partition("ALERT_")
    return name if alert else None
