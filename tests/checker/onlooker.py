"""Judges by an onlooker at the store, who knows of each effect whose it is."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import replace

from tests.checker.attempts import CHANGES_OBJECTS, Attempt, Index
from tests.checker.evidence import Moment, begins, ends
from tests.checker.history import ANY, Effect
from tests.checker.rules import Rules, Violation


def judge_effects(index: Index, rules: Rules) -> Iterator[Violation]:
    """G1 to G5 and R9 for each effect, and, where the onlooker saw all, for each success."""
    for name, effects in index.effects.items():
        effects.sort(key=lambda entry: begins(entry[1].at, entry[0]))
        owners = _Owners(index, name)
        for place, (number, effect) in enumerate(effects):
            attempt = index.attempts[effect.id]
            yield from _effect(index, rules, effects, place)
            if (harm := owners.against(attempt, begins(effect.at, number))) is not None:
                yield Violation("R9", harm[0], (number, *harm[1]))
    if index.setting.onlooker:
        for attempt in index.attempts.values():
            yield from _success(index, attempt)


def _effect(index: Index, rules: Rules, effects: list[tuple[int, Effect]], place: int) -> Iterator[Violation]:
    number, effect = effects[place]
    attempt = index.attempts[effect.id]
    if attempt.call.value not in (ANY, effect.value):
        text = f"{attempt.named} leaves {effect.value!r} where {attempt.call.value!r} was written"
        yield Violation("G5", text, (attempt.number, number))
    fault = rules.against_effect(attempt, begins(effect.at, number), effect.at[1])
    if fault is None and place:
        fault = _replacing(index, rules, effects, place)
    if fault is not None:
        yield Violation(fault.guarantee, fault.message, (number, *fault.lines))


def _replacing(index: Index, rules: Rules, effects: list[tuple[int, Effect]], place: int) -> Violation | None:
    number, before = effects[place - 1]
    if before.value is None:
        return None
    attempt, last = index.attempts[effects[place][1].id], effects[place][1].at[1]
    bytes_now = index.bytes_of(before.object, before.value)
    returned = any(
        index.bytes_of(e.object, e.value) == bytes_now and e.value != before.value for _, e in effects[: place - 1]
    )
    fault = rules.against_replacing(attempt, index.attempts[before.id], before.at[0], last, returned=returned)
    return None if fault is None else replace(fault, lines=(number, *fault.lines))


def _success(index: Index, attempt: Attempt) -> Iterator[Violation]:
    """G5: what is answered 2xx was there, at some moment between its first attempt and the answer."""
    call, answer = attempt.call, attempt.answer
    if answer is None or not attempt.applied or call.operation not in CHANGES_OBJECTS or call.value == ANY:
        return
    first = min((begins(a.call.at, a.number) for a in index.writers[call.object, call.value]), default=None)
    if call.operation != "CompleteMultipartUpload" or first is None:
        first = begins(call.at, attempt.number)
    effects = index.effects.get(call.object, [])
    moments: list[Moment] = [begins(effect.at, number) for number, effect in effects]
    start, end = bisect_right(moments, first), bisect_right(moments, ends(answer.at, attempt.answer_number))
    there = {effect.value for _, effect in effects[max(start - 1, 0) : end]}
    if start == 0:
        there.add(index.setting.initial.get(call.object))
    if call.value not in there:
        text = f"{attempt.named} is answered 2xx and {call.value or 'absence'} was never there"
        yield Violation("G5", text, (attempt.number, attempt.answer_number))


class _Owners:
    """R9: once a fenced write of one key has been answered 2xx, nothing that another key had sent on the object before
    takes effect any more."""

    def __init__(self, index: Index, name: str) -> None:
        self._answered = [
            (ends(a.answer.at, a.answer_number), a)
            for a in index.attempts.values()
            if a.call.object == name
            and a.fenced
            and a.call.token
            and a.answer is not None
            and a.applied
            and a.call.operation in CHANGES_OBJECTS
        ]

    def against(self, attempt: Attempt, when: Moment) -> tuple[str, tuple[int, ...]] | None:
        """What proves that the attempt's effect may not be `when` it is."""
        if not attempt.call.fenced or not attempt.sent:
            return None
        sent, number = max((entry for entry in attempt.sent if entry[0] <= when), default=(None, 0))
        if sent is None:
            return None
        for answered, other in self._answered:
            if other.call.key != attempt.call.key and sent < answered < when:
                text = f"{attempt.named}, sent before, takes effect after {other.named} has been answered 2xx"
                return text, (attempt.number, number, other.number, other.answer_number)
        return None
