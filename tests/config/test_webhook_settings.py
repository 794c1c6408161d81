"""Webhooks in the configuration."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.config.load import load
from tests.config.told import SECRET, SIGNING, faults


def webhook(**settings: str) -> str:
    """One in TOML; what is given in place of what would do."""
    good = {"url": '"https://hooks.example.com/in"', "secret": f'"{SIGNING}"'}
    return "[[webhook]]\n" + "".join(f"{key} = {value}\n" for key, value in (good | settings).items())


def test_a_webhook_signs_with_one_secret_or_several(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One alone, or a list while one replaces another; each may be kept elsewhere."""
    monkeypatch.chdir(file.parent)
    Path("old.secret").write_text(SIGNING)
    listed = '["whsec_' + "A" * 32 + '", { file = "old.secret" }, { env = "NEW" }]'
    file.write_text(webhook() + webhook(secret=listed, name='"second"'))
    first, second = load(file, {"NEW": SIGNING}, {}).webhook
    assert [one.get_secret_value() for one in first.secret] == [SIGNING]
    assert [one.get_secret_value() for one in second.secret] == ["whsec_" + "A" * 32, SIGNING, SIGNING]


@pytest.mark.parametrize(
    ("url", "name"),
    [("https://Hooks.example.com/in?t=1", "hooks.example.com"), ("http://[::1]:9/", "[::1]:9")],
)
def test_a_webhook_is_called_by_its_host(file: Path, url: str, name: str) -> None:
    """Never by its path or query, which may hold what only the receiver's friends know."""
    file.write_text(webhook(url=f'"{url}"'))
    assert load(file, {}, {}).webhook[0].called == name


@pytest.mark.parametrize(
    ("settings", "fault"),
    [
        ({"url": '"hooks.example.com"'}, "must be the http:// or https:// address"),
        ({"url": '"https://hooks.example.com:99999/"'}, "must be the http:// or https:// address"),
        ({"url": '"https://me:pass@hooks.example.com/"'}, "must hold no user, password"),
        ({"secret": f'"{SECRET}"'}, "must be whsec_ and, in base64, 24 to 64 random bytes"),
        ({"secret": '"whsec_c2hvcnQ="'}, "must be whsec_ and, in base64, 24 to 64 random bytes"),
        ({"secret": "[]"}, "must not be empty"),
        ({"events": '["fencing.complete"]'}, "is called 'fencing.complete'; did you mean fencing.completed?"),
        ({"events": '["jobs"]'}, "nothing that is announced is called 'jobs'. There are fencing.completed, "),
        ({"name": '"two words"'}, "String should match pattern"),
        ({"max_waiting": "1"}, "must be greater than or equal to 100, not 1"),
        ({"url": '"http://127.0.0.1:9/"', "tls_ca": '"ca.pem"'}, "is for a receiver at https://"),
    ],
)
def test_a_webhook_that_cannot_be_meant(file: Path, settings: dict[str, str], fault: str) -> None:
    """Each fault is told with what is allowed, and no secret."""
    (told,) = faults(file, webhook(**settings))
    assert fault in told
    assert SECRET not in told


def test_two_webhooks_of_one_host_need_names(file: Path) -> None:
    """What waits is kept by name: it must not change hands."""
    (told,) = faults(file, webhook() + webhook())
    assert told.endswith("hooks.example.com is that of [[webhook]] number 1 too; give one of them another")
    file.write_text(webhook() + webhook(name='"second"'))
    assert [one.called for one in load(file, {}, {}).webhook] == ["hooks.example.com", "second"]
