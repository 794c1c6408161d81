"""What came back from the upstream, and what it means for the send."""

from __future__ import annotations

import pytest

from gateway.core.write import Answer
from gateway.service.sending import with_etag
from gateway.service.values import Result

COMPLETED = b"<CompleteMultipartUploadResult><ETag>%b</ETag></CompleteMultipartUploadResult>"


@pytest.mark.parametrize(
    ("body", "answer", "etag"),
    [
        (COMPLETED % b"&quot;abc-2&quot;", Answer.APPLIED, '"abc-2"'),
        (b" \n " + COMPLETED % b"&quot;abc-2&quot;", Answer.APPLIED, '"abc-2"'),
        (COMPLETED % b"", Answer.APPLIED, ""),
        (b"", Answer.LOST, ""),
        (b"   ", Answer.LOST, ""),
        (COMPLETED[:40], Answer.LOST, ""),
        (b"<CompleteMultipartUploadResult/>", Answer.LOST, ""),
    ],
    ids=["its ETag", "after white space", "an empty ETag", "nothing", "white space", "cut", "no ETag"],
)
def test_a_complete_has_succeeded_when_its_document_has_an_etag(body: bytes, answer: Answer, etag: str) -> None:
    """S3 sends the 200 before the outcome; Ceph RGW 16.2 leaves the ETag empty."""
    result, found = with_etag(Result(200, [], body, Answer.APPLIED))
    assert (result.answer, found) == (answer, etag)


@pytest.mark.parametrize("answer", [Answer.REFUSED, Answer.LOST])
def test_what_is_no_success_stays_what_it_is(answer: Answer) -> None:
    """An ETag in a refusal changes nothing."""
    assert with_etag(Result(412, [], COMPLETED % b"x", answer))[0].answer is answer
