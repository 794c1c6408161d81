"""Where a job's output belongs, as its rule says."""

from __future__ import annotations

import pytest

from gateway.core.keys import FencingKey, Rule, Ruleset, compile_rule
from gateway.core.outputs import OutputLocation, check_output, output_of


def rule(match: str, key: str | None, output: str | None, *buckets: str) -> Rule:
    return Rule(*compile_rule(match, key), buckets=buckets or ("*",), output=output)


RENDERS = rule("renders/{job}/**", "{job}", "renders/{job}/final.mp4")


def place(key: str, *rules: Rule) -> OutputLocation | None:
    return output_of(Ruleset(rules), FencingKey(key))


def test_the_key_gives_the_place() -> None:
    """Every worker that does a job is told the same object."""
    assert place("frame 7", RENDERS) == OutputLocation(None, "renders/frame 7/final.mp4")


@pytest.mark.parametrize(
    ("buckets", "bucket"), [(("films",), "films"), (("*",), None), (("a", "b"), None), (("film?",), None)]
)
def test_bucket(buckets: tuple[str, ...], bucket: str | None) -> None:
    """The bucket is told where the rule is for one alone."""
    found = place("7", rule("{job}/**", "{job}", "{job}/out", *buckets))
    assert found == OutputLocation(bucket, "7/out")


def test_several_names() -> None:
    """Each name in the key goes to its place, also one that spans segments or comes twice."""
    shots = rule("{show}/{shot:path}/v1/*", "{show}:{shot}:{show}", "{show}/{shot}/v1/cut")
    assert place("a:b/c:a", shots) == OutputLocation(None, "a/b/c/v1/cut")
    assert place("a:b/c:other", shots) is None


def test_a_key_that_the_rule_cannot_give() -> None:
    """A key of another form has no place, and neither has one whose place would be another job's."""
    assert place("a/b", RENDERS) is None
    assert place("a-b-c/d", rule("{x}-{y}/**", "{x}-{y}", "{x}-{y}/out")) is None
    assert place("job-7", rule("r/{n}/**", "job-{n}", None)) is None
    assert place("job-7", rule("r/{n}/**", None, None)) is None


def test_the_place_must_lead_back_to_the_key() -> None:
    """A template that can be read in two ways gives no place rather than that of another job."""
    odd = rule("r/{x}/{y}", "{y}-{x}", "r/{x}/{y}")
    assert place("a-b", odd) == OutputLocation(None, "r/b/a")
    assert place("/-b", rule("r/{x:path}/end/{y:path}", "{x}{y}", "r/{y}/end/{x}")) is None


def test_the_first_rule_that_names_a_place_speaks() -> None:
    """Rules without an output, or for other keys, are passed over."""
    rules = (rule("r/{job}/**", "{job}", None), rule("s/{n}/**", "s-{n}", "s/{n}/out"), RENDERS)
    assert place("s-1", *rules) == OutputLocation(None, "s/1/out")
    assert place("t-1", *rules) == OutputLocation(None, "renders/t-1/final.mp4")


@pytest.mark.parametrize(
    ("match", "key", "output", "fault"),
    [
        ("r/{job}/**", None, "r/{job}/out", "needs key"),
        ("r/{job}/{pass}/**", "{job}", "r/{job}/{pass}/out", "key does not name"),
        ("r/{job}/**", "{job}", "r/{job:path}/out", "stray"),
        ("r/{job}/**", "{job}", "r/*/out", "stray"),
        ("r/{job}/**", "{job}", "r/{job/out", "stray"),
        ("r/{job}/**", "{job}", "s/{job}/out", "does not fit match"),
        ("r/{a}/{b}", "{a}-{b}", "r/{b}/{a}", "another key"),
        ("r/{job}/**", "{job}", "r/fixed/out", "another key"),
    ],
)
def test_bad_outputs(match: str, key: str | None, output: str, fault: str) -> None:
    """An output that no worker could write, or that does not follow from the key, is refused with its reason."""
    with pytest.raises(ValueError, match=fault):
        check_output(match, key, output)


def test_good_outputs() -> None:
    """The contract's own example, and one without names under a key without names."""
    check_output("renders/{job}/**", "{job}", "renders/{job}/final.mp4")
    check_output("daily/**", "daily", "daily/report.csv")
