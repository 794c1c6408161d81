"""A page in headless Chromium that works with presigned URLs, across origins."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tests.clients.drivers import ALL, HEADER, Companion
from tests.clients.gateway import BUCKET
from tests.conftest import s3_client
from tests.gateway_process import Target

ORIGIN = "http://localhost:8000"
CORS = {
    "AllowedOrigins": [ORIGIN],
    "AllowedMethods": ["GET", "PUT", "DELETE"],
    "AllowedHeaders": ["*"],
    "ExposeHeaders": ["ETag", "X-Fencing-Floor"],
}


class Browser(Companion):
    """The page, and the server that signs its URLs: the token is among the signed headers."""

    tells_token_on = ALL

    def __init__(self, target: Target, home: Path) -> None:
        program = Path(__file__).parent / "node" / "browser.js"
        self.command = ("node", str(program), shutil.which("chromium") or "chromium")
        super().__init__(target, home)
        self._s3 = s3_client(target.url, target.credentials, signature_version="s3v4")

    def presign(self, operation: str, token: str | None = None, **wanted: Any) -> str:
        """A URL for one request, to be sent with the token's header if there is one."""

        def add_token(request: Any, **_: object) -> None:
            if token is not None:
                request.headers[HEADER] = token

        self._s3.meta.events.register("before-sign.s3", add_token, unique_id="token")
        try:
            url: str = self._s3.generate_presigned_url(operation, {"Bucket": BUCKET, **wanted})
        finally:
            self._s3.meta.events.unregister("before-sign.s3", unique_id="token")
        return url

    def upload(self, path: Path, key: str, token: str | None = None) -> None:
        self.call("return await upload(...given)", self.presign("put_object", token, Key=key), said(token), str(path))

    def download(self, key: str, path: Path) -> None:
        self.call("await download(...given)", self.presign("get_object", Key=key), str(path))

    def copy(self, source: str, key: str, token: str | None = None) -> None:
        url = self.presign("copy_object", token, Key=key, CopySource={"Bucket": BUCKET, "Key": source})
        headers = {**said(token), "x-amz-copy-source": f"{BUCKET}/{quote(source)}"}
        self.call("await send(given[0], { method: 'PUT', headers: given[1] })", url, headers)

    def delete(self, key: str, token: str | None = None) -> None:
        url = self.presign("delete_object", token, Key=key)
        self.call("await send(given[0], { method: 'DELETE', headers: given[1] })", url, said(token))

    def names(self, prefix: str) -> set[str]:
        return set(self.call("return await names(...given)", self.presign("list_objects_v2", Prefix=prefix)))


def said(token: str | None) -> dict[str, str]:
    """The headers that a presigned request has to bear."""
    return {} if token is None else {HEADER: token}
