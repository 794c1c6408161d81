"""What schemathesis has to know of the control API beside its document."""

from __future__ import annotations

from typing import Any

import schemathesis
from hypothesis import strategies as st

from gateway.core.keys import key_fault

schemathesis.openapi.format(
    "fencing-key",
    st.text(st.characters(codec="utf-8"), min_size=1, max_size=128).filter(lambda key: not key_fault(key)),
)

schemathesis.openapi.format("queue-name", st.just("frames"))  # one, so that what is submitted is received

WAITS = {"wait_s": 0.0, "for_s": 0.0, "ttl_s": 60.0, "visibility_s": 60.0}
"""The longest of each that is asked for: nobody waits here, and the settings bound how long a lease lasts."""
LONGEST_S = 86400.0


@schemathesis.hook
def before_call(context: Any, case: Any, kwargs: dict[str, Any]) -> None:
    """What may be as long as it likes is made short; what is wrong stays wrong."""
    if case.path == "/v1/trace":
        case.query = {"for_s": "0"} | (case.query or {})
    for said in (case.query, case.body):
        if isinstance(said, dict):
            for name, longest_s in WAITS.items():
                if name in said:
                    said[name] = _cut(said[name], longest_s)


def _cut(told: Any, longest_s: float) -> Any:
    """A time, as a number or as the text of a query; anything else as it is."""
    if isinstance(told, str):
        return str(int(min(int(told), longest_s))) if told.isdecimal() and int(told) <= LONGEST_S else told
    is_time = isinstance(told, int | float) and not isinstance(told, bool)
    return type(told)(min(told, longest_s)) if is_time and told > 0 else told
