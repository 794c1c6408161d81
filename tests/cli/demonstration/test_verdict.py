"""How the demonstration is judged."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gateway.cli.demonstration.verdict import Answer, WithGateway, WithoutGateway

OK = Answer(200)
AS_TOLD = WithGateway(
    tokens=(1, 2, 3),
    attempts_a=2,
    left_by_x=None,
    upload_b=OK,
    completion_b=OK,
    late_upload=Answer(412, "PreconditionFailed", "StaleToken", "2", "3"),
    late_completion=Answer(409, "", "completed", 3),
    status_a=1,
    winner="B",
    completed_by=3,
    announced=("completed:job-1:3",),
)


def test_the_story_has_no_fault() -> None:
    """What the story tells is as told, in both parts."""
    assert AS_TOLD.faults() == []
    assert WithoutGateway(OK, OK, "A").faults() == []


@pytest.mark.parametrize(
    ("otherwise", "fault"),
    [
        ({"tokens": (1, 1, 3)}, "higher"),
        ({"attempts_a": 1}, "second attempt"),
        ({"left_by_x": "X"}, "no object"),
        ({"upload_b": Answer(503)}, "B's upload"),
        ({"completion_b": Answer(409, "", "output-not-verified")}, "B's completion"),
        ({"late_upload": OK}, "412"),
        ({"late_upload": Answer(412, "PreconditionFailed", "Sealed")}, "412"),
        ({"late_upload": Answer(0, "ConnectionClosedError")}, "412"),
        ({"late_completion": OK}, "409"),
        ({"late_completion": Answer(409, "", "completed", 2)}, "409"),
        ({"late_completion": Answer(412, "", "stale")}, "409"),
        ({"status_a": 0}, "stopped itself"),
        ({"winner": "A"}, "object should be"),
        ({"completed_by": 2}, "name worker B's token"),
        ({"announced": ()}, "announced"),
        ({"announced": ("completed:job-1:2",)}, "announced"),
        ({"announced": ("completed:job-1:2", "completed:job-1:3")}, "announced"),
    ],
)
def test_whatever_goes_otherwise_is_a_fault(otherwise: dict[str, Any], fault: str) -> None:
    """One thing that is not as told is one fault, which says what should have been."""
    (found,) = replace(AS_TOLD, **otherwise).faults()
    assert fault in found


def test_without_the_gateway_the_late_write_must_win() -> None:
    """If the late write is refused there, or the object is another's, the second part shows nothing."""
    late = "worker A's late write should have won"
    assert WithoutGateway(OK, Answer(412), "B").faults() == [late]
    assert WithoutGateway(OK, OK, "B").faults() == [late]
    assert WithoutGateway(Answer(503), OK, "A").faults() == ["worker B's upload should have been accepted"]
