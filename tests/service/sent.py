"""What went upstream, and who meddles there meanwhile."""

from __future__ import annotations

from gateway.s3.fencing import object_metadata
from gateway.upstream.base import UpstreamRequest
from gateway.upstream.memory import MemoryResponse
from tests.service.rig import BUCKET, JOB


def conditions(r) -> list[tuple[str, str]]:
    """The preconditions that went upstream, in order."""
    return [(n, v) for request in r.upstream.sent for n, v in request.headers if n in ("if-match", "if-none-match")]


def nonces(r) -> list[str]:
    return [v for request in r.upstream.sent for n, v in request.headers if n == "x-amz-meta-fencing-nonce"]


async def elsewhere(r, token: int, data: bytes, key: str = JOB, fence_key: str = "j") -> None:
    """Another gateway, or one with a database that is lost, writes the object."""
    write = r.write("PUT", key, token, None)
    headers = object_metadata(fence_key, token, f"elsewhere{token}") if token else ()
    r.upstream.apply(UpstreamRequest("PUT", BUCKET, write.head.raw_key, "", headers), data)


def on_look(r, change) -> None:
    """Do something each time an object has been looked at, before its answer is known."""
    read = r.upstream.read

    async def reading(request, body=b""):
        answer = await read(request, body)
        if request.method == "HEAD":
            await change()
        return answer

    r.upstream.read = reading


def versions(r, *, objects: bool = True) -> None:
    """The bucket keeps versions; `objects`: and its objects say so."""
    read = r.upstream.read

    async def reading(request, body=b""):
        if request.raw_query == "versioning":
            return MemoryResponse(
                200, [], b"<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>"
            )
        answer = await read(request, body)
        if answer.status == 200 and objects:
            answer.headers.append(("x-amz-version-id", "v1"))
        return answer

    r.upstream.read = reading
