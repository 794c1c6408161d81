"""Options and arguments that several commands take."""

from __future__ import annotations

import math
import os
import re
import socket
from collections.abc import Callable
from typing import Any

import click

from gateway.core.errors import Malformed
from gateway.core.keys import parse_token

LONGEST_WAIT = "Seconds to wait, at most what the gateway allows ([lease] max_wait_s)."


class Seconds(click.FloatRange):
    """A time on the command line."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        seconds = float(super().convert(value, param, ctx))
        if not math.isfinite(seconds):  # no range keeps `nan` out
            self.fail(f"{value} is no number of seconds", param, ctx)
        return seconds


class TokenType(click.ParamType[int]):
    """A token on the command line, under the rule that holds for headers."""

    name = "token"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            return parse_token(value)
        except Malformed as error:
            self.fail(error.message, param, ctx)


class RepeatKey(click.ParamType[str]):
    """What the header `Idempotency-Key` can hold (docs/api.md). An empty one is a script's fault: it would repeat
    nothing."""

    name = "text"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if not re.fullmatch(r"[!-~]{1,255}", value):
            self.fail("1 to 255 visible characters of ASCII are wanted", param, ctx)
        return value


def repeat_option(told: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """`--idempotency-key`, as `idempotency_key`, for what must not be done twice."""
    return click.option("--idempotency-key", type=RepeatKey(), help=f"Repeated with the same one, {told}")


def caller() -> str:
    """The holder that others are told of: the process that runs the command, and goes on when that has ended."""
    return f"{socket.gethostname()}:{os.getppid()}"
