"""How failures are told: the fence's by the interface's table, all as XML that every client reads."""

from __future__ import annotations

import ast
from pathlib import Path
from xml.etree.ElementTree import fromstring

import pytest
from hypothesis import given
from hypothesis import strategies as st

import gateway
from gateway.core.errors import FenceError, Malformed, Outcome, Reason, Refused, TryAgain
from gateway.s3.errors import CODE_OF_REASON, STATUS_OF_CODE, S3Error, of_fence, to_xml, xml_text

# The table of refusals as the interface states it.
TABLE = {
    Reason.STALE_TOKEN: (412, "PreconditionFailed"),
    Reason.SEALED: (412, "PreconditionFailed"),
    Reason.TOKEN_REQUIRED: (428, "FencingTokenRequired"),
    Reason.TOKEN_INVALID: (400, "InvalidArgument"),
    Reason.TOKEN_NOT_ISSUED: (400, "InvalidArgument"),
    Reason.TOKEN_JUMP: (400, "InvalidArgument"),
    Reason.KEY_INVALID: (400, "InvalidArgument"),
    Reason.NOT_SIGNED: (400, "InvalidArgument"),
    Reason.KEY_MISMATCH: (400, "InvalidArgument"),
    Reason.KEY_DENIED: (403, "AccessDenied"),
    Reason.OPERATION_NOT_FENCED: (501, "NotImplemented"),
    Reason.HANDOVER_PENDING: (503, "SlowDown"),
    Reason.IN_DOUBT: (503, "SlowDown"),
    Reason.STATE_MOVED: (503, "SlowDown"),
    Reason.OVERLOADED: (503, "SlowDown"),
    Reason.DRAINING: (503, "ServiceUnavailable"),
    Reason.STORE_UNAVAILABLE: (503, "ServiceUnavailable"),
    Reason.UPSTREAM_UNAVAILABLE: (503, "ServiceUnavailable"),
    Reason.SUPERSEDED: (503, "ServiceUnavailable"),
}


@pytest.mark.parametrize("reason", Reason)
def test_of_fence(reason: Reason) -> None:
    """Each reason has the status and code of the interface's table, and tells all its facts as elements."""
    error = of_fence(
        FenceError(
            reason,
            "told",
            key="job",
            token=33,
            floor=34,
            outcome=Outcome.UNKNOWN,
            argument=("X-Fencing-Token", "33"),
            retry_after_s=1,
        )
    )
    assert (error.status, error.code) == TABLE[reason]
    assert error.message == "told"
    condition = {"Condition": "X-Fencing-Token"} if error.status == 412 else {}
    assert error.elements == condition | {
        "ArgumentName": "X-Fencing-Token",
        "ArgumentValue": "33",
        "FencingReason": reason.value,
        "FencingKey": "job",
        "FencingToken": "33",
        "FencingFloor": "34",
        "FencingOutcome": "Unknown",
    }


def test_of_fence_says_what_is_known() -> None:
    """What is not known has no element; a floor of zero is known; nothing was applied unless it is said."""
    error = of_fence(Refused(Reason.KEY_DENIED, "no"))
    assert error.elements == {"FencingReason": "KeyDenied", "FencingOutcome": "NotApplied"}
    assert of_fence(TryAgain(Reason.IN_DOUBT, "no", floor=0)).elements["FencingFloor"] == "0"


def test_retry_is_told_by_the_status() -> None:
    """SDKs try 503 again and the rest once: the table agrees with what each kind of failure asks for."""
    assert {r for r, code in CODE_OF_REASON.items() if STATUS_OF_CODE[code] == 503} == {
        Reason.HANDOVER_PENDING,
        Reason.IN_DOUBT,
        Reason.STATE_MOVED,
        Reason.OVERLOADED,
        Reason.DRAINING,
        Reason.STORE_UNAVAILABLE,
        Reason.UPSTREAM_UNAVAILABLE,
        Reason.SUPERSEDED,
    }
    assert issubclass(Malformed, FenceError)


def test_s3s_own_412_bears_no_reason() -> None:
    """The client's own failed condition is not mistaken for the fence's refusal."""
    assert b"Fencing" not in to_xml(
        S3Error("PreconditionFailed", "no", Condition="If-Match"), resource="/b/k", request_id="1", host_id="h"
    )


def test_every_code_is_known() -> None:
    """The table has the status of every code that is raised anywhere, and of no other."""
    raised = set()
    for path in Path(gateway.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "S3Error":
                code = node.args[0] if node.args else None
                if isinstance(code, ast.Constant) and len(node.args) == 2:
                    raised.add(code.value)
    assert len(raised) > 20
    assert raised | set(CODE_OF_REASON.values()) == STATUS_OF_CODE.keys()


def test_status_of_its_own() -> None:
    """A status may be given where a code has several."""
    assert S3Error("RequestTimeout", "slow", 408).status == 408


def is_xml(character: str) -> bool:
    """XML 1.0, 2.2, "Char"."""
    code = ord(character)
    return code in (9, 10, 13) or 0x20 <= code < 0xD800 or 0xE000 <= code < 0xFFFE or code >= 0x10000


any_text = st.text(st.characters(codec=None))


@given(any_text, any_text, any_text)
def test_xml(message: str, value: str, resource: str) -> None:
    """The document is well-formed for any text, tells every character that XML can hold, and the rest as unreadable."""
    error = S3Error("InvalidArgument", message, ArgumentValue=value)
    root = fromstring(to_xml(error, resource=resource, request_id="R", host_id="H"))
    read = {child.tag: child.text or "" for child in root}
    readable = ["".join(c if is_xml(c) else "�" for c in text) for text in (message, value, resource)]
    assert root.tag == "Error"
    assert list(read) == ["Code", "Message", "ArgumentValue", "Resource", "RequestId", "HostId"]
    assert [read["Message"], read["ArgumentValue"], read["Resource"]] == readable
    assert (read["Code"], read["RequestId"], read["HostId"]) == ("InvalidArgument", "R", "H")


def test_xml_text() -> None:
    """White space keeps its kind, markup is escaped, and what XML cannot hold is marked."""
    assert xml_text("a&b<c>\r\n\t\xa0\u3000\x00\x1b\ud800\ufffe") == (
        "a&amp;b&lt;c&gt;&#13;&#10;&#9;\xa0\u3000" + "�" * 4
    )
