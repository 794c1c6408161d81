"""The gateway's own functions, spoken to in the explorer's numbers. A rule is taken away by replacing what is here or
there."""

from __future__ import annotations

from gateway.core import write as core_write
from gateway.core.errors import FenceError
from gateway.core.keys import FencingKey, Token, key_in_metadata
from gateway.core.write import ABSENT as NO_OBJECT
from gateway.core.write import Answer, ObjectState, Verdict
from gateway.service import refusals
from tests.model.world import ABSENT, FORGOTTEN, Head


def state(content: int, key: FencingKey | None, token: int, nonce: int) -> ObjectState:
    """A head as the core knows it."""
    if content == ABSENT:
        return NO_OBJECT
    return ObjectState(str(content), None if key is None else key_in_metadata(key), token, str(nonce) if nonce else "")


def condition_on(memory: Head) -> int:
    """The condition on the state last seen, as the content that it demands."""
    known = None if memory == FORGOTTEN else state(memory[0], None, 0, 0)
    etag = core_write.condition_on(known).etag
    return ABSENT if etag is None else int(etag)


def judge(head: ObjectState, key: FencingKey, token: int, nonce: int) -> Verdict:
    """How a head is judged for a send."""
    return core_write.judge(head, key, Token(token), str(nonce) if nonce else None)


def classify(status: int, code: str | None) -> Answer:
    """What an answer says about its send."""
    return core_write.classify(status, code)


def contested(key: FencingKey) -> FenceError:
    """The service's refusal while another key's send may still land."""
    return refusals.contested(key, 1)
