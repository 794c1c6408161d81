"""The clients that are programs, or live in an environment of their own."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote
from xml.etree import ElementTree

from tests.clients.drivers import ALL, HEADER, Companion, Failed, Program
from tests.clients.gateway import BUCKET
from tests.conftest import REGION
from tests.gateway_process import ROOT

HERE = Path(__file__).parent
AWS_CLI_2 = ROOT / ".services/aws-v2/bin"
BEFORE_CHECKSUMS = (str(ROOT / ".services/before-checksums/bin/python"), "-W", "error", str(HERE / "boto.py"))


class Copier(Program):
    """A program whose one command copies either way. User metadata carries the token; there is none on DELETE."""

    tells_token_on = frozenset({"upload", "copy"})

    def upload(self, path: Path, key: str, token: str | None = None) -> None:
        self._copy(str(path), f"s3://{BUCKET}/{key}", token)

    def download(self, key: str, path: Path) -> None:
        self._copy(f"s3://{BUCKET}/{key}", str(path), None)

    def copy(self, source: str, key: str, token: str | None = None) -> None:
        self._copy(f"s3://{BUCKET}/{source}", f"s3://{BUCKET}/{key}", token)

    def _copy(self, source: str, place: str, token: str | None) -> None:
        raise NotImplementedError


class AwsCli(Copier):
    """The AWS CLI's `aws s3`."""

    program = "aws"

    def _copy(self, source: str, place: str, token: str | None) -> None:
        said = ["--metadata", f"fencing-token={token}"] if token else []
        self.run(self.program, "s3", "cp", "--no-progress", source, place, *said)

    def delete(self, key: str, token: str | None = None) -> None:
        assert token is None
        self.run(self.program, "s3", "rm", f"s3://{BUCKET}/{key}")

    def names(self, prefix: str) -> set[str]:
        command = [self.program, "s3api", "list-objects-v2", "--bucket", BUCKET, "--prefix", prefix]
        listed = self.run(*command, "--query", "Contents[].[Key]", "--output", "text")
        return set(listed.splitlines()) - {"None"}


class AwsCli2(AwsCli):
    """The same of version 2."""

    program = str(AWS_CLI_2 / "aws")


class S5cmd(Copier):
    """s5cmd, whose DELETE is a batch of one."""

    def _copy(self, source: str, place: str, token: str | None) -> None:
        said = ["--metadata", f"fencing-token={token}"] if token else []
        self.run("s5cmd", "cp", "--raw", *said, source, place)

    def delete(self, key: str, token: str | None = None) -> None:
        assert token is None
        self.run("s5cmd", "rm", "--raw", f"s3://{BUCKET}/{key}")

    def names(self, prefix: str) -> set[str]:
        try:
            listed = self.run("s5cmd", "ls", "--show-fullpath", f"s3://{BUCKET}/{prefix}*")
        except Failed as error:
            if "no object found" not in error.text:
                raise
            return set()
        return {line.partition(f"s3://{BUCKET}/")[2] for line in listed.splitlines()}


class Rclone(Program):
    """rclone, told to try once. Its `--header` is not signed: only for clients that need not sign their token."""

    tells_token_on = ALL
    options = ("--retries", "1", "--s3-upload-cutoff", "16M")

    def _rclone(self, *command: str, token: str | None = None) -> str:
        said = ["--header", f"{HEADER}: {token}"] if token else []
        return self.run("rclone", *command, *self.options, *said)

    def upload(self, path: Path, key: str, token: str | None = None) -> None:
        self._rclone("copyto", str(path), f"gateway:{BUCKET}/{key}", token=token)

    def download(self, key: str, path: Path) -> None:
        self._rclone("copyto", f"gateway:{BUCKET}/{key}", str(path))

    def copy(self, source: str, key: str, token: str | None = None) -> None:
        self._rclone("copyto", f"gateway:{BUCKET}/{source}", f"gateway:{BUCKET}/{key}", token=token)

    def delete(self, key: str, token: str | None = None) -> None:
        self._rclone("deletefile", f"gateway:{BUCKET}/{key}", token=token)

    def names(self, prefix: str) -> set[str]:
        return {
            prefix + name
            for name in self._rclone("lsf", "-R", "--files-only", f"gateway:{BUCKET}/{prefix}").splitlines()
        }


class S3cmd(Program):
    """s3cmd. It adds headers to uploads and copies, signed, and to no DELETE."""

    tells_token_on = frozenset({"upload"})

    def _s3cmd(self, *command: str, token: str | None = None) -> str:
        host = self.target.host
        said = [f"--add-header={HEADER}:{token}"] if token else []
        where = ["--no-ssl", f"--host={host}", f"--host-bucket={host}", f"--region={REGION}", "--no-progress"]
        return self.run("s3cmd", *where, *command, *said)

    def upload(self, path: Path, key: str, token: str | None = None) -> None:
        self._s3cmd("put", str(path), f"s3://{BUCKET}/{key}", token=token)

    def download(self, key: str, path: Path) -> None:
        self._s3cmd("get", f"s3://{BUCKET}/{key}", str(path))

    def copy(self, source: str, key: str, token: str | None = None) -> None:
        self._s3cmd("cp", f"s3://{BUCKET}/{source}", f"s3://{BUCKET}/{key}", token=token)

    def delete(self, key: str, token: str | None = None) -> None:
        assert token is None
        self._s3cmd("del", f"s3://{BUCKET}/{key}")

    def names(self, prefix: str) -> set[str]:
        listed = self._s3cmd("ls", "--recursive", f"s3://{BUCKET}/{prefix}")
        return {line.partition(f"s3://{BUCKET}/")[2] for line in listed.splitlines()}


class Curl(Program):
    """curl --aws-sigv4, which signs every header it is given."""

    tells_token_on = ALL

    def _curl(self, path: str, *options: str, token: str | None = None) -> str:
        pair = self.target.credentials
        said = ["-H", f"{HEADER}: {token}"] if token else []
        if pair.session_token:
            said += ["-H", f"x-amz-security-token: {pair.session_token}"]
        return self.run(
            *("curl", "-sS", "--fail-with-body", "--noproxy", "*", "--retry", "3", "--path-as-is"),
            *("--aws-sigv4", f"aws:amz:{REGION}:s3", "--user", f"{pair.access_key}:{pair.secret_key}"),
            *("-H", "x-amz-content-sha256: UNSIGNED-PAYLOAD", *said, *options, f"{self.target.url}/{BUCKET}{path}"),
        )

    def upload(self, path: Path, key: str, token: str | None = None) -> None:
        self._curl(f"/{quote(key)}", "-T", str(path), token=token)

    def download(self, key: str, path: Path) -> None:
        self._curl(f"/{quote(key)}", "-o", str(path))

    def copy(self, source: str, key: str, token: str | None = None) -> None:
        self._curl(f"/{quote(key)}", "-X", "PUT", "-H", f"x-amz-copy-source: {BUCKET}/{quote(source)}", token=token)

    def delete(self, key: str, token: str | None = None) -> None:
        self._curl(f"/{quote(key)}", "-X", "DELETE", token=token)

    def names(self, prefix: str) -> set[str]:
        document = ElementTree.fromstring(self._curl(f"?list-type=2&prefix={quote(prefix, safe='')}"))
        return {found.text or "" for found in document.iterfind(".//{*}Contents/{*}Key")}


class Library(Companion):
    """A library in an environment of its own, whose program knows these calls."""

    uploader = "upload"

    def upload(self, path: Path, key: str, token: str | None = None) -> None:
        self.call(self.uploader, str(path), key, token)

    def download(self, key: str, path: Path) -> None:
        self.call("download", key, str(path))

    def copy(self, source: str, key: str, token: str | None = None) -> None:
        self.call("copy", source, key, token)

    def delete(self, key: str, token: str | None = None) -> None:
        self.call("delete", key, token)

    def names(self, prefix: str) -> set[str]:
        return set(self.call("names", prefix))


class PyArrow(Library):
    """PyArrow, which can say no token: only for credentials that are bound to a lease."""

    tells_token_on = frozenset[str]()
    command: tuple[str, ...] = (str(ROOT / ".services/bin/python"), "-W", "error", str(HERE / "arrow.py"), BUCKET)


class OldBoto3(Library):
    """boto3 in the last version before checksums became the default."""

    tells_token_on = ALL
    command: tuple[str, ...] = (*BEFORE_CHECKSUMS, "boto3", BUCKET)


class OldAiobotocore(OldBoto3):
    """aiobotocore of that time."""

    command: tuple[str, ...] = (*BEFORE_CHECKSUMS, "aiobotocore", BUCKET)


class ClientS3(OldBoto3):
    """`@aws-sdk/client-s3` on Node."""

    command: tuple[str, ...] = ("node", str(HERE / "node" / "client.js"), BUCKET)
    uploader = "upload with client-s3"


class LibStorage(ClientS3):
    """The same client, uploading by `@aws-sdk/lib-storage`."""

    uploader = "upload with lib-storage"
