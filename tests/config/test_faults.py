"""Every fault by file, line and key, with what is allowed, and no secret."""

from __future__ import annotations

from pathlib import Path

import pytest

from gateway.config.load import load
from gateway.config.source import ConfigError
from tests.config.told import SECRET, faults


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


@pytest.mark.parametrize("listen", ["0.0.0.0:8080", "[::]:8080", "192.0.2.1:8080", "gateway.example.com:8080"])
def test_a_listener_for_others_needs_credentials(file: Path, listen: str) -> None:
    """What other machines can reach does not start open, on either listener."""
    assert faults(file, f"[s3]\nlisten = '{listen}'\nanonymous_read = true\n") == [
        "gateway.toml:2: [s3] listen: can be reached from other machines, and no [[client]] is configured"
    ]
    assert faults(file, f"[control]\nlisten = '{listen}'\n") == [
        "gateway.toml:2: [control] listen: can be reached from other machines, and no [[api_token]] is configured"
    ]


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
