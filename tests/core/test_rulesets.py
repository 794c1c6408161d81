"""The rules from objects to keys, and how far tokens may rise under them (R9, R10, R11)."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.errors import Malformed, Reason
from gateway.core.keys import (
    DEFAULT_RULE,
    FencingKey,
    Mode,
    Rule,
    Ruleset,
    TokenLimits,
    WithoutToken,
    compile_rule,
)

# --- the grammar of rules


def matched(match: str, object_key: str) -> dict[str, str] | None:
    """What the pattern's names stand for; None where it does not match."""
    pattern, _ = compile_rule(match, None)
    found = pattern.fullmatch(object_key)
    return None if found is None else found.groupdict()


@pytest.mark.parametrize(
    ("match", "object_key", "names"),
    [
        ("renders/{job}/**", "renders/7/a/b.exr", {"job": "7"}),
        ("renders/{job}/**", "renders/7/", {"job": "7"}),
        ("renders/{job}/**", "renders/7", None),
        ("renders/{job}/**", "renders//a", None),
        ("renders/{job}/**", "xrenders/7/a", None),
        ("renders/{job}/**", "renders/7/a\nb", {"job": "7"}),
        ("{job}", "a/b", None),
        ("{job}", "a\n", {"job": "a\n"}),
        ("{job:path}/out", "a/b/out", {"job": "a/b"}),
        ("{job:path}/out", "/out", None),
        ("{job:path}/out", "a/out\n", None),
        ("{job:path}/x/**", "a/x/b/x/c", {"job": "a"}),
        ("{a}-{b}", "x-y-z", {"a": "x", "b": "y-z"}),
        ("{a}{b}", "xyz", {"a": "x", "b": "yz"}),
        ("{a}{b}", "x", None),
        ("{a:path}{b:path}", "x/y", {"a": "x", "b": "/y"}),
        ("*.exr", ".exr", {}),
        ("*.exr", "a.exr", {}),
        ("*.exr", "a/b.exr", None),
        ("*.exr", "aXexr", None),
        ("a/*/c", "a//c", {}),
        ("a**c", "a/b/c", {}),
        ("**", "", {}),
        ("***", "a/b", {}),
        ("a.b+c(d)[e]^$|\\?", "a.b+c(d)[e]^$|\\?", {}),
        ("a.b", "aXb", None),
        ("é/{x}", "é/ü", {"x": "ü"}),
        ("a b%20/{x}", "a b%20/y", {"x": "y"}),
    ],
)
def test_match(match: str, object_key: str, names: dict[str, str] | None) -> None:
    """A placeholder keeps to its segment or its path, takes as little as it can, and all else is literal."""
    assert matched(match, object_key) == names


@pytest.mark.parametrize(
    ("match", "key", "fault"),
    [
        ("", None, "empty"),
        ("/renders/{job}/**", "{job}", "begins with a slash"),
        ("a{", None, "stray '{'"),
        ("a}", None, "stray '}'"),
        ("{}", None, "stray"),
        ("{1a}", None, "stray"),
        ("{a b}", None, "stray"),
        ("{a:int}", None, "stray"),
        ("{{a}}", None, "stray"),
        ("{a}/{a}", None, "twice"),
        ("{a}/{a:path}", None, "twice"),
        ("{a}", "{b}", "does not name"),
        ("{a:path}", "{a:path}", "stray '{a:path}'"),
        ("{a}", "x{", "stray"),
        ("{a}", "", "empty"),
        ("{a}", "object:{a}", "object:"),
        ("{a}", "x\n{a}", "control"),
        ("{a}", "x" * 513, "longer"),
    ],
)
def test_bad_rules(match: str, key: str | None, fault: str) -> None:
    """A rule that cannot mean anything is an error with a message for its author."""
    with pytest.raises(ValueError, match=fault):
        compile_rule(match, key)


PLACEHOLDERS = {"*": "[^/]*", "**": ".*", "{}": "[^/]+", "{:path}": ".+"}


@given(
    st.lists(st.sampled_from(["a", "b", "/", "ab", *PLACEHOLDERS]), min_size=1, max_size=7).filter(
        lambda parts: parts[0] != "/"
    ),
    st.lists(st.text("ab/\n", max_size=9), min_size=1, max_size=8),
)
def test_no_match_is_lost(parts: list[str], object_keys: list[str]) -> None:
    """The patterns match exactly what patterns with full backtracking match."""
    match = "".join(f"{{n{i}{p[1:]}" if p.startswith("{") else p for i, p in enumerate(parts))
    # Stars that touch are read from the left, two at a time.
    spelt = "".join(PLACEHOLDERS.get(p, p) for p in re.findall(r"\*\*|\*|\{:path\}|\{\}|[ab/]", "".join(parts)))
    for object_key in object_keys:
        assert (matched(match, object_key) is not None) == bool(re.fullmatch(spelt, object_key, re.DOTALL))


@contextmanager
def no_longer_than(limit_s: int) -> Iterator[None]:
    """Interrupts what runs inside; the regex engine looks for signals while it backtracks."""

    def interrupt(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.alarm(limit_s)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize(
    "match",
    [
        "/".join(f"{{n{i}:path}}" for i in range(8)) + "/x",
        "".join(f"{{n{i}:path}}" for i in range(8)) + "x",
        "".join(f"{{n{i}}}" for i in range(8)) + "x",
        "*a" * 8 + "x",
        "**a" * 8 + "x",
        "**/*a*a*a" * 3 + "x",
    ],
)
def test_hostile_object_keys(match: str) -> None:
    """No object key makes a match take more than the square of its length: with backtracking, these take centuries."""
    pattern, _ = compile_rule(match, None)
    with no_longer_than(20):
        for object_key in ("a" * 1024, "/" * 1024, "a/" * 512, "aa/" * 341):
            assert pattern.fullmatch(object_key) is None


# --- rulesets


def rule_of(match: str, key: str | None = None, buckets: tuple[str, ...] = ("*",)) -> Rule:
    return Rule(*compile_rule(match, key), buckets)


def test_first_match_wins() -> None:
    """The first rule that matches speaks, even if it names no key."""
    first, second, third = rule_of("a/skip/**"), rule_of("a/{job}/**", "j-{job}"), rule_of("**", "rest")
    rules = Ruleset([first, second, third])
    assert (rules.map("b", "a/skip/x").rule, rules.map("b", "a/skip/x").key) == (first, None)
    assert (rules.map("b", "a/7/x").rule, rules.map("b", "a/7/x").key) == (second, "j-7")
    assert rules.map("b", "z").key == "rest"


def test_buckets_of_rules() -> None:
    """A rule speaks for its buckets only, which are shell patterns; the job's key does not depend on the bucket."""
    rules = Ruleset([rule_of("{job}/**", "{job}", ("b1", "stud*")), rule_of("**", "any")])
    assert [rules.map(bucket, "7/x").key for bucket in ("b1", "studio", "b3")] == ["7", "7", "any"]


def test_no_rule() -> None:
    """Where no rule matches, the default holds: enforced, without a token until fenced, the object its own job."""
    mapping = Ruleset([rule_of("a")]).map("b", "c")
    assert mapping.rule is DEFAULT_RULE
    assert mapping.key is None
    assert (DEFAULT_RULE.mode, DEFAULT_RULE.without_token) == (Mode.ENFORCE, WithoutToken.UNTIL_FENCED)
    assert not DEFAULT_RULE.rekey


@pytest.mark.parametrize(
    ("key", "object_key", "expected"),
    [
        ("{a}", "x/y", "x"),
        ("{b}/{a}", "x/y", "y/x"),
        ("const", "x/y", "const"),
        ("{a}-{a}", "x/y", "x-x"),
        ("*{a}**", "x/y", "*x**"),
        ("{a}", "{b}/y", "{b}"),
        ("{a}", "\\1/y", "\\1"),
        ("{a}", "é%41/y", "é%41"),
        ("%(x)s{a}100%", "7/x", "%(x)s7100%"),
    ],
)
def test_templates(key: str, object_key: str, expected: str) -> None:
    """The template's names are replaced once by what the object key holds there; all else stays."""
    assert Ruleset([rule_of("{a}/{b}", key)]).map("b", object_key).key == expected


@pytest.mark.parametrize(
    ("key", "object_key", "fault"),
    [
        ("{a}", "a\nb/y", "control"),
        ("{a}", "x" * 513 + "/y", "longer"),
        ("{a}", "object:b/y", "object:"),
        ("{a}:{b}", "object/k", "object:"),
    ],
)
def test_no_valid_key(key: str, object_key: str, fault: str) -> None:
    """An object to which the template gives no valid key is refused, never left unfenced."""
    with pytest.raises(Malformed, match=fault) as caught:
        Ruleset([rule_of("{a}/{b}", key)]).map("b", object_key)
    assert caught.value.reason is Reason.KEY_INVALID
    assert caught.value.argument == ("Key", object_key[:64])


# --- how far tokens may rise, where no object is at hand


def limited(match: str, key: str | None, first: int | None, jump: int | None = None, mode: Mode = Mode.ENFORCE) -> Rule:
    return Rule(*compile_rule(match, key), mode=mode, limits=TokenLimits(first, jump))


LIMITED = Ruleset(
    [
        limited("renders/{job}/logs/**", "{job}", 100, 7),
        limited("renders/{job}/**", "{job}", 90, None),
        limited("{dir:path}/shot-{n}.exr", "{dir}#{n}-{n}", 80),
        limited("all/**", "/everything", 70),
        limited("stars/{n}", "stars*/{n}", 65),
        limited("tmp/{name}", "tmp:{name}", 60, mode=Mode.OBSERVE),
        limited("loose/**", None, 50),
        limited("**", None, None, 40),
    ]
)


@pytest.mark.parametrize(
    ("key", "limits"),
    [
        ("job-1", TokenLimits(90, 7)),
        ("a/b#12-12", TokenLimits(80)),
        ("/everything", TokenLimits(70)),
        ("stars*/9", TokenLimits(65)),
        ("a/b", TokenLimits(50, 40)),
        ("object:b/loose/a/b", TokenLimits(50)),
        ("object:b/other", TokenLimits(None, 40)),
        ("object:b/all/x", TokenLimits(70)),
        ("object:b", TokenLimits(None, 40)),
    ],
)
def test_limits_of_a_key(key: str, limits: TokenLimits) -> None:
    """The strictest of the enforced rules that may give the key; of those that name none, where none may; an object's
    own key is as limited as the object."""
    assert LIMITED.limits_of(FencingKey(key)) == limits


def test_limits_without_rules() -> None:
    """Without rules no token is too high."""
    assert Ruleset([]).limits_of(FencingKey("job")) == TokenLimits()


def test_hostile_keys() -> None:
    """No key makes the search for its limits take longer than the square of its length."""
    rules = Ruleset([limited("/".join(f"{{n{i}}}" for i in range(8)), "-".join(f"{{n{i}}}" for i in range(8)), 1)])
    with no_longer_than(20):
        assert rules.limits_of(FencingKey("-" * 511 + "/")) == TokenLimits()
