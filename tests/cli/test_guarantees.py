"""Which guarantees hold, from what was found and what is configured."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gateway.cli.guarantees import Holds, Standing, guarantees, unfenced, unmet
from gateway.config.load import load
from gateway.config.settings import Settings
from gateway.upstream.base import Capabilities
from gateway.upstream.examination import TOLD, Report
from gateway.upstream.experiments import Finding

NEW = Standing(recorded=False)
"""Nothing fenced has been written to the bucket."""
YES, IN_PART, NO = Holds.YES, Holds.IN_PART, Holds.NO
ALL = Capabilities(conditional_put=True, conditional_copy=True, conditional_delete=True)


def report(*lacks: str, capabilities: Capabilities = ALL) -> Report:
    """All that can be found holds, but for `lacks`."""
    return Report({name: Finding(name not in lacks, f"{name} was seen") for name in TOLD}, capabilities, ())


def settings(**upstream: object) -> Settings:
    return load(None, {}, {f"upstream.{key}": value for key, value in upstream.items()})


@pytest.mark.parametrize(
    ("found", "conditional", "holds"),
    [
        (report(), "auto", (YES, YES, YES, YES, YES, YES)),
        (report(), "off", (YES, YES, YES, NO, NO, YES)),
        (report("copy", capabilities=replace(ALL, conditional_copy=False)), "auto", (YES, YES, YES, IN_PART, YES, YES)),
        (report("put-race", capabilities=Capabilities()), "auto", (YES, YES, YES, NO, NO, YES)),
        (report("metadata"), "auto", (YES, YES, YES, YES, NO, YES)),
        (report("withheld"), "auto", (YES, IN_PART, IN_PART, YES, YES, YES)),
        (report("cut"), "auto", (YES, IN_PART, IN_PART, YES, YES, YES)),
        (report("plain"), "auto", (YES, YES, YES, YES, YES, NO)),
        (report("complete", "paths", "trailers", "silence", "versions"), "auto", (YES,) * 6),
    ],
)
def test_each_guarantee_rests_on_its_experiments(found: Report, conditional: str, holds: tuple[Holds, ...]) -> None:
    """What a store lacks costs the guarantees that need it, and no other."""
    told = guarantees(found, settings(conditional=conditional), NEW)
    assert [guarantee.name for guarantee in told] == ["G0", "G1", "G2", "G3", "G4", "G5"]
    assert tuple(guarantee.holds for guarantee in told) == holds


def test_why_a_guarantee_does_not_hold() -> None:
    """The line says what was seen, which operations are left, and what protects all the same."""
    told = {g.name: g.why for g in guarantees(report("put-match", capabilities=Capabilities()), settings(), NEW)}
    assert told["G3"] == "conditional PUT is not honoured: put-match was seen; the gate alone protects"
    told = {
        g.name: g.why for g in guarantees(report(capabilities=replace(ALL, conditional_delete=False)), settings(), NEW)
    }
    assert told["G3"].startswith("for PutObject, CopyObject; for DeleteObject, CompleteMultipartUpload the gate alone")
    assert "up to 65536 bytes" in next(g.why for g in guarantees(report("withheld"), settings(), NEW) if g.name == "G1")


@pytest.mark.parametrize(
    ("found", "fenced_before", "standing", "words"),
    [
        (report(), "auto", NEW, "the bucket's record, which comes with the first fenced write"),
        (report(), "auto", Standing(True), "the bucket's record, which is there"),
        (report(), "auto", Standing(True, "it is X's"), "nothing fenced is served in this bucket: it is X's"),
        (report(), False, NEW, "fenced_before = false"),
        (report("put-race", capabilities=Capabilities()), "auto", NEW, "not noticed, since buckets bear no record"),
        (report("put-race", capabilities=Capabilities()), "auto", Standing(True), "record, which is there"),
        (report("put-race", capabilities=Capabilities()), True, NEW, "serves nothing fenced before it has rebuilt"),
    ],
)
def test_what_becomes_of_another_database(found: Report, fenced_before: object, standing: Standing, words: str) -> None:
    """Floors are as safe as their database; whether another one would be noticed is said beside."""
    told = guarantees(found, load(None, {}, {"store.fenced_before": fenced_before}), standing)
    assert words in told[0].why


@pytest.mark.parametrize(
    ("found", "conditional", "words"),
    [
        (report(), "require", None),
        (report("put-race", capabilities=Capabilities()), "auto", None),
        (report("put-race", capabilities=Capabilities()), "require", "refuses all fenced writes"),
        (report("withheld"), "auto", "G1 and G2 do not hold"),
        (report("plain"), "auto", "G5 do"),
    ],
)
def test_what_is_not_good_enough(found: Report, conditional: str, words: str | None) -> None:
    """What every store has to give, and what the configuration requires."""
    fault = unmet(found, settings(conditional=conditional))
    assert fault is None if words is None else words in (fault or "")


def test_the_rules_that_take_objects_out(tmp_path) -> None:
    """Those of the bucket alone, each with its number."""
    file = tmp_path / "gateway.toml"
    file.write_text(
        '[[rule]]\nmatch = "a/**"\nmode = "off"\n'
        '[[rule]]\nmatch = "b/**"\nbuckets = ["other"]\nmode = "off"\n'
        '[[rule]]\nmatch = "c/**"\nbuckets = ["ren*"]\nwithout_token = "allow"\n'
        '[[rule]]\nmatch = "d/**"\nmode = "observe"\n'
        '[[rule]]\nmatch = "e/**"\n'
    )
    told = unfenced(load(file, {}, {}), "renders")
    assert [line.partition(":")[0] for line in told] == ["rule 1, a/**", "rule 3, c/**", "rule 4, d/**"]
    of_any = unfenced(load(file, {}, {}), None)
    assert [line.partition(":")[0] for line in of_any] == [
        "rule 1, a/**",
        "rule 2, b/**",
        "rule 3, c/**",
        "rule 4, d/**",
    ]
