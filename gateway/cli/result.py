"""What a worker says of the job that it has done: a result, and the objects that it has written."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import orjson

from gateway.cli.settings import fail
from gateway.cli.show import printable
from gateway.client.calls import output_of
from gateway.core.job import MAX_RESULT_BYTES


def check_outputs(outputs: Sequence[str]) -> None:
    """An exit with status 2 where one is no object."""
    for name in outputs:
        try:
            output_of(name)
        except ValueError as error:
            fail(printable(f"--output: {error}"))


class NoResult(Exception):
    """The file has none to be told; the message says why."""


def result_of(file: Path | None) -> object:
    """The result in a file, as `json_or_text`. Raises `NoResult`."""
    if file is None:
        return None
    try:
        data = file.read_bytes()
    except OSError as error:
        raise NoResult(f"--result {file} cannot be read: {error.strerror}") from error
    if len(data) > MAX_RESULT_BYTES:
        raise NoResult(f"--result {file} is larger than {MAX_RESULT_BYTES} bytes")
    return json_or_text(data.decode("utf-8", "replace"))


def json_or_text(text: str) -> orjson.Fragment | str:
    """JSON, to be sent as it was written; else the text."""
    try:
        json.loads(text, parse_constant=_none_such, parse_int=str)  # of whatever length
    except ValueError:
        return text
    except RecursionError:
        pass  # JSON, too deep for this parser: for the gateway to judge
    return orjson.Fragment(text)


def _none_such(name: str) -> None:
    """What Python takes for a number and JSON does not."""
    raise ValueError(name)
