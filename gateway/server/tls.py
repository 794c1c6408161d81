"""What the settings say of TLS: its files looked at, made into contexts, and read again when they have changed."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gateway.clock import SystemClock
from gateway.config.load import Fault
from gateway.config.settings import Settings
from gateway.config.source import Place
from gateway.telemetry import Telemetry
from gateway.tls import CertificateError, ChangingCertificate, client_context, server_context

if TYPE_CHECKING:
    from gateway.certificates import Identity


@dataclass(frozen=True, slots=True)
class _Files:
    """The files that one section names."""

    section: str
    """What the log calls it."""
    at: Place
    cert: Path | None = None
    key: Path | None = None
    ca: Path | None = None
    listens: bool = False

    def load(self, now: float) -> tuple[ssl.SSLContext, Identity | None]:
        """A context made of them as they are now, and whose certificate it shows. Raises `CertificateError`."""
        # Loaded where TLS is used: what looks into certificates takes some 10 MB.
        from gateway.certificates import check_authorities, read_identity  # noqa: PLC0415

        identity = None
        if self.cert is not None and self.key is not None:
            identity = read_identity(self.cert, self.key, now)
        if self.ca is not None:
            check_authorities(self.ca, now)
        try:
            if self.listens and self.cert is not None and self.key is not None:
                return server_context(self.cert, self.key), identity
            return client_context(self.ca, self.cert, self.key), identity
        except OSError as error:  # what OpenSSL alone sees, as a key that is too short
            path = self.cert or self.ca
            if path is None:  # nothing has been named: the system's own authorities
                raise
            reason = error.reason if isinstance(error, ssl.SSLError) else error.strerror
            raise CertificateError(path, f"cannot be used: {reason}") from error

    def place(self, error: CertificateError) -> Place:
        """The setting that names the file at fault."""
        names = {self.ca: "tls_ca", self.key: "tls_key", self.cert: "tls_cert"}
        return (*self.at, names[error.path])


def _files(settings: Settings) -> list[_Files]:
    """The sections that use TLS."""
    upstream = settings.upstream
    found = [
        _Files(name, (name,), section.tls_cert, section.tls_key, listens=True)
        for name, section in (("s3", settings.s3), ("control", settings.control))
        if section.tls_cert is not None
    ]
    if upstream.uses_tls:
        found.append(_Files("upstream", ("upstream",), upstream.tls_cert, upstream.tls_key, upstream.tls_ca))
    for index, webhook in enumerate(settings.webhook):
        if webhook.uses_tls:
            found.append(_Files(_webhook(webhook.called), ("webhook", index), ca=webhook.tls_ca))
    return found


def _webhook(name: str) -> str:
    return f"webhook {name}"


def tls_faults(settings: Settings) -> list[Fault]:
    """What is wrong with the files that the settings name, and where it is set."""
    faults: list[Fault] = []
    for files in _files(settings):
        try:
            files.load(SystemClock.wall())
        except CertificateError as error:
            faults.append((files.place(error), str(error)))
    return faults


class Tls:
    """The TLS of one gateway. Raises `CertificateError`."""

    def __init__(self, settings: Settings, wall: Callable[[], float]) -> None:
        self._wall = wall
        self._sides = {files.section: _Side(files, wall()) for files in _files(settings)}

    def listener(self, section: str) -> ssl.SSLContext | None:
        """What the listener `s3` or `control` is opened with; None: without TLS."""
        side = self._sides.get(section)
        return side.served if side else None

    def upstream(self) -> ssl.SSLContext:
        """What the next connection to an upstream that speaks TLS is opened with."""
        return self._sides["upstream"].context

    def webhook(self, name: str) -> ssl.SSLContext:
        """The same for the receiver of a webhook."""
        return self._sides[_webhook(name)].context

    def reload(self, telemetry: Telemetry) -> None:
        """Read all files again, for new connections. Files that cannot be used change nothing, and are told."""
        for side in self._sides.values():
            try:
                side.load(self._wall())
            except CertificateError as error:
                telemetry.warning("tls-refused", section=side.section, reason=f"{error}; the former stays in use")
            else:
                telemetry.event("tls-loaded", **side.told())

    def tell(self, telemetry: Telemetry) -> None:
        """Log what is in use."""
        for side in self._sides.values():
            telemetry.event("tls-loaded", **side.told())

    def shown(self) -> Iterator[tuple[str, Identity]]:
        """The certificates in use, by the sections that name them."""
        for side in self._sides.values():
            if side.identity is not None:
                yield side.section, side.identity


class TlsMetrics(Collector):
    """What Prometheus is told."""

    def __init__(self, tls: Tls) -> None:
        self._tls = tls

    def collect(self) -> Iterator[Metric]:
        expiry = GaugeMetricFamily(
            "fencing_tls_certificate_expiry_timestamp_seconds",
            "Until when the certificate in use, and its chain, are valid.",
            labels=["section"],
        )
        for section, identity in self._tls.shown():
            expiry.add_metric([section], identity.not_after.timestamp())
        yield expiry


class _Side:
    """One section's TLS."""

    def __init__(self, files: _Files, now: float) -> None:
        self._files = files
        self.section = files.section
        self.context, self.identity = files.load(now)
        self.served = self.context
        self._changing = ChangingCertificate(self.served) if files.listens else None

    def load(self, now: float) -> None:
        self.context, self.identity = self._files.load(now)
        if self._changing is not None:
            self._changing.change(self.context)

    def told(self) -> dict[str, object]:
        told: dict[str, object] = {"section": self.section}
        if self.identity is not None:
            told |= {"names": self.identity.names, "until": f"{self.identity.not_after:%Y-%m-%dT%H:%M:%SZ}"}
        return told
