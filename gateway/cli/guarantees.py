"""Which guarantees of docs/protocol.md hold in a set-up, as far as its store and its rules decide."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase

from gateway.config.settings import Settings
from gateway.core.keys import Mode, WithoutToken
from gateway.upstream.examination import Report


class Holds(StrEnum):
    """How far a guarantee holds."""

    YES = "yes"
    IN_PART = "in part"
    NO = "no"


@dataclass(frozen=True, slots=True)
class Guarantee:
    """One line of the table."""

    name: str
    holds: Holds
    why: str


@dataclass(frozen=True, slots=True)
class Standing:
    """How the gateway's database stands to a bucket, as the bucket's record says."""

    recorded: bool
    """The bucket bears a record."""
    fault: str = ""
    """Why nothing fenced is served there; empty if it is."""


def guarantees(report: Report, settings: Settings, standing: Standing) -> list[Guarantee]:
    """G0 to G5 for the store that was examined, used as the settings say."""
    return [
        _g0(report, settings, standing),
        _g1(report, settings),
        _g2(report, settings),
        _g3(report, settings),
        _g4(report, settings),
        _g5(report),
    ]


def unmet(report: Report, settings: Settings) -> str | None:
    """What this store does not give though every store has to, or though the settings require it; None: nothing."""
    missing = [g.name for g in (_g1(report, settings), _g2(report, settings), _g5(report)) if g.holds is not Holds.YES]
    if missing:
        return f"with this store {' and '.join(missing)} do not hold, as they have to with every store"
    if settings.upstream.conditional == "require" and not report.capabilities.conditional_put:
        return '[upstream] conditional = "require": the gateway refuses all fenced writes to this store'
    return None


def unfenced(settings: Settings, bucket: str | None) -> list[str]:
    """The rules that take objects of the bucket out of the guarantees, for people; None: of any bucket."""
    told = []
    for number, rule in enumerate(settings.rule, 1):
        if bucket is not None and not any(fnmatchcase(bucket, pattern) for pattern in rule.buckets):
            continue
        if rule.mode is not Mode.ENFORCE:
            told.append(f"rule {number}, {rule.match}: mode {rule.mode.value}, nothing is fenced there")
        elif rule.without_token is WithoutToken.ALLOW:
            told.append(f"rule {number}, {rule.match}: writes without a token pass beside the fence")
    return told


def _g0(report: Report, settings: Settings, standing: Standing) -> Guarantee:
    if settings.store.fenced_before is False:
        other = "another one is not noticed: [store] fenced_before = false"
    elif standing.fault:
        other = f"nothing fenced is served in this bucket: {standing.fault}"
    elif standing.recorded:
        other = "another one is refused by the bucket's record, which is there"
    elif (reason := _no_conditions(report, settings)) is None:
        other = "another one is refused by the bucket's record, which comes with the first fenced write"
    elif settings.store.fenced_before is True:
        other = "a new one serves nothing fenced before it has rebuilt"
    else:
        other = f"another one is not noticed, since buckets bear no record: {reason}"
    return Guarantee("G0", Holds.YES, f"no floor falls as long as the gateway keeps its database; {other}")


def _g1(report: Report, settings: Settings) -> Guarantee:
    return _staging("G1", report, settings, "an upload is invisible before its last byte, and leaves nothing when cut")


def _g2(report: Report, settings: Settings) -> Guarantee:
    settle_s = settings.fencing.settle_timeout_s
    why = f"as G1; and the store must apply within {settle_s * 2 / 3:g} s what it has received (settle_timeout_s)"
    return _staging("G2", report, settings, why)


def _staging(name: str, report: Report, settings: Settings, why: str) -> Guarantee:
    faults = [report.findings[n].seen for n in ("withheld", "cut") if not report.findings[n].holds]
    if not faults:
        return Guarantee(name, Holds.YES, why)
    small = settings.fencing.small_body_bytes
    return Guarantee(name, Holds.IN_PART, f"only for bodies up to {small} bytes; of longer ones {'; '.join(faults)}")


def _g3(report: Report, settings: Settings) -> Guarantee:
    if (reason := _no_conditions(report, settings)) is not None:
        return Guarantee("G3", Holds.NO, f"{reason}; the gate alone protects")
    proved = report.capabilities
    operations = {"PutObject": True, "CopyObject": proved.conditional_copy, "DeleteObject": proved.conditional_delete}
    not_for = [name for name, holds in operations.items() if not holds] + ["CompleteMultipartUpload"]
    held = ", ".join(name for name, holds in operations.items() if holds)
    holds = Holds.YES if len(not_for) == 1 else Holds.IN_PART
    return Guarantee("G3", holds, f"for {held}; for {', '.join(not_for)} the gate alone protects")


def _g4(report: Report, settings: Settings) -> Guarantee:
    if (reason := _no_conditions(report, settings)) is not None:
        return Guarantee("G4", Holds.NO, reason)
    if not report.findings["metadata"].holds:
        return Guarantee("G4", Holds.NO, report.findings["metadata"].seen)
    return Guarantee("G4", Holds.YES, "the store keeps an object's token, and honours conditions on PUT")


def _g5(report: Report) -> Guarantee:
    plain = report.findings["plain"]
    return Guarantee(
        "G5", Holds.YES if plain.holds else Holds.NO, f"{plain.seen}; how durable, only the store's maker knows"
    )


def _no_conditions(report: Report, settings: Settings) -> str | None:
    """Why conditional PUT is not to be had; None if it is."""
    if settings.upstream.conditional == "off":
        return '[upstream] conditional = "off"'
    if report.capabilities.conditional_put:
        return None
    name = next(n for n in ("put-absent", "put-match", "put-moment", "put-race") if not report.findings[n].holds)
    return f"conditional PUT is not honoured: {report.findings[name].seen}"
