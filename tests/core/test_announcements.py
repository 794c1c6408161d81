"""What is announced: ids that name job and token, and the form of a CloudEvent."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.core.announcements import Announcement, Topic, source_of

DONE = Announcement(Topic.COMPLETED, "job-1", 34, 34, 1_700_000_000.25, "by w2", "R1")
KEYS = st.text(st.characters(exclude_categories=("Cs", "Cc")), min_size=1, max_size=300)


def test_the_id_names_job_and_token() -> None:
    """Whoever records that token 34 has completed job-1 announces the same, at whatever moment and request."""
    assert DONE.id == "completed:job-1:34"
    assert replace(DONE, at=1.0, detail="by w3", request_id="R2").id == DONE.id


@pytest.mark.parametrize("topic", Topic)
def test_topics_keys_and_tokens_have_ids_of_their_own(topic: Topic) -> None:
    """What differs in topic, key or token differs in id."""
    others = [replace(DONE, topic=one, key=key, token=token) for one in Topic for key in "ab" for token in (1, 2)]
    assert sum(one.id == replace(DONE, topic=topic, key="a", token=1).id for one in others) == 1


def test_each_refusal_has_its_own_id() -> None:
    """A stale worker may be refused again later: that is another announcement."""
    refused = replace(DONE, topic=Topic.REFUSED)
    assert refused.id != replace(refused, at=refused.at + 0.000_01).id


@given(KEYS, KEYS)
def test_ids_of_any_keys(one: str, other: str) -> None:
    """Whatever a key holds, its id is a header's text without a dot, and another key has another."""
    first, second = replace(DONE, key=one).id, replace(DONE, key=other).id
    assert first.isascii()
    assert first.isprintable()
    assert "." not in first
    assert " " not in first
    assert len(first) < 400
    assert (first == second) == (one == other)


def test_a_long_key_is_named_by_its_hash() -> None:
    """Receivers have columns for ids: no key makes one longer than they may be taken for."""
    assert len(replace(DONE, key="ä" * 256).id) < 100


def test_the_form_of_a_cloud_event() -> None:
    """Every attribute that CloudEvents requires, and the facts under `data`."""
    assert DONE.as_cloud_event(source_of("4f")) == {
        "specversion": "1.0",
        "type": "fencing.completed",
        "source": "urn:fencing-gateway:4f",
        "id": "completed:job-1:34",
        "time": "2023-11-14T22:13:20.250000Z",
        "subject": "job-1",
        "datacontenttype": "application/json",
        "data": {"key": "job-1", "token": 34, "floor": 34, "detail": "by w2", "request_id": "R1", "count": 1},
    }
