"""Settings: their sources in order, their faults with file, line and key, their secrets unseen."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from pydantic import SecretStr

from gateway.config.load import load
from gateway.config.settings import Section, Settings
from gateway.config.source import ConfigError, lines_of
from gateway.config.values import is_loopback, split_listen
from gateway.core.keys import Mode, WithoutToken

CONFIG = Path(__file__).parent.parent / "config"
SECRET = "correct-horse-battery"
SIGNING = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
ENVIRON = {
    name: f"{SECRET}-{name}"
    for name in (
        *("UPSTREAM_ACCESS_KEY", "UPSTREAM_SECRET_KEY", "UPSTREAM_SESSION_TOKEN"),
        *("RENDERER_ACCESS_KEY", "RENDERER_SECRET_KEY", "WORKER_TOKEN", "OPERATOR_TOKEN"),
    )
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "gateway.toml"


def faults(file: Path, text: str, environ: dict[str, str] | None = None) -> list[str]:
    """The faults that loading `text` raises, the file's directory left away."""
    file.write_text(text)
    with pytest.raises(ConfigError) as raised:
        load(file, environ or {}, {})
    return str(raised.value).replace(f"{file.parent}/", "").splitlines()


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


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (
            "\n[s3]\nlistn = 1\n",
            "gateway.toml:3: [s3] listn: no such key; did you mean listen? allowed are anonymous_r",
        ),
        ("[sss]\n", "gateway.toml:1: [sss]: no such table; allowed are api_token, client, control, fencing, lease, q"),
        ("s3.listen = 3\n", "gateway.toml:1: [s3] listen: must be text, in quotes, not 3"),
        ("\n[[sss]]\na = 1\n[[sss]]\n", "gateway.toml:2: [[sss]]: no such table; allowed are api_token, client"),
        ("[s3]\nlisten = 'x'\n", "gateway.toml:2: [s3] listen: must be host:port, as 127.0.0.1:8080"),
        ("[s3]\nlisten = '::1:80'\n", "gateway.toml:2: [s3] listen: an IPv6 address is written in brackets"),
        ("[s3]\nlisten = 'a:65536'\n", "gateway.toml:2: [s3] listen: must be host:port"),
        ("[s3]\nanonymous_read = 1\n", "gateway.toml:2: [s3] anonymous_read: must be true or false, not 1"),
        ("[s3]\nidle_timeout_s = 0\n", "gateway.toml:2: [s3] idle_timeout_s: must be greater than 0, not 0"),
        ("[s3]\nidle_timeout_s = inf\n", "gateway.toml:2: [s3] idle_timeout_s: must be"),
        ("[s3]\nidle_timeout_s = '1'\n", "gateway.toml:2: [s3] idle_timeout_s: must be a number, not '1'"),
        ("[s3]\nvirtual_host_suffix = 5\n", "gateway.toml:2: [s3] virtual_host_suffix: must be text, in quotes"),
        (
            "[[rule]]\nmatch = 'a'\nbuckets = 'b'\n",
            "gateway.toml:3: [[rule]] number 1 buckets: must be a list, not 'b'",
        ),
        ("[fencing]\nsettle_timeout_s = 2\n", "gateway.toml:2: [fencing] settle_timeout_s: must be greater than or eq"),
        (
            "[fencing]\nsettle_timeout_s = 301\n",
            "gateway.toml:1: [fencing] settle_timeout_assembly_s: must not be less",
        ),
        ("[store]\nurl = 'sqlite:'\n", 'gateway.toml:2: [store] url: must be "sqlite:" and the path'),
        ("[store]\nurl = 'mysql://h'\n", 'gateway.toml:2: [store] url: must be "sqlite:" and the path'),
        *(
            (f"[upstream]\nurl = '{url}'\n", 'gateway.toml:2: [upstream] url: must be "embedded", "aws"')
            for url in (
                "ftp://h",
                "http://h:99999",
                "http://h:0",
                "http://h:port",
                "http://[::1",
                "http://h h",
                "http://ü",
            )
        ),
        *(
            (f"[s3]\nendpoint_url = '{url}'\n", "gateway.toml:2: [s3] endpoint_url: must be the http:// or https:// a")
            for url in ("h:80", "http://h:99999", "http://h/path", "http://h?x", "http://me:secret@h", "http://h#x")
        ),
        *(
            (
                f"[s3]\nvirtual_host_suffix = '{name}'\n",
                "gateway.toml:2: [s3] virtual_host_suffix: must be a host name, as s3.example.com",
            )
            for name in ("*.h", "h..h", "h.", "h/", "h:80", "http://h", "a b", "ü", "")
        ),
        *(
            (
                f"[[api_token]]\nrole = 'worker'\ntoken = {token}\n",
                "gateway.toml:3: [[api_token]] number 1 token: must be what a header can hold: ASCII",
            )
            for token in ("'ü'", "' x'", "'x '", '"a\\nb"', '"\\u0000"')
        ),
        (
            "[[api_token]]\nrole = 'worker'\ntoken = ''\n",
            "gateway.toml:3: [[api_token]] number 1 token: must not be empty",
        ),
        ("[[rule]]\nmatch = 'a'\nbuckets = ['']\n", "gateway.toml:3: [[rule]] number 1 buckets: must not be empty"),
        (
            "[upstream]\nurl = 'http://h/path'\n",
            "gateway.toml:2: [upstream] url: must hold scheme, host and port alone",
        ),
        (
            "[upstream]\naddressing = 'x'\n",
            "gateway.toml:2: [upstream] addressing: must be 'auto', 'path' or 'virtual'",
        ),
        (
            "[upstream]\nurl = 'aws'\naccess_key = 'a'\n",
            "gateway.toml:3: [upstream] access_key: access_key and secret_k",
        ),
        (
            "[upstream]\naccess_key = 'a'\nsecret_key = 'b'\n",
            "gateway.toml:2: [upstream] access_key: the embedded store",
        ),
        (
            "[upstream]\nsession_token = 'a'\n",
            "gateway.toml:2: [upstream] session_token: needs access_key and secret_key",
        ),
        ("[s3]\nmax_header_field_bytes = 70000\n", "gateway.toml:2: [s3] max_header_field_bytes: must not be greater"),
        ("[[rule]]\nmatch = '**'\n\n[[rule]]\n", "gateway.toml:4: [[rule]] number 2 match: is missing"),
        ("[[rule]]\nmatch = '{a'\n", "gateway.toml:1: [[rule]] number 1: match has a stray '{'"),
        ("[[rule]]\nmatch = '{a}'\nkey = '{b}'\n", "gateway.toml:1: [[rule]] number 1: key uses {b}"),
        (
            "[[rule]]\nmatch = '*'\nmode = 'on'\n",
            "gateway.toml:3: [[rule]] number 1 mode: must be 'enforce', 'observe'",
        ),
        (
            "[[client]]\naccess_key = 'a b'\nsecret_key = 'x'\n",
            "gateway.toml:2: [[client]] number 1 access_key: String",
        ),
        (
            "[[client]]\naccess_key = 'a'\nsecret_key = 'x'\noperations = ['PutObjekt']\n",
            "gateway.toml:4: [[client]] number 1 operations: no S3 operation is called 'PutObjekt'; did you mean",
        ),
        ("client = 3\n", "gateway.toml:1: [client]: must be an array of tables, each written [[client]]"),
        ("s3 = 3\n", "gateway.toml:1: [s3]: must be a table, written [s3]"),
        ("[s3]\n\nlisten = \n", "gateway.toml:3: is not TOML: Invalid value"),
    ],
)
def test_a_fault_names_file_line_key_and_what_is_allowed(file: Path, text: str, fault: str) -> None:
    """Every kind of fault says where it is and what would be right."""
    assert [f[: len(fault)] for f in faults(file, text)] == [fault]


def test_all_faults_are_told_at_once(file: Path) -> None:
    """One run tells all that is wrong, each on a line of its own."""
    assert len(faults(file, "[s3]\nlisten = 1\nregion = 1\n[control]\nlisten = 1\n")) == 3


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("S3__LISTN", "no such key; did you mean listen?"),
        ("S3__IDLE_TIMEOUT_S", "must be a number"),
        ("S3_LISTEN", "no such setting; allowed are FENCING_GATEWAY_CONFIG and FENCING_GATEWAY_SECTION__KEY"),
        ("RULE__MATCH", "no such setting"),
    ],
)
def test_a_fault_in_the_environment_names_the_variable(name: str, fault: str) -> None:
    """A misspelt or bad variable is an error too: nothing is left out in silence."""
    with pytest.raises(ConfigError, match=f"^environment variable FENCING_GATEWAY_{name}: ") as raised:
        load(None, {f"FENCING_GATEWAY_{name}": "x"}, {})
    assert fault in str(raised.value)


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("s3.listen", "must be host:port"),
        ("s4.listen", "no such table; allowed are"),
        ("rule.match", "must be an array of tables"),
    ],
)
def test_a_fault_on_the_command_line_names_the_setting(file: Path, name: str, fault: str) -> None:
    """So does one among the flags, and the file that says nothing of it is not blamed."""
    file.write_text("[control]\n")
    with pytest.raises(ConfigError, match=f"^command line, {name}: {fault}"):
        load(file, {}, {name: "x"})


def test_a_file_that_cannot_be_read(file: Path) -> None:
    """The message names the file and the reason."""
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        load(file, {}, {})
    file.write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="is not UTF-8 text"):
        load(file, {}, {})


@pytest.mark.parametrize("listen", ["0.0.0.0:8080", "[::]:8080", "192.0.2.1:8080", "gateway.example.com:8080"])
def test_a_listener_for_others_needs_credentials(file: Path, listen: str) -> None:
    """What other machines can reach does not start open, on either listener."""
    assert faults(file, f"[s3]\nlisten = '{listen}'\nanonymous_read = true\n") == [
        "gateway.toml:2: [s3] listen: can be reached from other machines, and no [[client]] is configured"
    ]
    assert faults(file, f"[control]\nlisten = '{listen}'\n") == [
        "gateway.toml:2: [control] listen: can be reached from other machines, and no [[api_token]] is configured"
    ]


def test_listening_on_loopback() -> None:
    """All of 127/8, ::1 and localhost are this machine alone."""
    assert all(is_loopback(a) for a in ("127.0.0.1:1", "127.9.9.9:1", "[::1]:1", "localhost:1"))
    assert split_listen("[::1]:8080") == ("::1", 8080)


def test_the_same_address_twice(file: Path) -> None:
    """Two listeners on one port would make the second fail to start; two on port 0 are fine."""
    assert faults(file, "[control]\nlisten = '127.0.0.1:8080'\n")[0].startswith(
        "gateway.toml:2: [control] listen: is that"
    )
    file.write_text("s3.listen = '127.0.0.1:0'\ncontrol.listen = '127.0.0.1:0'\n")
    load(file, {}, {})


def test_credentials_given_twice(file: Path) -> None:
    """Two clients of one access key, or two equal tokens, are an error that shows no token."""
    client = f"[[client]]\naccess_key = 'A'\nsecret_key = '{SECRET}'\n"
    token = f"[[api_token]]\nrole = 'worker'\ntoken = '{SECRET}'\n"
    assert faults(file, client * 2 + token * 2) == [
        "gateway.toml:5: [[client]] number 2 access_key: is that of [[client]] number 1 too",
        "gateway.toml:12: [[api_token]] number 2 token: is that of [[api_token]] number 1 too",
    ]


def test_an_api_token_of_a_client_that_is_not_there(file: Path) -> None:
    """Whose rights its leases' credentials have must be somebody's; the fault shows no access key."""
    client = "[[client]]\naccess_key = 'A'\nsecret_key = 'x'\n"
    token = f"[[api_token]]\nrole = 'worker'\ntoken = '{SECRET}'\nclient = "
    assert faults(file, f"{client}{token}'NOBODY'\n") == [
        "gateway.toml:7: [[api_token]] number 1 client: is the access key of no [[client]]"
    ]
    file.write_text(f"{client}{token}{{ env = 'A' }}\n")
    assert load(file, {"A": "A"}, {}).api_token[0].client == "A"


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


@pytest.mark.parametrize(
    "text",
    [
        f"[[client]]\naccess_key = 'A'\nsecret_key = ['{SECRET}']\n",
        f"[[client]]\naccess_key = '{SECRET} '\nsecret_key = ''\n",
        f"[[client]]\naccess_key = 'A'\nsecret_kex = '{SECRET}'\n",
        f"[[client]]\naccess_key = 'A'\nsecret_key = {{ vault = '{SECRET}' }}\n",
        f"[client]\naccess_key = 'A'\nsecret_key = '{SECRET}'\n",
        f"client = '{SECRET}'\n",
        f"secret_key = '{SECRET}'\n",
        f"s3 = '{SECRET}'\n",
        f"[upstream]\nurl = 'http://user:{SECRET}@host'\n",
        f"[upstream]\nsecret_key = '{SECRET}'\n",
        f"[[api_token]]\ntoken = '{SECRET}'\nrole = 'admin'\n",
    ],
)
def test_no_fault_shows_a_secret(file: Path, text: str) -> None:
    """Wherever a secret was put by mistake, the message about the mistake does not hold it."""
    assert SECRET not in "\n".join(faults(file, text))


def test_lines_inside_texts_are_no_keys() -> None:
    """The index of lines is not misled by what stands in a multi-line text, and counts arrays of tables."""
    text = 'a.b = """\n[s3]\nlisten = 1\n"""\n[[x]]\n"k" = 1\n[[x]]\nk=2\n[ s3 ] # c\nlisten=[\n1]\n'
    assert lines_of(text) == {
        ("a", "b"): 1,
        ("x", 0): 5,
        ("x", 0, "k"): 6,
        ("x", 1): 7,
        ("x", 1, "k"): 8,
        ("s3",): 9,
        ("s3", "listen"): 10,
    }


@pytest.mark.parametrize(("text", "value"), [("auto", "auto"), ("true", True), ("false", False)])
def test_a_word_or_a_truth_value_from_the_environment(text: str, value: object) -> None:
    """A setting that takes either has the same forms everywhere; a fault names all of them."""
    settings = load(None, {"FENCING_GATEWAY_STORE__FENCED_BEFORE": text}, {})
    assert settings.store.fenced_before is value or settings.store.fenced_before == value == "auto"
    with pytest.raises(ConfigError, match="must be 'auto', true or false, not 'maybe'"):
        load(None, {"FENCING_GATEWAY_STORE__FENCED_BEFORE": "maybe"}, {})


# --- webhooks


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
