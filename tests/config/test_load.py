"""Settings from all their sources, in order; secrets that are kept elsewhere."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import SecretStr

from gateway.config.load import load
from gateway.config.source import ConfigError
from gateway.core.keys import Mode, WithoutToken
from tests.config.told import SECRET, faults


def test_flags_win_over_environment_over_file_over_defaults(file: Path) -> None:
    """Each source wins over the next, key by key."""
    file.write_text("[fencing]\nhandover_wait_s = 1\ncommit_timeout_s = 1\nsettle_timeout_s = 5\n")
    environ = {
        "FENCING_GATEWAY_CONFIG": str(file),
        "FENCING_GATEWAY_FENCING__HANDOVER_WAIT_S": "2",
        "FENCING_GATEWAY_FENCING__COMMIT_TIMEOUT_S": "2.5",
    }
    fencing = load(None, environ, {"fencing.handover_wait_s": 3}).fencing
    assert (fencing.handover_wait_s, fencing.commit_timeout_s, fencing.settle_timeout_s) == (3, 2.5, 5)
    assert fencing.small_body_bytes == 65536
    other = file.with_name("other.toml")
    other.write_text("")
    assert load(other, environ, {}).fencing.settle_timeout_s == 30


def test_the_environment_has_every_type() -> None:
    """Text is taken as it stands, even where it looks like a number; the rest is read as JSON."""
    environ = {
        "FENCING_GATEWAY_S3__VIRTUAL_HOST_SUFFIX": '["s3.example.com"]',
        "FENCING_GATEWAY_S3__ANONYMOUS_READ": "true",
        "FENCING_GATEWAY_S3__MAX_CONCURRENT_REQUESTS": "7",
        "FENCING_GATEWAY_LEASE__MAX_RENEWALS": "5",
        "FENCING_GATEWAY_LEASE__MAX_TOTAL_S": "7200.5",
        "FENCING_GATEWAY_UPSTREAM__URL": "aws",
        "FENCING_GATEWAY_UPSTREAM__ACCESS_KEY": "123",
        "FENCING_GATEWAY_UPSTREAM__SECRET_KEY": "456",
        "FENCING_GATEWAY_UPSTREAM__DIRECTORY": "elsewhere",
        "HOME": "/",
    }
    settings = load(None, environ, {})
    assert settings.s3.virtual_host_suffix == ("s3.example.com",)
    assert settings.s3.anonymous_read is True
    assert settings.s3.max_concurrent_requests == 7
    assert (settings.lease.max_renewals, settings.lease.max_total_s) == (5, 7200.5)
    assert settings.upstream.access_key == "123"
    assert settings.upstream.secret_key == SecretStr("456")
    assert settings.upstream.directory == Path("elsewhere")


def test_one_host_name_is_a_list_of_one(file: Path) -> None:
    """Most have one alone: it need not be written as a list, in the file or in the environment; nor in small letters
    and without a dot, as it is compared."""
    file.write_text("[s3]\nvirtual_host_suffix = '.S3.Example.com'\n")
    given = {"FENCING_GATEWAY_S3__VIRTUAL_HOST_SUFFIX": "s3.example.com"}
    for settings in (load(file, {}, {}), load(None, given, {})):
        assert settings.s3.virtual_host_suffix == ("s3.example.com",)


def test_rules_and_clients_are_typed(file: Path) -> None:
    """Arrays of tables come in order, as frozen values."""
    file.write_text(
        '[[client]]\naccess_key = "A"\nsecret_key = "x"\nkeys = ["job-*"]\n'
        '[[rule]]\nmatch = "a/{job}/**"\nkey = "{job}"\nmode = "observe"\nwithout_token = "allow"\n'
        '[[rule]]\nmatch = "**"\n'
    )
    settings = load(file, {}, {})
    assert settings.client[0].keys == ("job-*",)
    assert [(r.match, r.key, r.mode, r.without_token) for r in settings.rule] == [
        ("a/{job}/**", "{job}", Mode.OBSERVE, WithoutToken.ALLOW),
        ("**", None, Mode.ENFORCE, WithoutToken.UNTIL_FENCED),
    ]


@pytest.mark.parametrize(("text", "value"), [("auto", "auto"), ("true", True), ("false", False)])
def test_a_word_or_a_truth_value_from_the_environment(text: str, value: object) -> None:
    """A setting that takes either has the same forms everywhere; a fault names all of them."""
    settings = load(None, {"FENCING_GATEWAY_STORE__FENCED_BEFORE": text}, {})
    assert settings.store.fenced_before is value or settings.store.fenced_before == value == "auto"
    with pytest.raises(ConfigError, match="must be 'auto', true or false, not 'maybe'"):
        load(None, {"FENCING_GATEWAY_STORE__FENCED_BEFORE": "maybe"}, {})


def test_secrets_by_reference(file: Path, tmp_path: Path) -> None:
    """A secret may be in the environment or in a file, whose last newline does not count."""
    (tmp_path / "secret").write_text(SECRET + "\n")
    file.write_text(
        f"[[client]]\naccess_key = {{ env = 'A' }}\nsecret_key = {{ file = '{tmp_path}/secret' }}\n"
        "[[api_token]]\nrole = 'worker'\ntoken = { env = 'T' }\n"
    )
    settings = load(file, {"A": "AK", "T": SECRET}, {})
    assert settings.client[0].access_key == "AK"
    assert settings.client[0].secret_key.get_secret_value() == SECRET
    assert settings.api_token[0].token.get_secret_value() == SECRET
    assert SECRET not in repr(settings) + str(settings) + settings.model_dump_json()


@pytest.mark.parametrize(
    ("reference", "fault"),
    [
        ("{ env = 'NOT_SET' }", "the environment variable NOT_SET is not set or empty"),
        ("{ file = '/nonexistent/secret' }", "the file /nonexistent/secret cannot be read: No such file or directory"),
        ("{ env = 'A', file = 'b' }", 'must be text, { env = "NAME" } or { file = "path" }'),
        ("{ vault = 'x' }", 'must be text, { env = "NAME" } or { file = "path" }'),
        ("5", 'must be text, { env = "NAME" } or { file = "path" }'),
    ],
)
def test_a_reference_that_leads_nowhere(file: Path, reference: str, fault: str) -> None:
    """It says what it looked for."""
    text = f"[[client]]\naccess_key = 'A'\nsecret_key = {reference}\n"
    assert faults(file, text) == [f"gateway.toml:3: [[client]] number 1 secret_key: {fault}"]


def test_a_file_that_cannot_be_read(file: Path) -> None:
    """The message names the file and the reason."""
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        load(file, {}, {})
    file.write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="is not UTF-8 text"):
        load(file, {}, {})
