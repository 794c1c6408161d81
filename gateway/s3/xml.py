"""The XML that the gateway itself reads and writes: batches, upload ids, and the error in an answer.

Everything else passes as bytes. Documents from clients are read without DTDs, entities or external references.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from io import BytesIO
from xml.etree.ElementTree import Element, ParseError, TreeBuilder

from defusedxml.common import DefusedXmlException
from defusedxml.ElementTree import DefusedXMLParser, iterparse

from gateway.s3.errors import S3Error, xml_text
from gateway.s3.request import refuse_long_key

MAX_BATCH_OBJECTS = 1000
"""S3 API reference, DeleteObjects: up to 1,000 keys."""
MAX_DEPTH = 32
MAX_ELEMENTS = 50_000
"""More than any of S3's documents has; each costs many times its bytes."""

_ERROR = re.compile(rb"(?:\xef\xbb\xbf)?\s*(?:<\?xml[^>]*\?>\s*)?<Error[\s/>]")
_CODE = re.compile(rb"<Code>\s*([A-Za-z0-9.]+)\s*</Code>")
_LOCATION = re.compile(rb"(<(?:\w+:)?Location>)[^<]*")
_DECLARATION = b'<?xml version="1.0" encoding="UTF-8"?>\n'
_NAMESPACE = 'xmlns="http://s3.amazonaws.com/doc/2006-03-01/"'


@dataclass(frozen=True, slots=True)
class BatchObject:
    """One object of a DeleteObjects request. `fields` are its elements as sent (Key, VersionId, ETag …)."""

    key: str
    version_id: str | None
    fields: tuple[tuple[str, str], ...] = field(repr=False)

    @property
    def called(self) -> tuple[str, str | None]:
        """By what the answer names it."""
        return self.key, self.version_id


@dataclass(frozen=True, slots=True)
class BatchError:
    """One object's `<Error>` in the answer to DeleteObjects."""

    key: str
    version_id: str | None
    code: str
    message: str


@dataclass(frozen=True, slots=True)
class BatchDeleted:
    """One object's `<Deleted>` in the answer to DeleteObjects."""

    key: str
    version_id: str | None
    element: bytes = field(repr=False)
    """All of it."""


def refuse_doctype(body: bytes) -> None:
    """Raises `S3Error` (MalformedXML) for a document with a DOCTYPE, which could have its reader fetch or unfold what
    nobody has sent. Looks no further than the root element's name; the rest, and what is no XML, is its reader's."""
    try:
        next(iterparse(BytesIO(body.lstrip()), ("start",), forbid_dtd=True), None)
    except DefusedXmlException as error:
        raise _malformed() from error
    except (ParseError, ValueError, LookupError):
        return


def error_code(body: bytes) -> str | None:
    """The code of an S3 error document; None if the body is not one. Also finds the `<Error>` in a 200, behind the
    white space that keeps the connection alive (S3 API reference, CompleteMultipartUpload)."""
    if not body or not _ERROR.match(body):
        return None
    found = _CODE.search(body)
    return found[1].decode() if found else ""


def parse_batch(body: bytes) -> tuple[list[BatchObject], bool]:
    """The objects of a DeleteObjects request, and whether it is quiet. Raises `S3Error` (MalformedXML,
    KeyTooLongError)."""
    root = parse_document(body)
    objects: list[BatchObject] = []
    quiet = False
    for element in root:
        name = local_name(element)
        if name == "Quiet":
            quiet = (element.text or "").strip().lower() == "true"
        elif name == "Object":
            fields = tuple((local_name(child), child.text or "") for child in element)
            named = dict(fields)
            # Of a doubled element the upstream might read the other.
            if not named.get("Key") or len(named) < len(fields):
                raise _malformed()
            refuse_long_key(named["Key"])
            objects.append(BatchObject(named["Key"], named.get("VersionId") or None, fields))
    if local_name(root) != "Delete" or not 0 < len(objects) <= MAX_BATCH_OBJECTS:
        raise _malformed()
    return objects, quiet


def names_output(body: bytes) -> bool:
    """Whether a RestoreObject request wants its results written to another place (type SELECT, OutputLocation). Raises
    `S3Error` (MalformedXML): what cannot be read might say so."""
    return any(local_name(element).lower() == "outputlocation" for element in parse_document(body).iter())


def render_batch(objects: Iterable[BatchObject]) -> bytes:
    """A DeleteObjects request for these objects, not quiet: the gateway wants to know of each."""
    parts = [
        "<Object>" + "".join(f"<{name}>{xml_text(value)}</{name}>" for name, value in o.fields) + "</Object>"
        for o in objects
    ]
    return _DECLARATION + f"<Delete {_NAMESPACE}>{''.join(parts)}</Delete>".encode()


def parse_batch_result(body: bytes) -> tuple[list[BatchDeleted], list[BatchError]]:
    """An upstream's answer to DeleteObjects: what has been deleted, as often as it stands there, and the errors."""
    deleted = []
    errors = []
    for element in parse_document(body):
        named = {local_name(child): child.text or "" for child in element}
        key = named.get("Key", "")
        if local_name(element) == "Deleted":
            inner = "".join(f"<{name}>{xml_text(value)}</{name}>" for name, value in named.items())
            whole = f"<Deleted>{inner}</Deleted>".encode()
            deleted.append(BatchDeleted(key, named.get("VersionId") or None, whole))
        elif local_name(element) == "Error":
            errors.append(BatchError(key, named.get("VersionId"), named.get("Code", ""), named.get("Message", "")))
    return deleted, errors


def render_batch_result(deleted: Iterable[bytes], errors: Iterable[BatchError]) -> bytes:
    """The answer to DeleteObjects."""
    parts = list(deleted)
    for error in errors:
        version = "" if error.version_id is None else f"<VersionId>{xml_text(error.version_id)}</VersionId>"
        parts.append(
            f"<Error><Key>{xml_text(error.key)}</Key>{version}<Code>{xml_text(error.code)}</Code>"
            f"<Message>{xml_text(error.message)}</Message></Error>".encode()
        )
    return _DECLARATION + f"<DeleteResult {_NAMESPACE}>".encode() + b"".join(parts) + b"</DeleteResult>"


def render_complete_result(bucket: str, key: str, etag: str) -> bytes:
    """The answer to a CompleteMultipartUpload that is known to have succeeded."""
    return (
        _DECLARATION
        + (
            f"<CompleteMultipartUploadResult {_NAMESPACE}><Location>/{xml_text(bucket)}/{xml_text(key)}</Location>"
            f"<Bucket>{xml_text(bucket)}</Bucket><Key>{xml_text(key)}</Key><ETag>{xml_text(etag)}</ETag>"
            "</CompleteMultipartUploadResult>"
        ).encode()
    )


def with_location(body: bytes, location: str) -> bytes:
    """An answer to CompleteMultipartUpload whose Location, if it has one, is this."""
    return _LOCATION.sub(lambda found: found[1] + xml_text(location).encode(), body, count=1)


def render_copy_result(etag: str, last_modified: str) -> bytes:
    """The answer to a CopyObject that is known to have succeeded."""
    return (
        _DECLARATION
        + (
            f"<CopyObjectResult {_NAMESPACE}><LastModified>{xml_text(last_modified)}</LastModified>"
            f"<ETag>{xml_text(etag)}</ETag></CopyObjectResult>"
        ).encode()
    )


def find_text(body: bytes, name: str) -> str | None:
    """The text of the first element of that name in an upstream's answer; None if there is none."""
    return next(iter(texts_of(body, name)), None)


def texts_of(body: bytes, name: str) -> list[str]:
    """The texts of all elements of that name in an upstream's answer; none if it is no XML."""
    try:
        root = parse_document(body)
    except S3Error:
        return []
    return [element.text or "" for element in root.iter() if local_name(element) == name]


def parse_document(body: bytes) -> Element:
    """A document's root, of bounded depth and number of elements. Raises `S3Error` (MalformedXML)."""
    try:
        parser = DefusedXMLParser(target=_Bounded(), forbid_dtd=True)
        parser.feed(body.strip())
        root: Element = parser.close()
    except (ParseError, DefusedXmlException, ValueError, LookupError) as error:
        raise _malformed() from error
    return root


class _Bounded(TreeBuilder):
    """Raises ValueError for more than MAX_DEPTH and MAX_ELEMENTS."""

    def __init__(self) -> None:
        super().__init__()
        self._depth = self._elements = 0

    def start(self, tag: str, attrs: dict[str, str], /) -> Element:
        self._depth += 1
        self._elements += 1
        if self._depth > MAX_DEPTH or self._elements > MAX_ELEMENTS:
            raise ValueError("deeper, or of more elements, than any of S3's documents")
        return super().start(tag, attrs)

    def end(self, tag: str, /) -> Element:
        self._depth -= 1
        return super().end(tag)


def _malformed() -> S3Error:
    return S3Error(
        "MalformedXML",
        "The XML you provided was not well-formed or did not validate against our published schema",
    )


def local_name(element: Element) -> str:
    """An element's name without its namespace."""
    return element.tag.rpartition("}")[2]
