"""What docs/clients.md says of single clients beside its examples, and what the gateway must not alter for any."""

from __future__ import annotations

import os
import secrets
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import boto3  # type: ignore[import-untyped]
import pytest
import s3fs  # type: ignore[import-untyped]
import smart_open
import urllib3
from botocore.config import Config
from minio import Minio
from minio.error import S3Error

from tests.clients.boto import say_token
from tests.clients.drivers import Failed, Program
from tests.clients.gateway import BUCKET, LENIENT, STRICT, WatchedGateway
from tests.clients.programs import AwsCli, AwsCli2, ClientS3, Rclone, S3cmd, S5cmd
from tests.conftest import REGION, s3_client
from tests.gateway_process import Target

MIB = 1 << 20


@pytest.fixture
def place(s3: Any) -> str:
    """The prefix of a new job that token 34 holds."""
    place = f"renders/job-{secrets.token_hex(4)}"
    s3.put_object(Bucket=BUCKET, Key=f"{place}/floor", Body=b"", Metadata={"fencing-token": "34"})
    return place


def boto3_client(target: Target, **config: Any) -> Any:
    return boto3.session.Session().client(
        "s3",
        endpoint_url=target.url,
        region_name=REGION,
        aws_access_key_id=target.credentials.access_key,
        aws_secret_access_key=target.credentials.secret_key,
        config=Config(proxies={}, **config),
    )


@contextmanager
def s3fs_with(target: Target, token: str) -> Iterator[Any]:
    """An s3fs that says the token with every request."""
    pair = target.credentials
    fs = s3fs.S3FileSystem(
        key=pair.access_key,
        secret=pair.secret_key,
        endpoint_url=target.url,
        client_kwargs={"region_name": REGION},
        skip_instance_cache=True,
        use_listings_cache=False,
    )
    say_token(fs.connect(), token)
    yield fs
    fs.close_session(fs.loop, fs.s3)


def test_boto3_deletes_of_many(gateway: WatchedGateway, s3: Any, place: str) -> None:
    """A batch with the token deletes; one with a lower token raises nothing and names each object in `Errors`."""
    keys = [f"{place}/a", f"{place}/b"]
    for key in keys:
        s3.put_object(Bucket=BUCKET, Key=key, Body=b"x", Metadata={"fencing-token": "34"})
    client, token = boto3_client(gateway.target(STRICT)), "33"
    client.meta.events.register(
        "before-call.s3", lambda params, **_: params["headers"].update({"X-Fencing-Token": token})
    )
    batch = {"Objects": [{"Key": key} for key in keys]}
    refused = client.delete_objects(Bucket=BUCKET, Delete=batch)
    assert {error["Key"]: error["Code"] for error in refused["Errors"]} == dict.fromkeys(keys, "PreconditionFailed")
    token = "34"
    done = client.delete_objects(Bucket=BUCKET, Delete=batch)
    client.close()
    assert "Errors" not in done
    assert {one["Key"] for one in done["Deleted"]} == set(keys)


@pytest.mark.services
@pytest.mark.parametrize("client", [AwsCli, AwsCli2])
def test_aws_cli_empty_files(gateway: WatchedGateway, place: str, tmp_path: Path, client: type[AwsCli]) -> None:
    """What follows an empty file on the same connection is answered, and not sent again after a time-out; the CLI asks
    for leave to send either."""
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws/config").write_text("[default]\ns3 =\n  max_concurrent_requests = 1\n")
    (tmp_path / "files").mkdir()
    for name in ("a-empty", "b-full", "c-empty", "d-full"):
        (tmp_path / "files" / name).write_bytes(b"bytes" if "full" in name else b"")
    options = ("--recursive", "--no-progress", "--cli-read-timeout", "3", "--metadata", "fencing-token=34")
    calls = client(gateway.target(STRICT), tmp_path)
    with gateway.recorded() as requests:
        calls.run(calls.program, "s3", "cp", "files", f"s3://{BUCKET}/{place}/", *options)
    assert [line["operation"] for line in requests] == ["PutObject"] * 4


@pytest.mark.parametrize(("token", "status"), [("34", 200), ("33", 412)])
def test_boto3_presigned_put(gateway: WatchedGateway, place: str, token: str, status: int) -> None:
    """A presigned URL holds to the token it was made with, and to nothing else: without its header it is refused."""
    client = boto3_client(gateway.target(STRICT), signature_version="s3v4")
    wanted = {"Bucket": BUCKET, "Key": f"{place}/a", "Metadata": {"fencing-token": token}}
    url = client.generate_presigned_url("put_object", wanted)
    client.close()
    with urllib3.PoolManager(retries=False) as http:
        said = {"x-amz-meta-fencing-token": token}
        assert http.request("PUT", url, body=b"rendered", headers=said).status == status
        assert http.request("PUT", url, body=b"rendered").status == 403
        assert http.request("PUT", url, body=b"rendered", headers={**said, "X-Fencing-Token": "99"}).status == 400


def test_boto3_presigned_by_default_is_not_taken(gateway: WatchedGateway, place: str) -> None:
    """Without `signature_version`, boto3 presigns with Signature Version 2: the gateway says what it takes."""
    client = boto3_client(gateway.target(STRICT))
    url = client.generate_presigned_url("put_object", {"Bucket": BUCKET, "Key": f"{place}/a"})
    client.close()
    with urllib3.PoolManager(retries=False) as http:
        answer = http.request("PUT", url, body=b"rendered")
    assert answer.status == 400
    assert b"Please use AWS4-HMAC-SHA256" in answer.data


def test_minio_has_no_place_for_a_header(gateway: WatchedGateway, place: str, small_file: Path) -> None:
    """What minio-py is given as metadata becomes user metadata, whatever its name: no token goes along."""
    target = gateway.target(STRICT)
    client = Minio(
        endpoint=target.host,
        access_key=target.credentials.access_key,
        secret_key=target.credentials.secret_key,
        secure=False,
        region=REGION,
    )
    with pytest.raises(S3Error) as caught:
        client.fput_object(
            bucket_name=BUCKET,
            object_name=f"{place}/a",
            file_path=str(small_file),
            metadata={"X-Fencing-Token": "34"},
        )
    client._http.clear()
    assert caught.value.code == "FencingTokenRequired"


def test_s3fs_is_silent_about_refusals_in_a_batch(gateway: WatchedGateway, s3: Any, place: str) -> None:
    """`rm` sends a batch, and neither raises nor answers what is refused in it. `rm_file` raises."""
    target = gateway.target(STRICT)
    files = [f"{BUCKET}/{place}/floor", f"{BUCKET}/{place}/a"]
    s3.put_object(Bucket=BUCKET, Key=f"{place}/a", Body=b"x", Metadata={"fencing-token": "34"})
    with s3fs_with(target, "33") as fs:
        assert fs.rm(files) == []
        with pytest.raises(OSError, match="Token 33 is stale"):
            fs.rm_file(files[0])
        # The folder itself is in the batch, and no rule makes it the job's.
        with pytest.raises(OSError, match="belong to several fencing keys"):
            fs.rm(f"{BUCKET}/{place}", recursive=True)
    assert s3.list_objects_v2(Bucket=BUCKET, Prefix=place)["KeyCount"] == 2
    with s3fs_with(target, "34") as fs:
        assert fs.rm(fs.find(f"{BUCKET}/{place}")) == []
    assert s3.list_objects_v2(Bucket=BUCKET, Prefix=place)["KeyCount"] == 0


def write_with_boto3(target: Target, key: str, tmp_path: Path, overtake: Callable[[], None]) -> None:
    (tmp_path / "body").write_bytes(os.urandom(32 * MIB))
    client = boto3_client(target)
    say_token(client, "34")
    met = threading.Lock()

    def progress(_: int) -> None:
        if met.acquire(blocking=False):
            overtake()

    try:
        client.upload_file(str(tmp_path / "body"), BUCKET, key, Callback=progress)
    finally:
        client.close()


def write_with_smart_open(target: Target, key: str, tmp_path: Path, overtake: Callable[[], None]) -> None:
    client = boto3_client(target)
    say_token(client, "34")
    how = {"client": client, "min_part_size": 5 * MIB}
    try:
        with smart_open.open(f"s3://{BUCKET}/{key}", "wb", transport_params=how) as sink:
            sink.write(os.urandom(6 * MIB))
            overtake()
            sink.write(os.urandom(6 * MIB))
    finally:
        client.close()


def write_with_s3fs(target: Target, key: str, tmp_path: Path, overtake: Callable[[], None]) -> None:
    with s3fs_with(target, "34") as fs, fs.open(f"{BUCKET}/{key}", "wb", block_size=5 * MIB) as sink:
        sink.write(os.urandom(11 * MIB))
        overtake()
        sink.write(os.urandom(11 * MIB))


@pytest.mark.parametrize("write", [write_with_boto3, write_with_smart_open, write_with_s3fs])
def test_overtaken_in_mid_upload(
    write: Callable[..., None], gateway: WatchedGateway, s3: Any, place: str, tmp_path: Path
) -> None:
    """When a higher token comes while parts are under way, the writer is told by whom, and nothing of it appears."""

    def overtake() -> None:
        s3.put_object(Bucket=BUCKET, Key=f"{place}/floor", Body=b"", Metadata={"fencing-token": "35"})

    with gateway.recorded() as requests, pytest.raises(Exception, match="Token 34 is stale: token 35 now holds"):
        write(gateway.target(STRICT), f"{place}/a", tmp_path, overtake)
    assert 412 in {line["status"] for line in requests if line["operation"] == "UploadPart"}
    assert "CompleteMultipartUpload" not in {line["operation"] for line in requests if line["status"] == 200}
    assert s3.list_objects_v2(Bucket=BUCKET, Prefix=f"{place}/a")["KeyCount"] == 0


@pytest.mark.services
def test_a_stream_from_node_is_sent_once(gateway: WatchedGateway, small_file: Path, tmp_path: Path) -> None:
    """Told to come again, client-s3 gives up on a body that it cannot read anew."""
    calls = ClientS3(gateway.target(STRICT), tmp_path)
    with gateway.recorded() as requests, gateway.full(), pytest.raises(Failed, match="SlowDown"):
        calls.call("stream with client-s3", str(small_file), "plain/a")
    assert Counter(line["status"] for line in requests if line["method"] == "PUT")[503] == 1


@pytest.mark.services
def test_rclone_by_default_tries_three_times(
    gateway: WatchedGateway, place: str, small_file: Path, tmp_path: Path
) -> None:
    """rclone repeats whatever has failed, also what is final, unless it is told `--retries 1`."""
    rclone = Rclone(gateway.target(LENIENT), tmp_path)
    command = ["rclone", "copyto", str(small_file), f"gateway:{BUCKET}/{place}/a", "--header", "X-Fencing-Token: 33"]
    with gateway.recorded() as requests, pytest.raises(Failed, match="Attempt 3/3 failed"):
        rclone.run(*command)
    assert Counter(line["status"] for line in requests if line["operation"] == "PutObject") == {412: 3}


@pytest.mark.services
def test_rclone_sets_times_by_a_copy(gateway: WatchedGateway, place: str, small_file: Path, tmp_path: Path) -> None:
    """An object that is there already gets a new time by a copy onto itself, which bears no metadata: 428."""
    rclone = Rclone(gateway.target(STRICT), tmp_path)
    command = ["rclone", "copyto", "--retries", "1", "--metadata", "--metadata-set", "fencing-token=34"]
    command += [str(small_file), f"gateway:{BUCKET}/{place}/a"]
    rclone.run(*command)
    small_file.touch()
    with pytest.raises(Failed, match="Failed to set modification time: FencingTokenRequired"):
        rclone.run(*command)
    rclone.run(*command, "--ignore-times")


@pytest.mark.services
def test_s3cmd_sets_an_acl_after_a_copy(
    gateway: WatchedGateway, s3: Any, place: str, small_file: Path, tmp_path: Path
) -> None:
    """s3cmd's copy bears the token and is made; the ACL that it sets then bears none: refused, exit status 1."""
    s3cmd = S3cmd(gateway.target(STRICT), tmp_path)
    s3cmd.upload(small_file, f"{place}/a", "34")
    with pytest.raises(Failed, match="FencingTokenRequired") as caught:
        s3cmd.copy(f"{place}/a", f"{place}/b", "34")
    assert caught.value.exit_status == 1
    assert s3.get_object(Bucket=BUCKET, Key=f"{place}/b")["Body"].read() == small_file.read_bytes()


@pytest.mark.services
def test_the_aws_cli_2_hides_a_refusal(
    gateway: WatchedGateway, s3: Any, place: str, small_file: Path, tmp_path: Path
) -> None:
    """`s3 cp` of version 2 takes a 412 for an object that is there already: status 0, and nothing said. With the right
    token it says that it has uploaded; of what is no 412 it tells; `s3api` tells of all."""
    cli = AwsCli2(gateway.target(STRICT), tmp_path)
    command = [cli.program, "s3", "cp", "--no-progress", str(small_file), f"s3://{BUCKET}/{place}/a", "--metadata"]
    assert cli.run(*command, "fencing-token=34").startswith("upload: ")
    (tmp_path / "late").write_bytes(b"late")
    command[4] = str(tmp_path / "late")
    with gateway.recorded() as requests:
        assert cli.run(*command, "fencing-token=33") == ""
    assert [line["status"] for line in requests] == [412]
    with pytest.raises(Failed, match="FencingTokenRequired"):
        cli.run(*command, "other=1")
    put = [cli.program, "s3api", "put-object", "--bucket", BUCKET, "--key", f"{place}/a", "--body", command[4]]
    with pytest.raises(Failed, match="Token 33 is stale"):
        cli.run(*put, "--metadata", "fencing-token=33")
    assert s3.get_object(Bucket=BUCKET, Key=f"{place}/a")["Body"].read() == small_file.read_bytes()


@pytest.mark.services
def test_s5cmd_pipe_fails_without_a_word(gateway: WatchedGateway, place: str, tmp_path: Path) -> None:
    """Refused, `pipe` ends with 1 and says nothing; `cp` says it."""
    s5cmd = S5cmd(gateway.target(STRICT), tmp_path)
    (tmp_path / "late").write_bytes(b"late")
    piped = f"s5cmd pipe --metadata fencing-token=33 s3://{BUCKET}/{place}/a < late"
    with pytest.raises(Failed) as caught:
        s5cmd.run("sh", "-c", piped)
    assert (caught.value.text, caught.value.exit_status) == ("", 1)


@pytest.mark.services
def test_ffmpeg_reads_no_answer_to_what_it_writes(gateway: WatchedGateway, s3: Any, tmp_path: Path) -> None:
    """Its own PUT names no length, as S3 wants it: 411. It does not look: status 0, and nothing is stored."""
    signer = s3_client(gateway.url, STRICT, signature_version="s3v4")
    url = signer.generate_presigned_url("put_object", {"Bucket": BUCKET, "Key": "plain/film.mkv"})
    signer.close()
    ffmpeg = Program(gateway.target(STRICT), tmp_path)
    source = ("-f", "lavfi", "-i", "testsrc=duration=1:size=64x48:rate=10")
    with gateway.recorded() as requests:
        ffmpeg.run("ffmpeg", "-nostdin", "-loglevel", "error", *source, "-f", "matroska", "-method", "PUT", url)
    assert [line["status"] for line in requests] == [411]
    assert s3.list_objects_v2(Bucket=BUCKET, Prefix="plain/film.mkv")["KeyCount"] == 0


METADATA: list[dict[str, Any]] = [
    {},
    {"Metadata": {"plain": "value", "inner": "a  b", "empty": "", "percent": "100%25", "UPPER": "Case"}},
    {"ContentType": "video/mp4", "CacheControl": "max-age=3", "ContentDisposition": 'attachment; filename="a b"'},
    {"ContentEncoding": "gzip", "ContentLanguage": "de, en", "Expires": "Thu, 01 Jan 2032 00:00:00 GMT"},
    {"Tagging": "a=1&b=x%20y"},
    {"StorageClass": "STANDARD"},
]
OF_EACH_ANSWER = {"date", "x-amz-request-id", "x-amz-id-2", "last-modified", "connection", "server"}
OF_THE_FENCE = {"x-fencing-object-key", "x-fencing-object-token"}


@pytest.mark.parametrize("said", METADATA, ids=lambda said: ",".join(said) or "none")
def test_metadata_as_at_the_store(gateway: WatchedGateway, s3: Any, place: str, said: dict[str, Any]) -> None:
    """Objects put through the gateway, fenced or not, show the same headers as those put at the store."""
    store = s3_client(gateway.store.url, gateway.store.credentials)
    name = secrets.token_hex(4)
    shown = []
    for client, key, metadata in (
        (store, f"direct/{name}", {}),
        (s3, f"plain/{name}", {}),
        (s3, f"{place}/{name}", {"fencing-token": "34"}),
    ):
        client.put_object(
            Bucket=BUCKET, Key=key, Body=b"x", **{**said, "Metadata": {**said.get("Metadata", {}), **metadata}}
        )
        answer = client.get_object(Bucket=BUCKET, Key=key)["ResponseMetadata"]["HTTPHeaders"]
        shown.append({n: v for n, v in answer.items() if n not in OF_EACH_ANSWER | OF_THE_FENCE})
    store.close()
    direct, plain, fenced = shown
    assert plain == direct
    assert fenced == direct
