"""The demonstration's receiver of webhooks."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import aiohttp
from standardwebhooks import Webhook

from gateway.cli.demonstration.receiver import Receiver


async def test_the_receiver_believes_what_is_signed_once() -> None:
    """What bears no good signature is refused; the same id again is taken, and is the same announcement."""
    async with Receiver() as receiver, aiohttp.ClientSession() as session:

        async def post(body: dict[str, Any], secret: str) -> int:
            text, now = json.dumps(body), datetime.now(UTC)
            headers = {
                "webhook-id": body["id"],
                "webhook-timestamp": str(int(now.timestamp())),
                "webhook-signature": Webhook(secret).sign(body["id"], now, text),
            }
            async with session.post(receiver.url, data=text, headers=headers) as answer:
                return answer.status

        assert await post({"id": "completed:job-1:2"}, Receiver().secret) == 401
        assert receiver.told == []
        for _ in range(2):
            assert await post({"id": "completed:job-1:3"}, receiver.secret) == 204
        await receiver.first()
        assert receiver.told == ["completed:job-1:3"]
