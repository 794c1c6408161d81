"""Judges by an onlooker at the store, who knows of each effect whose it is."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import replace

from tests.checker.attempts import CHANGES_OBJECTS, Attempt, Index
from tests.checker.evidence import Moment, begins, ends
from tests.checker.history import ANY, DELETES_VERSION, Effect
from tests.checker.rules import Rules, Violation


def judge_effects(index: Index, rules: Rules) -> Iterator[Violation]:
    """G1 to G5 and R9 for each effect, and, where the onlooker saw all, for each success."""
    for effects in index.effects.values():
        effects.sort(key=lambda entry: begins(entry[1].at, entry[0]))
        for place in range(len(effects)):
            yield from _effect(index, rules, effects, place)
            if (harm := _of_another_key(index, rules, effects, place)) is not None:
                yield harm
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
    bytes_now = index.bytes_of(before.value)
    returned = any(
        index.bytes_of(e.value) == bytes_now and (e.value != before.value or index.attempts[e.id].call.value == ANY)
        for _, e in effects[: place - 1]
    )
    writer, by = _writer(index, effects[:place]), index.attempts[before.id]
    fault = rules.against_replacing(attempt, writer, before.at[0], last, returned=returned)
    if fault is None and by is not writer:
        fault = rules.against_replacing(attempt, by, before.at[0], last, returned=True)
    return None if fault is None else replace(fault, lines=(number, *fault.lines))


def _writer(index: Index, effects: list[tuple[int, Effect]]) -> Attempt:
    """Who wrote what the last of them shows: not who has deleted a later version."""
    value, last = effects[-1][1].value, index.attempts[effects[-1][1].id]
    writers = (index.attempts[effect.id] for _, effect in reversed(effects) if effect.value == value)
    return next((writer for writer in writers if writer.call.operation != DELETES_VERSION), last)


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


def _of_another_key(index: Index, rules: Rules, effects: list[tuple[int, Effect]], place: int) -> Violation | None:
    """R9: a send passes its commit point only while none of another key may still take effect on the object. So no
    fenced write of another key takes effect between a send and its effect."""
    number, effect = effects[place]
    attempt = index.attempts[effect.id]
    when = begins(effect.at, number)
    sent, sent_number, _ = max((entry for entry in attempt.sent if entry[0] <= when), default=(None, 0, ""))
    if not attempt.fenced or sent is None:
        return None
    for other_number, other_effect in reversed(effects[:place]):
        if begins(other_effect.at, other_number) < sent:
            return None
        other = index.attempts[other_effect.id]
        if not other.fenced or not other.call.token or other.call.key == attempt.call.key:
            continue
        if rules.covers("R9", min(attempt.call.at[0], other.call.at[0]), when[0]):
            text = f"{attempt.named} takes effect, and was sent before {other.named} took effect"
            return Violation("R9", text, (attempt.number, sent_number, other.number, other_number, number))
    return None
