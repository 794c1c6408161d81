"""Where a job's output belongs: a rule says so, and it is the same place for every worker that ever does the job.

The place follows from the job's key alone, so `output` may use the names that the rule's `key` uses, and no others.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gateway.core.keys import PLACEHOLDER, FencingKey, Rule, compile_rule, keys_of

_WILDCARD = re.compile(r"[*?\[]")


@dataclass(frozen=True, slots=True)
class OutputLocation:
    """An object key, and its bucket where the rule is for one alone."""

    bucket: str | None
    key: str


def output_of(rules: Iterable[Rule], key: FencingKey) -> OutputLocation | None:
    """Where the job of `key` puts its output: as the first rule says that names a place and gives this key to what lies
    there. None where none does."""
    for rule in rules:
        template = rule.key_template
        if rule.output is None or template is None or (found := keys_of(rule).fullmatch(key)) is None:
            continue
        values = dict(zip(_names(template), found.groups(), strict=True))
        place = _filled(rule.output, values)
        there = rule.pattern.fullmatch(place)
        if there is not None and _filled(template, there.groupdict()) == key:
            only = rule.buckets[0] if len(rule.buckets) == 1 and not _WILDCARD.search(rule.buckets[0]) else None
            return OutputLocation(only, place)
    return None


def check_output(match: str, key: str | None, output: str) -> None:
    """Raises `ValueError`, with a message for its author, for an output that does not follow from the rule's key, or
    that the job could not write."""
    if key is None:
        raise ValueError("output needs key: it is made of the names in it")
    known = set(_names(key))
    for found in PLACEHOLDER.finditer(output):
        name, is_path, *_others, stray = found.groups()
        if stray or is_path or not name:
            raise ValueError(f"output has a stray {found.group()!r}; a placeholder is {{name}}")
        if name not in known:
            raise ValueError(f"output uses {{{name}}}, which key does not name: a job knows no more than its key")
    sample = {name: f"x{number}" for number, name in enumerate(sorted(known))}
    there = compile_rule(match, key)[0].fullmatch(_filled(output, sample))
    if there is None or _filled(key, there.groupdict()) != _filled(key, sample):
        raise ValueError("output does not fit match, or gives another key: the job could not write it")


def _names(template: str) -> list[str]:
    return [found[1] for found in PLACEHOLDER.finditer(template) if found[1]]


def _filled(template: str, values: Mapping[str, str]) -> str:
    return PLACEHOLDER.sub(lambda found: values[found[1]] if found[1] else found[0], template)
