"""PyArrow's calls, and a program that makes them: `arrow.py BUCKET` takes them from standard input, one JSON a line.

It runs where neither gateway nor tests are installed, and finds endpoint and credentials in its environment.
"""

from __future__ import annotations

import json
import os
import sys
from urllib.parse import urlsplit

from pyarrow import fs

BLOCK_BYTES = 1 << 20


class Arrow:
    """PyArrow's S3 file system, with the credentials that AWS's chain finds. There is no place for a token in it."""

    def __init__(self, bucket: str) -> None:
        endpoint = urlsplit(os.environ["AWS_ENDPOINT_URL_S3"])
        self._bucket = bucket
        self._fs = fs.S3FileSystem(endpoint_override=endpoint.netloc, scheme=endpoint.scheme)

    def upload(self, path: str, key: str) -> None:
        with open(path, "rb") as source, self._fs.open_output_stream(f"{self._bucket}/{key}") as sink:
            while block := source.read(BLOCK_BYTES):
                sink.write(block)

    def download(self, key: str, path: str) -> None:
        with self._fs.open_input_stream(f"{self._bucket}/{key}") as source, open(path, "wb") as sink:
            while block := source.read(BLOCK_BYTES):
                sink.write(block)

    def copy(self, source: str, key: str) -> None:
        self._fs.copy_file(f"{self._bucket}/{source}", f"{self._bucket}/{key}")

    def delete(self, key: str) -> None:
        self._fs.delete_file(f"{self._bucket}/{key}")

    def names(self, prefix: str) -> list[str]:
        found = self._fs.get_file_info(
            fs.FileSelector(f"{self._bucket}/{prefix}", recursive=True, allow_not_found=True)
        )
        return [one.path.partition("/")[2] for one in found if one.is_file]


def main(bucket: str) -> None:
    """Make the calls, answer each in a line; an error is what the call's user would see."""
    arrow = Arrow(bucket)
    for line in sys.stdin:
        call, *arguments = json.loads(line)
        try:
            told = {"answer": getattr(arrow, call)(*arguments)}
        except OSError as error:
            told = {"error": str(error)}
        print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
