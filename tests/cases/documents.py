"""What the documents of an answer say."""

from __future__ import annotations

from xml.etree import ElementTree


def texts(body: bytes, name: str) -> list[str]:
    """The text of every element of that name, in a document that has to be well-formed."""
    return [e.text or "" for e in ElementTree.fromstring(body).iter() if e.tag.rpartition("}")[2] == name]
