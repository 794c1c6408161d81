"""Tokens, fence keys, and the rules that map an object to the key of its job (R9, R11).

Three sources may name the key of an object: a rule, the binding of credentials or an upload, the client's header.
Where none speaks, the object is a job of its own: `object:<bucket>/<key>`, a namespace no source can name.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from fnmatch import fnmatchcase
from functools import lru_cache
from hashlib import sha256
from typing import NewType
from urllib.parse import quote, unquote, unquote_to_bytes

from gateway.core.errors import Malformed, Reason

Token = NewType("Token", int)
"""1 to 2^63-1; 0 stands for a write without a token."""
FencingKey = NewType("FencingKey", str)

NO_TOKEN = Token(0)
MAX_TOKEN = 2**63 - 1
MAX_EXACT = 2**53
"""Every reader of JSON has whole numbers exact up to here."""
MAX_KEY_BYTES = 512
OBJECT_NAMESPACE = "object:"

_TOKEN = re.compile(r"[1-9][0-9]{0,18}", re.ASCII)
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_SHOWN_CHARACTERS = 64
_MAX_METADATA_KEY_CHARACTERS = 256
_HASH = "sha256:"


def parse_token(text: str, argument: str = "X-Fencing-Token") -> Token:
    """The token that `text` writes. Raises `Malformed` (TokenInvalid) for anything but 1 to 2^63-1 in plain
    digits without sign, point or leading zero. `argument` names where the text came from."""
    if _TOKEN.fullmatch(text) and (value := int(text)) <= MAX_TOKEN:
        return Token(value)
    raise Malformed(
        Reason.TOKEN_INVALID,
        "A fencing token is a whole number from 1 to 9223372036854775807, written in decimal digits without sign, "
        "point, spaces or leading zeros. Send the token that came with your lease.",
        argument=(argument, text[:_SHOWN_CHARACTERS]),
    )


def token_in_json(token: int) -> int | str:
    """A number where every reader has it exact, a string above."""
    return token if token <= MAX_EXACT else str(token)


def parse_key(text: str, argument: str = "X-Fencing-Key") -> FencingKey:
    """The fence key that `text` writes, percent-decoded. Raises `Malformed` (KeyInvalid)."""
    try:
        key = unquote_to_bytes(text.encode("utf-8", "surrogateescape")).decode()
    except UnicodeError:
        key = ""
    if fault := key_fault(key):
        raise Malformed(Reason.KEY_INVALID, f"This fencing key {fault}.", argument=(argument, text[:_SHOWN_CHARACTERS]))
    return FencingKey(key)


def key_fault(key: str) -> str | None:
    """What is wrong with a fence key that a client, rule or operator names; None if nothing is."""
    try:
        size_bytes = len(key.encode())
    except UnicodeEncodeError:
        size_bytes = 0
    if not size_bytes:
        return "is empty or not valid UTF-8"
    if size_bytes > MAX_KEY_BYTES:
        return f"is longer than {MAX_KEY_BYTES} bytes of UTF-8"
    if _CONTROL.search(key):
        return "holds a control character"
    if key.startswith(OBJECT_NAMESPACE):
        return f"begins with {OBJECT_NAMESPACE!r}, which is kept for objects that no key has been named for"
    return None


def key_of_object(bucket: str, object_key: str) -> FencingKey:
    """The key of an object for which nothing names one."""
    return FencingKey(f"{OBJECT_NAMESPACE}{bucket}/{object_key}")


@lru_cache(maxsize=4096)
def key_in_metadata(key: str) -> str:
    """The key as the stored object carries it: percent-encoded ASCII, or its hash if that is long.

    The encoded form holds no colon, so no key looks like a hash of another."""
    encoded = quote(key, safe="/-._~")
    if len(encoded) <= _MAX_METADATA_KEY_CHARACTERS:
        return encoded
    return _HASH + sha256(key.encode()).hexdigest()


def key_of_metadata(carried: str) -> FencingKey:
    """The key that a stored object carries; the stand-in for it where that is a hash."""
    if carried.startswith(_HASH):
        return FencingKey(f"{OBJECT_NAMESPACE}/{carried}")  # no bucket has an empty name
    return FencingKey(unquote(carried))


def stand_in_of(key: str) -> FencingKey | None:
    """The name that bears what is known of `key` by its hash alone; None for a key that objects carry in full."""
    carried = key_in_metadata(key)
    return key_of_metadata(carried) if carried.startswith(_HASH) else None


class Mode(StrEnum):
    """How far a rule reaches (R11)."""

    ENFORCE = "enforce"
    OBSERVE = "observe"
    OFF = "off"


class WithoutToken(StrEnum):
    """What happens to a write that bears no token (R11)."""

    REQUIRE = "require"
    UNTIL_FENCED = "until-fenced"
    ALLOW = "allow"


@dataclass(frozen=True, slots=True)
class TokenLimits:
    """How far the tokens of an outside service may rise (R10); None is no limit."""

    first_token: int | None = None
    """The highest that a key without a floor takes."""
    jump: int | None = None
    """How far above the floor, where there is one, the next may lie."""

    def refuse_beyond(self, key: FencingKey, token: Token, floor: int) -> None:
        """Raises `Malformed` (TokenJump) for a `token` that would raise `floor` beyond the limit."""
        limit = self.first_token if floor == 0 else None if self.jump is None else floor + self.jump
        if limit is None or token <= limit:
            return
        bound = (
            f"the first token of a key is at most {limit} here (max_first_token)"
            if floor == 0
            else f"its floor is {floor}, and here a token lies at most {self.jump} above it (max_token_jump)"
        )
        raise Malformed(
            Reason.TOKEN_JUMP,
            f"Token {token} is too high for {key!r}: {bound}. Send the token of your lease. If it is the right one, an "
            "operator lets it in: fencing-gateway fence raise.",
            key=key,
            token=token,
            floor=floor,
            argument=("X-Fencing-Token", str(token)),
        )

    def strictest(self, other: TokenLimits) -> TokenLimits:
        """Both at once."""
        return TokenLimits(_lower(self.first_token, other.first_token), _lower(self.jump, other.jump))


def _lower(one: int | None, other: int | None) -> int | None:
    return min((limit for limit in (one, other) if limit is not None), default=None)


UNLIMITED = TokenLimits()


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule of the configuration, compiled."""

    pattern: re.Pattern[str]
    key_template: str | None
    buckets: tuple[str, ...] = ("*",)
    mode: Mode = Mode.ENFORCE
    without_token: WithoutToken = WithoutToken.UNTIL_FENCED
    rekey: bool = False
    limits: TokenLimits = UNLIMITED
    output: str | None = None
    """Where the job of a key puts its result (`gateway.core.outputs`)."""


DEFAULT_RULE = Rule(re.compile(""), None)
"""What holds where no rule matches."""


@dataclass(slots=True)
class Mapping:
    """What the rules say of one object: its rule, and its key if the rule names one."""

    rule: Rule
    key: FencingKey | None


PLACEHOLDER = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)(:path)?\}|(\*\*)|(\*)|([{}])")


def compile_rule(match: str, key: str | None) -> tuple[re.Pattern[str], str | None]:
    """The pattern and the key template of a rule. Raises `ValueError` with a message for its author.

    In `match`, `{name}` stands for one non-empty path segment, `{name:path}` for several, `*` for anything within a
    segment, `**` for the rest; `key` may use every name of `match`. Each takes as little as it can.

    The time of a match grows at most with the square of the object key's length, whatever the pattern: a placeholder
    and what follows it are an atomic group, up to the next placeholder or, for one that crosses segments, up to the
    next of that kind. No match is lost by never coming back to it: the shortest leaves the most to what comes after."""
    if not match:
        raise ValueError("match is empty; write '**' for every object")
    if match.startswith("/"):
        raise ValueError("match begins with a slash, which no object key does; leave it out")
    pattern, names = _compile(match)
    if key is not None:
        _check_template(key, names)
    return pattern, key


def _compile(match: str) -> tuple[re.Pattern[str], set[str]]:
    """The pattern, and the names in it. Raises `ValueError`."""
    pattern, names, end = "", set[str](), 0
    in_segment = in_path = False
    for found in PLACEHOLDER.finditer(match):
        pattern += re.escape(match[end : found.start()])
        end = found.end()
        name, is_path, rest, _star, stray = found.groups()
        if stray:
            raise ValueError(f"match has a stray {stray!r}; a placeholder is {{name}} or {{name:path}}")
        if name:
            if name in names:
                raise ValueError(f"match names {{{name}}} twice")
            names.add(name)
        crosses = bool(is_path or rest)
        pattern += ")" * (in_segment + (in_path and crosses)) + "(?>"
        in_segment, in_path = not crosses, in_path or crosses
        anything = "." if crosses else "[^/]"
        pattern += f"(?P<{name}>{anything}+?)" if name else f"{anything}*?"
    pattern += re.escape(match[end:]) + r"\Z" + ")" * (in_segment + in_path)
    return re.compile(pattern, re.DOTALL), names


def _check_template(key: str, names: set[str]) -> None:
    rest = key
    for found in PLACEHOLDER.finditer(key):
        name, is_path, *_others, stray = found.groups()
        if stray or is_path:
            raise ValueError(f"key has a stray {found.group()!r}; a placeholder is {{name}}")
        if name and name not in names:
            raise ValueError(f"key uses {{{name}}}, which match does not name")
        if name:
            rest = rest.replace(found.group(), "x")
    if fault := key_fault(rest):
        raise ValueError(f"key {fault}")


class Ruleset:
    """All rules in their order; the first that matches speaks."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._rules = tuple(rules)

    def __iter__(self) -> Iterator[Rule]:
        return iter(self._rules)

    def map(self, bucket: str, object_key: str) -> Mapping:
        """What the rules say of an object. Raises `Malformed` (KeyInvalid) where the rule's template gives no
        valid key for it."""
        for rule in self._rules:
            if "*" not in rule.buckets and not any(fnmatchcase(bucket, pattern) for pattern in rule.buckets):
                continue
            if found := rule.pattern.fullmatch(object_key):
                return Mapping(rule, _render(rule.key_template, found, object_key))
        return Mapping(DEFAULT_RULE, None)

    def limits_of(self, key: FencingKey) -> TokenLimits:
        """What holds for tokens of `key` where no object is at hand: of an object's own key, that object's limits; else
        the strictest of the rules that may give the key, else of those that leave it to others to name.
        Raises `Malformed` where the rules give that object no valid key."""
        if key.startswith(OBJECT_NAMESPACE):
            return self.map(*key.removeprefix(OBJECT_NAMESPACE).partition("/")[::2]).rule.limits
        enforced = [rule for rule in self._rules if rule.mode is Mode.ENFORCE]
        giving = [rule for rule in enforced if _may_give(rule, key)]
        limits = UNLIMITED
        for rule in giving or [rule for rule in enforced if rule.key_template is None]:
            limits = limits.strictest(rule.limits)
        return limits


@lru_cache(maxsize=1024)
def keys_of(rule: Rule) -> re.Pattern[str]:
    """What the keys that a rule's template gives look like."""
    count = itertools.count()

    def placeholder(found: re.Match[str]) -> str:
        if found[1] is None:
            return found[0]
        crosses = f"(?P<{found[1]}>." in rule.pattern.pattern  # as `_compile` writes one that takes several segments
        return f"{{n{next(count)}{':path' if crosses else ''}}}"

    return _compile(PLACEHOLDER.sub(placeholder, rule.key_template or ""))[0]


def _may_give(rule: Rule, key: FencingKey) -> bool:
    return rule.key_template is not None and keys_of(rule).fullmatch(key) is not None


@lru_cache(maxsize=1024)
def _format_of(template: str) -> str:
    """A rule's template as Python's `%` fills it."""
    return PLACEHOLDER.sub(lambda p: f"%({p[1]})s" if p[1] else p[0], template.replace("%", "%%"))


def _render(template: str | None, found: re.Match[str], object_key: str) -> FencingKey | None:
    if template is None:
        return None
    key = _format_of(template) % found.groupdict()
    if fault := key_fault(key):
        raise Malformed(
            Reason.KEY_INVALID,
            f"The rule for this object gives it a fencing key that {fault}.",
            argument=("Key", object_key[:_SHOWN_CHARACTERS]),
        )
    return FencingKey(key)


def agree(object_key: FencingKey, **named: FencingKey | None) -> tuple[FencingKey, bool]:
    """The one key that all sources name, and whether any named it; `object_key` where none does.

    Raises `Malformed` (KeyMismatch) where two differ. `named` holds source and key, the strongest first."""
    speaker, chosen = "", None
    for source, key in named.items():
        if key is None:
            continue
        if chosen is None:
            speaker, chosen = source, key
        elif key != chosen:
            raise Malformed(
                Reason.KEY_MISMATCH,
                "Two sources name different fencing keys for this object: "
                f"the {speaker} {chosen!r}, the {source} {key!r}. Write under {chosen!r}, or to an object of {key!r}.",
                key=chosen,
                argument=("X-Fencing-Key", key),
            )
    return (object_key, False) if chosen is None else (chosen, True)
