"""What a proxy in Python costs that does nothing: aiohttp's low-level server and its client, bodies streamed through.

`python -m bench.passthrough URL` forwards all requests to URL and prints its own port.
"""

from __future__ import annotations

import asyncio
import sys

import uvloop
from aiohttp import ClientSession, ClientTimeout, TCPConnector, web
from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

HOP_BY_HOP = ("Connection", "Keep-Alive", "Transfer-Encoding")


async def serve(upstream: str) -> None:
    """Forward until cancelled."""
    async with ClientSession(
        connector=TCPConnector(limit=256), auto_decompress=False, timeout=ClientTimeout(total=None)
    ) as session:

        async def forward(request: web.BaseRequest) -> web.StreamResponse:
            body = request.content if request.body_exists else None
            async with session.request(
                request.method,
                URL(upstream + request.raw_path, encoded=True),
                headers=_end_to_end(request.headers),
                data=body,
                allow_redirects=False,
            ) as answer:
                response = web.StreamResponse(status=answer.status, headers=_end_to_end(answer.headers))
                await response.prepare(request)
                async for piece in answer.content.iter_any():
                    await response.write(piece)
                await response.write_eof()
                return response

        server = web.Server(forward, auto_decompress=False, access_log=None)
        listener = await asyncio.get_running_loop().create_server(server, "127.0.0.1", 0)
        print(listener.sockets[0].getsockname()[1], flush=True)
        await listener.serve_forever()


def _end_to_end(headers: CIMultiDictProxy[str]) -> CIMultiDict[str]:
    kept = CIMultiDict(headers)
    for name in HOP_BY_HOP:
        kept.popall(name, None)
    return kept


if __name__ == "__main__":
    uvloop.run(serve(sys.argv[1]))
