"""What the documents of an answer say, and the document that completes an upload."""

from __future__ import annotations

import hashlib
from xml.etree import ElementTree


def texts(body: bytes, name: str) -> list[str]:
    """The text of every element of that name, in a document that has to be well-formed."""
    return [e.text or "" for e in ElementTree.fromstring(body).iter() if e.tag.rpartition("}")[2] == name]


def completion(parts: list[tuple[int, bytes]]) -> bytes:
    """The document that completes an upload of these parts."""
    listed = "".join(
        f'<Part><PartNumber>{number}</PartNumber><ETag>"{hashlib.md5(data).hexdigest()}"</ETag></Part>'
        for number, data in parts
    )
    return f"<CompleteMultipartUpload>{listed}</CompleteMultipartUpload>".encode()
