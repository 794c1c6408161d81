"""What commands share: the configuration as `--config` and `--set` give it, and the exit codes."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import click

from gateway.cli.show import print_json, tell
from gateway.config.load import Fault, load
from gateway.config.settings import Settings
from gateway.config.source import ConfigError

REFUSED, USAGE, UNREACHABLE = 1, 2, 3

_Command = Callable[..., Any]
Look = Callable[[Settings], list[Fault]]


def config_options(command: _Command) -> _Command:
    """`--config FILE` and `--set SECTION.KEY=VALUE`, for commands that read the configuration."""
    command = click.option(
        "--set",
        "assignments",
        multiple=True,
        metavar="SECTION.KEY=VALUE",
        help="Set one key, over environment and file. May be repeated.",
    )(command)
    return click.option(
        "--config",
        "config",
        type=click.Path(dir_okay=False, path_type=Path),
        help="The TOML file; else the one that FENCING_GATEWAY_CONFIG names.",
    )(command)


def settings_of(
    config: Path | None, assignments: tuple[str, ...], look: Look | None = None, *, as_json: bool
) -> Settings:
    """The settings, or an exit with status 2 that says what is wrong."""
    try:
        return load_settings(config, assignments, look)
    except ConfigError as error:
        fail(str(error), as_json=as_json)


def load_settings(config: Path | None, assignments: tuple[str, ...], look: Look | None = None) -> Settings:
    """The settings of file, environment and `--set`, and what `look` finds in the files they name. Raises
    `ConfigError`."""
    overrides: dict[str, object] = {}
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        if not equals or "." not in name:
            raise ConfigError(f"--set takes SECTION.KEY=VALUE, as --set s3.listen=127.0.0.1:9000, not {name!r}")
        overrides[name] = _value(value)
    return load(config, os.environ, overrides, look)


def fail(message: str, status: int = USAGE, *, as_json: bool = False) -> NoReturn:
    """Say what is wrong, `as_json` to programs too, and exit."""
    if as_json:
        print_json({"ok": False, "error": message})
    tell(message)
    sys.exit(status)


def _value(text: str) -> object:
    """A value as JSON if it is any, else as text."""
    try:
        value: object = json.loads(text)
    except ValueError:
        return text
    return value
