"""`fencing-gateway check-config`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from gateway.cli.settings import USAGE, config_options, fail, load_settings
from gateway.cli.show import json_line, print_json
from gateway.cli.table import print_table
from gateway.config.load import SECRET_KEYS
from gateway.config.settings import Settings
from gateway.config.source import ConfigError
from gateway.server.assemble import file_faults

HIDDEN = "******"


@click.command("check-config")
@config_options
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def check_config(config: Path | None, assignments: tuple[str, ...], as_json: bool) -> None:
    """Say whether the configuration can be used, and what holds with it. Secrets are not shown."""
    try:
        settings = load_settings(config, assignments, file_faults)
    except ConfigError as error:
        if as_json:
            print_json({"ok": False, "errors": str(error).splitlines()})
            sys.exit(USAGE)
        fail(str(error))
    told = effective(settings)
    if as_json:
        print_json({"ok": True, "settings": told})
        return
    click.echo("OK: the configuration can be used. With it holds:\n")
    print_table(("section", "key", "value"), _rows(told))


def effective(settings: Settings) -> dict[str, Any]:
    """Every setting with its value, secrets hidden."""
    told = settings.model_dump(mode="json")
    for section in told.values():
        for table in section if isinstance(section, list) else [section]:
            for key in SECRET_KEYS & table.keys():
                if table[key] is not None:
                    table[key] = HIDDEN
    return told


def _rows(told: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Sections in their order; the name of each stands before its first key."""
    rows = []
    for name, section in told.items():
        several = isinstance(section, list)
        if several and not section:
            rows.append((f"[[{name}]]", "", "none"))
        for table in section if several else [section]:
            title = f"[[{name}]]" if several else f"[{name}]"
            for key, value in table.items():
                rows.append((title, key, _shown(value)))
                title = ""
    return rows


def _shown(value: object) -> str:
    if value is None:
        return "not set"
    return value if isinstance(value, str) else json_line(value)
