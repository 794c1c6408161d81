"""What schemathesis has to know of the control API beside its document."""

from __future__ import annotations

from typing import Any

import schemathesis
from hypothesis import strategies as st

from gateway.core.job import queue_fault
from gateway.core.keys import key_fault

schemathesis.openapi.format(
    "fencing-key",
    st.text(st.characters(codec="utf-8"), min_size=1, max_size=128).filter(lambda key: not key_fault(key)),
)

schemathesis.openapi.format(
    "queue-name",
    st.text(st.characters(codec="utf-8"), min_size=1, max_size=32).filter(lambda name: not queue_fault(name)),
)

WAITS = {"wait_s", "for_s"}
LONGEST_S = 86400


@schemathesis.hook
def before_call(context: Any, case: Any, kwargs: dict[str, Any]) -> None:
    """Whoever asks the gateway to wait is answered at once all the same, so that there is time for more."""
    if case.path == "/v1/trace":
        case.query = {"for_s": "0"} | (case.query or {})
    for said in (case.query, case.body):
        if isinstance(said, dict):
            for name in WAITS & said.keys():
                said[name] = _none(said[name])


def _none(wait_s: Any) -> Any:
    """No time for what is a time, as a number or as the text of a query; anything else as it is."""
    is_text = isinstance(wait_s, str) and wait_s.isdecimal()
    is_time = is_text or (isinstance(wait_s, int | float) and not isinstance(wait_s, bool))
    return (type(wait_s)(0) if not is_text else "0") if is_time and 0 < float(wait_s) <= LONGEST_S else wait_s
