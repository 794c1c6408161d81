"""What is announced to the operator's own receivers: the topics, what names an announcement, and its form.

An announcement is a CloudEvent 1.0 (https://github.com/cloudevents/spec, JSON format). Its id names the job and the
token, so that whoever gets it twice knows it again, and however many workers believe that they have completed a job,
there is one id for what the one that holds it has done.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from hashlib import sha256
from urllib.parse import quote

from gateway.core.keys import token_in_json

MEDIA_TYPE = "application/cloudevents+json"
_MAX_ID_KEY_CHARACTERS = 256


class Topic(StrEnum):
    """What an announcement is about; the type of its CloudEvent."""

    COMPLETED = "fencing.completed"
    """A job has been completed, by this token."""
    HANDED_OVER = "fencing.handed_over"
    """The key is this token's from now on: by a grant, a delivery, or a higher token that came with a write."""
    REFUSED = "fencing.refused"
    """The fence has refused something."""
    DEAD_LETTERED = "fencing.dead_lettered"
    """A job has failed too often, and waits for an operator."""


@dataclass(frozen=True, slots=True)
class Announcement:
    """Something that has happened to a key."""

    topic: Topic
    key: str
    token: int
    """0 for a write without a token that was refused, or a job that was never delivered."""
    floor: int
    at: float
    """When, seconds since the epoch."""
    detail: str = ""
    request_id: str = ""
    count: int = 1
    """How many alike came in a row and are told as one."""

    @property
    def id(self) -> str:
        """The same for the same announcement, however often it is made; another for each other one.

        A refusal may come again for the same key and token: only its moment tells it from the next. No dot is in it:
        the signature's text is the id, the time and the body with dots between
        (https://www.standardwebhooks.com, "Signature scheme")."""
        name = f"{self.topic.removeprefix('fencing.')}:{_named(self.key)}:{self.token}"
        return f"{name}:{round(self.at * 1e6)}" if self.topic is Topic.REFUSED else name

    def as_cloud_event(self, source: str) -> dict[str, object]:
        """In the JSON format of CloudEvents; `source` is a URI that names the database."""
        return {
            "specversion": "1.0",
            "type": self.topic.value,
            "source": source,
            "id": self.id,
            "time": datetime.fromtimestamp(self.at, UTC).isoformat(timespec="microseconds").replace("+00:00", "Z"),
            "subject": self.key,
            "datacontenttype": "application/json",
            "data": {
                "key": self.key,
                "token": token_in_json(self.token),
                "floor": token_in_json(self.floor),
                "detail": self.detail,
                "request_id": self.request_id,
                "count": self.count,
            },
        }


def source_of(database: str) -> str:
    """The URI that names a database."""
    return f"urn:fencing-gateway:{quote(database, safe='')}"


def _named(key: str) -> str:
    """The key in letters that a header takes; its hash where that is long. Neither holds a dot or a colon, and no key
    looks like a hash of another."""
    encoded = quote(key, safe="/").replace(".", "%2E")
    return encoded if len(encoded) <= _MAX_ID_KEY_CHARACTERS else f"@{sha256(key.encode()).hexdigest()}"
