"""The keys of session tokens in real processes: rotated, shared, lost; a lease's credentials before and after."""

from __future__ import annotations

import json
import signal
import urllib.request
from base64 import b64encode
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from gateway.credentials_file import make_session_keys, new_sealing_key
from gateway.s3.sigv4 import Credentials
from tests.conftest import StoreServer, s3_client
from tests.end_to_end.process import CONFIGURATION, wait_until
from tests.gateway_process import GatewayProcess, before, command

KEY = "job-1"


def granted(gateway: GatewayProcess) -> tuple[int, Credentials]:
    """A new lease's token and credentials."""
    request = urllib.request.Request(f"{gateway.control_url}/v1/leases/{KEY}", b'{"holder": "a test", "ttl_s": 600}')
    with urllib.request.urlopen(request, timeout=30) as answer:
        told = json.load(answer)
    return told["token"], pair_of(told["credentials"])


def pair_of(given: dict[str, Any]) -> Credentials:
    return Credentials(given["access_key_id"], given["secret_access_key"], given["session_token"])


def anew(gateway: GatewayProcess, token: int) -> Credentials:
    """What `fencing-gateway credentials` gives for the lease."""
    done = gateway.ask("credentials", FENCING_KEY=KEY, FENCING_TOKEN=str(token))
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    return Credentials(told["AccessKeyId"], told["SecretAccessKey"], told["SessionToken"])


def write(gateway: GatewayProcess, bucket: str, credentials: Credentials) -> str:
    """The error's code; empty for none."""
    client = s3_client(gateway.url, credentials)
    try:
        client.put_object(Bucket=bucket, Key=f"renders/{KEY}/out", Body=b"x")
    except ClientError as error:
        return str(error.response["Error"]["Code"])
    finally:
        client.close()
    return ""


def hang_up(gateway: GatewayProcess, event: str) -> None:
    """SIGHUP, and wait until the log tells what became of the keys."""
    told = gateway.log().count(f'"event":"{event}"')
    gateway.process.send_signal(signal.SIGHUP)
    wait_until(lambda: gateway.log().count(f'"event":"{event}"') > told)


def line() -> str:
    return b64encode(new_sealing_key()).decode() + "\n"


def test_rotation_and_loss(store_server: StoreServer, bucket: str, tmp_path: Path) -> None:
    """As docs/credentials.md has it: a key is added and seals, what is out stays good until the former is taken out. A
    file that is damaged changes nothing. A lost one is made anew at the next start: refused, never a 500; the
    lease is still held, and its credentials are given anew."""
    with GatewayProcess(tmp_path, configuration=CONFIGURATION, **before(store_server)) as gateway:
        file = tmp_path / "session-keys"
        assert file.stat().st_mode & 0o777 == 0o600
        token, first = granted(gateway)
        assert write(gateway, bucket, first) == ""
        with file.open("a") as keys:
            keys.write(line())
        hang_up(gateway, "session-keys-loaded")
        second = anew(gateway, token)
        assert [write(gateway, bucket, pair) for pair in (first, second)] == ["", ""]
        former, newer = [one for one in file.read_text().splitlines() if not one.startswith("#")]
        file.write_text(former[:-5])
        hang_up(gateway, "session-keys-refused")
        assert [write(gateway, bucket, pair) for pair in (first, second)] == ["", ""]
        file.write_text(newer + "\n")
        hang_up(gateway, "session-keys-loaded")
        assert [write(gateway, bucket, pair) for pair in (first, second)] == ["InvalidToken", ""]
        assert former not in gateway.log()
        gateway.stop()
        gateway.start()
        assert write(gateway, bucket, second) == ""
        gateway.kill()
        file.unlink()
        gateway.start()
        assert write(gateway, bucket, second) == "InvalidToken"
        assert write(gateway, bucket, anew(gateway, token)) == ""


def test_gateways_that_share_a_file(store_server: StoreServer, bucket: str, tmp_path: Path) -> None:
    """Each takes what the other has given out; what neither keeps a table of, neither has to be told."""
    shared = tmp_path / "shared"
    make_session_keys(shared)
    directories = [tmp_path / "a", tmp_path / "b"]
    for directory in directories:
        directory.mkdir()
    settings = (f"s3.session_keys={shared}", "store.fenced_before=false")
    one, other = (
        GatewayProcess(directory, *settings, configuration=CONFIGURATION, **before(store_server))
        for directory in directories
    )
    with one, other:
        assert not (directories[0] / "session-keys").exists()
        _, given = granted(one)
        assert [write(gateway, bucket, given) for gateway in (one, other)] == ["", ""]


@pytest.mark.parametrize("fault", ["absent", "damaged", "open to others"])
def test_a_named_file_that_cannot_be_used(tmp_path: Path, fault: str) -> None:
    """Nothing starts, and `check-config` says the same: which setting, which file, what to do."""
    file = tmp_path / "session-keys"
    if fault != "absent":
        make_session_keys(file)
    if fault == "damaged":
        file.write_text("nonsense\n")
    if fault == "open to others":
        file.chmod(0o644)
    told = {"absent": "is not there", "damaged": "one a line in base64", "open to others": "chmod 600"}[fault]
    for name in ("check-config", "serve"):
        done = command(name, "--set", f"s3.session_keys={file}")
        assert done.exit_code == 2
        assert "s3.session_keys" in done.stderr
        assert told in done.stderr
