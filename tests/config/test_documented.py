"""The files in config/: the documented one is the defaults, the ready set-ups load."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gateway.config.load import load
from gateway.config.settings import Section, Settings
from gateway.config.values import is_loopback
from tests.config.told import SECRET, SIGNING

CONFIG = Path(__file__).parent.parent.parent / "config"
ENVIRON = {
    name: f"{SECRET}-{name}"
    for name in (
        *("UPSTREAM_ACCESS_KEY", "UPSTREAM_SECRET_KEY", "UPSTREAM_SESSION_TOKEN"),
        *("RENDERER_ACCESS_KEY", "RENDERER_SECRET_KEY", "WORKER_TOKEN", "OPERATOR_TOKEN"),
    )
}


def sections() -> dict[str, type[Section]]:
    found = {}
    for name, field in Settings.model_fields.items():
        annotation = field.annotation
        found[name] = annotation if isinstance(annotation, type) else annotation.__args__[0]  # type: ignore[union-attr]
    return found


def test_the_documented_file_is_the_defaults(file: Path) -> None:
    """config/gateway.toml with its comments lifted is exactly what holds without a file."""
    text = (CONFIG / "gateway.toml").read_text()
    file.write_text(re.sub(r"^#(?=[a-z])", "", text, flags=re.MULTILINE))
    assert load(file, {}, {}) == load(CONFIG / "gateway.toml", {}, {}) == load(None, {}, {}) == Settings()


def test_the_documented_file_names_every_key_once_with_its_manual() -> None:
    """Each key of each section stands in config/gateway.toml below its own description, and nothing else does."""
    text = (CONFIG / "gateway.toml").read_text()
    parts = re.split(r"^(?:#: )?\[+([a-z0-9_]+)\]+$", text, flags=re.MULTILINE)
    documented = dict(zip(parts[1::2], parts[2::2], strict=True))
    assert list(documented) == list(sections())
    for name, section in sections().items():
        entries = re.findall(r"((?:^# .*\n)+)^#(?:: )?([a-z0-9_]+) = ", documented[name], flags=re.MULTILINE)
        shown = {key: " ".join(re.sub(r"^# ", "", about, flags=re.MULTILINE).split()) for about, key in entries}
        manual = {key: " ".join((f.description or "").split()) for key, f in section.model_fields.items()}
        assert shown == manual, name
        assert all(manual.values())


def test_the_examples_in_the_documented_file_are_valid(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lifted too, the examples load, and the optional keys of a table show their defaults."""
    text = (CONFIG / "gateway.toml").read_text().replace('#url = "embedded"', 'url = "https://s3.example.com"')
    file.write_text(re.sub(r"^#(: )?(?=[a-z\[])", "", text, flags=re.MULTILINE))
    monkeypatch.chdir(file.parent)
    Path("renderer.secret").write_text(SECRET + "\n")
    Path("webhook.secret").write_text(SIGNING + "\n")
    settings = load(file, ENVIRON, {})
    assert settings.client[0].secret_key.get_secret_value() == SECRET
    assert settings.webhook[0].secret[0].get_secret_value() == SIGNING
    for section in (settings.client[0], settings.api_token[0], settings.webhook[0], settings.rule[0]):
        for key, field in type(section).model_fields.items():
            if not field.is_required() and field.default is not None:
                assert getattr(section, key) == field.default


@pytest.mark.parametrize("name", ["central.toml", "sidecar.toml"])
def test_ready_set_ups_load(name: str) -> None:
    """The ready set-ups are valid, and each has a rule for its jobs."""
    settings = load(CONFIG / name, ENVIRON, {})
    assert settings.rule[0].key == "{job}"
    assert is_loopback(settings.s3.listen) == (name == "sidecar.toml")
