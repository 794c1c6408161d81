"""Where a setting was written: the file's tables and keys with their lines, the environment, the flags.

Pure text in, values and places out; what the values mean is `gateway.config`'s.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gateway.variables import API_TOKEN_VARIABLE, CA_VARIABLE, URL_VARIABLE

ENVIRONMENT_PREFIX = "FENCING_GATEWAY_"
FILE_VARIABLE = "FENCING_GATEWAY_CONFIG"
NO_SETTINGS = frozenset({FILE_VARIABLE, URL_VARIABLE, API_TOKEN_VARIABLE, CA_VARIABLE})
"""Bear the prefix and are for the commands that speak to a running gateway."""

Place = tuple[str | int, ...]
"""The way to a setting: table, for an array of tables its index (from 0), key."""

_HEADER = re.compile(r"\s*(\[\[?)\s*([^\[\]#]+?)\s*\]")
_KEY = re.compile(r"\s*((?:[A-Za-z0-9_-]+|\"[^\"]*\"|'[^']*')(?:\s*\.\s*(?:[A-Za-z0-9_-]+|\"[^\"]*\"|'[^']*'))*)\s*=")
_TEXT_FENCE = re.compile(r'"""|\'\'\'')
_AT_LINE = re.compile(r" \(at line (\d+), column (\d+)\)$")


class ConfigError(Exception):
    """The configuration cannot be used. One line for each fault: where it is, what is wrong, what is allowed.

    The message never holds the value of a secret."""


class Sources:
    """All settings as they were written, merged: flags over environment over file, and where each came from."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self._file = ""
        self._lines: dict[Place, int] = {}
        self._named: dict[Place, str] = {}

    def add_file(self, path: Path) -> None:
        """Raises `ConfigError` if the file cannot be read or is no TOML."""
        self._file = str(path)
        try:
            text = path.read_text("utf-8")
            self.values = tomllib.loads(text)
        except OSError as error:
            raise ConfigError(f"{path}: cannot be read: {error.strerror}") from None
        except UnicodeDecodeError:
            raise ConfigError(f"{path}: is not UTF-8 text") from None
        except tomllib.TOMLDecodeError as error:
            message = str(error)
            if at := _AT_LINE.search(message):
                message = message[: at.start()]
                raise ConfigError(f"{path}:{at[1]}: is not TOML: {message} (column {at[2]})") from None
            raise ConfigError(f"{path}: is not TOML: {message}") from None
        self._lines = lines_of(text)

    def add_environment(self, environ: Mapping[str, str], text_keys: Mapping[str, set[str]]) -> None:
        """Take every `FENCING_GATEWAY_SECTION__KEY`. `text_keys` names the sections that can be set so, and in
        each the keys whose values are text as it stands; others are read as JSON (numbers, true, ["a", "b"])."""
        for name in sorted(environ):
            if not name.startswith(ENVIRONMENT_PREFIX) or name in NO_SETTINGS:
                continue
            section, separator, key = name.removeprefix(ENVIRONMENT_PREFIX).lower().partition("__")
            if not separator or section not in text_keys:
                sections = ", ".join(s.upper() for s in sorted(text_keys))
                raise ConfigError(
                    f"environment variable {name}: no such setting; allowed are {FILE_VARIABLE} and "
                    f"{ENVIRONMENT_PREFIX}SECTION__KEY with one of the sections {sections}"
                )
            value: object = environ[name]
            if key not in text_keys[section]:
                value = _json_or_text(environ[name])
            self._set((section, key), value, f"environment variable {name}")

    def add_overrides(self, overrides: Mapping[str, object]) -> None:
        """Take what the command line said, by `section.key`."""
        for name, value in overrides.items():
            section, _, key = name.partition(".")
            self._set((section, key), value, f"command line, {name}")

    def _set(self, place: tuple[str, str], value: object, source: str) -> None:
        section, key = place
        table = self.values.setdefault(section, {})
        if isinstance(table, dict):  # else the file's own fault is reported
            table[key] = value
            self._named[place] = source

    def where(self, place: Place) -> str:
        """The place in words: file and line, variable or flag, then table and key."""
        if source := self._named.get(place[:2]) or self._who_named_table(place):
            return source
        if len(place) == 1 and (*place, 0) in self._lines:  # an array of tables, found fault with as a whole
            return f"{self._file}:{self._lines[(*place, 0)]}: [[{place[0]}]]"
        line = next((self._lines[p] for p in _prefixes(place) if p in self._lines), None)
        at = f"{self._file}:{line}: " if line else f"{self._file}: " if self._file else ""
        return at + _in_words(place)

    def _who_named_table(self, place: Place) -> str | None:
        """Who set a key in a table that the file does not have."""
        if len(place) > 1 or place in self._lines or (*place, 0) in self._lines:
            return None
        return next((source for named, source in self._named.items() if named[:1] == place), None)


def lines_of(text: str) -> dict[Place, int]:
    """The line (from 1) of every table header and of every key that begins a line of a valid TOML text."""
    lines: dict[Place, int] = {}
    arrays: dict[str, int] = {}
    table: Place = ()
    in_text = False
    for number, line in enumerate(text.splitlines(), start=1):
        was_in_text, in_text = in_text, in_text ^ bool(len(_TEXT_FENCE.findall(line)) % 2)
        if was_in_text:
            continue
        if header := _HEADER.match(line):
            name = header[2].strip("\"'")
            table = tuple(part.strip().strip("\"'") for part in name.split("."))
            if header[1] == "[[":
                arrays[name] = arrays.get(name, -1) + 1
                table = (*table, arrays[name])
            lines.setdefault(table, number)
        elif key := _KEY.match(line):
            parts = tuple(part.strip().strip("\"'") for part in key[1].split("."))
            lines.setdefault((*table, *parts), number)
    return lines


def _prefixes(place: Place) -> list[Place]:
    return [place[:n] for n in range(len(place), 0, -1)]


def _in_words(place: Place) -> str:
    match place:
        case (str(table), int(index), *rest):
            return " ".join([f"[[{table}]] number {index + 1}", *map(str, rest[:1])])
        case (str(table), str(key), *_):
            return f"[{table}] {key}"
        case (str(table),):
            return f"[{table}]"
    return "the configuration"


def _json_or_text(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return text
