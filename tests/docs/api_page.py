"""The parts of docs/api.md that are made from the calls: `make docs` writes them, a test holds them to the code.

Between two comments stand the table of reasons, and below each call's heading who may make it, what it takes, answers
and says no for. A call without a section gets one, with what its handler's docstring says.
"""

from __future__ import annotations

import re

from pydantic import BaseModel

from gateway.server.control.calls import Call, Media, Role
from gateway.server.control.documents import Shown
from gateway.server.control.problems import REASONS
from tests.docs.pages import DOCS
from tests.server.control.contract import calls

PAGE = DOCS / "api.md"
BEGIN, END = "<!-- made by `make docs` -->", "<!-- to here -->"
LAST = "## Not in this version"

_MADE = re.compile(f"{BEGIN}\n.*?{END}\n", re.DOTALL)


def render(text: str) -> str:
    """The page, its made parts made anew."""
    head, *sections = re.split(r"^(?=## )", text, flags=re.MULTILINE)
    found = {section.partition("\n")[0]: section for section in sections}
    for call in calls():
        heading = f"## {call.method} {call.path}"
        section = found.get(heading) or f"{heading}\n\n{BEGIN}\n{END}\n\n{_told(call)}\n\n"
        found[heading] = _MADE.sub(lambda _, call=call: _made(_about(call)), section)  # type: ignore[misc]
    last = found.pop(LAST, "")
    return _MADE.sub(lambda _: _made(_reasons()), head) + "".join(found.values()) + last


def _made(text: str) -> str:
    return f"{BEGIN}\n{text}\n{END}\n"


def _told(call: Call) -> str:
    return re.sub(r"\s+", " ", call.handler.__doc__ or "").strip()


def _reasons() -> str:
    lines = ["| status | `reason` | |", "|---|---|---|"]
    for reason, (status, meaning) in sorted(REASONS.items(), key=lambda item: (item[1][0], item[0])):
        lines.append(f"| {status} | `{reason}` | {meaning} |")
    return "\n".join(lines)


def _about(call: Call) -> str:
    """One line of a call."""
    signature = call.signature
    said = [{Role.ANYONE: "Anyone", Role.WORKER: "Worker", Role.OPERATOR: "Operator"}[call.role]]
    if signature.query is not None:
        said.append(f"query {_members(signature.query)}")
    if call.headers:
        said.append("header " + ", ".join(f"`{header.name}`" for header in call.headers))
    if signature.body is not None:
        said.append(f"body {_members(signature.body)}")
    said.append(f"answers {', '.join(map(str, call.statuses))}{_answered(call.media, signature.answer)}")
    if call.refuses:
        refusals = sorted((REASONS[reason][0], reason) for reason in call.refuses)
        said.append("refuses " + ", ".join(f"{status} `{reason}`" for status, reason in refusals))
    return " · ".join(said)


def _members(model: type[BaseModel]) -> str:
    """The members; with a question mark those that may be left out."""
    return ", ".join(f"`{name}{'' if field.is_required() else '?'}`" for name, field in model.model_fields.items())


def _answered(media: Media | None, answer: type[Shown] | None) -> str:
    if media is not None:
        return f" {media.type}"
    return "" if answer is None else f" {_members(answer)}"


if __name__ == "__main__":
    PAGE.write_text(render(PAGE.read_text()))
