"""Lists of objects: what the gateway reads of them, and how it takes its own object, the bucket's record, out of them.

S3 may answer fewer entries than `max-keys` (S3 API reference, ListObjectsV2), so an entry can be taken out of a page. A
page that would be left empty though more follow is skipped: clients of version 1 go on from the last key they saw.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from urllib.parse import quote, unquote
from xml.sax.saxutils import unescape

from gateway.core.names import RECORD_KEY, filed_name
from gateway.s3.request import parse_query
from gateway.s3.xml import local_name, parse_document

LISTS = frozenset({"ListObjects", "ListObjectsV2", "ListObjectVersions"})

_ENTRY = re.compile(rb"\s*<(Contents|Version|DeleteMarker)>(?:(?!</\1>).)*?<Key>([^<]*)</Key>.*?</\1>", re.DOTALL)
_ANY_ENTRY = re.compile(rb"<(?:Contents|Version|DeleteMarker|CommonPrefixes)>")
_COMMON = re.compile(rb"\s*<CommonPrefixes>\s*<Prefix>([^<]*)</Prefix>\s*</CommonPrefixes>")
_KEY_COUNT = re.compile(rb"(<KeyCount>)(\d+)(</KeyCount>)")
_TRUNCATED = re.compile(rb"<IsTruncated>\s*true\s*</IsTruncated>")
_FILED_VERSIONS = (f"{RECORD_KEY}.versions/v_", f"{RECORD_KEY}.versions%2Fv_")
"""How the keys begin under which SeaweedFS 4.48 files the record's versions, in words and encoded."""
_POSITIONS = ("continuation-token", "marker", "start-after", "key-marker", "version-id-marker")


@dataclass(frozen=True, slots=True)
class Page:
    """One page of keys, and whether more follow."""

    keys: tuple[str, ...]
    truncated: bool


def page_of(body: bytes) -> Page:
    """The keys of a ListObjectsV2 answer that was asked for with `encoding-type=url`. Raises `S3Error`."""
    root = parse_document(body)
    keys = []
    truncated = False
    for element in root:
        name = local_name(element)
        if name == "Contents":
            keys += [unquote(e.text or "") for e in element if local_name(e) == "Key"]
        elif name == "IsTruncated":
            truncated = (element.text or "").strip() == "true"
    return Page(tuple(keys), truncated)


def versions_of(body: bytes, key: str) -> list[str]:
    """The version ids of one object in a ListObjectVersions answer. Raises `S3Error`."""
    versions = []
    for element in parse_document(body):
        named = {local_name(child): child.text or "" for child in element}
        if named.get("Key") == key and "VersionId" in named:
            versions.append(named["VersionId"])
    return versions


def versions_beside(body: bytes, key: str) -> bool:
    """Whether a ListObjectVersions answer has versions of another object, or does not end. Raises `S3Error`.

    Not a delete marker without an id of its own, which holds nothing and which SeaweedFS 4.48 removes by no id: S3
    itself says whether one keeps its bucket."""
    for element in parse_document(body):
        named = {local_name(child): child.text for child in element}
        mark = local_name(element) == "DeleteMarker" and named.get("VersionId") == "null"
        if "VersionId" in named and named.get("Key") != key and not mark:
            return True
    return goes_on(body)


def may_show_record(raw_query: str) -> bool:
    """Whether a list may hold the record, or a common prefix that it alone is under."""
    asked = _as_filed(raw_query)
    prefix = asked.get("prefix", "")
    if not (RECORD_KEY.startswith(prefix) or prefix.startswith(RECORD_KEY)):
        return False
    # Each kind of list overlooks the positions of the others.
    position = "key-marker" if "versions" in asked else {"2": "start-after", None: "marker"}.get(asked.get("list-type"))
    # Of which kind another list-type is, stores do not agree; and a token, which only the store can read, goes before
    # what else tells a position (S3 API reference, ListObjectsV2, "start-after").
    if position is None or (position == "start-after" and "continuation-token" in asked):
        return True
    begun = asked.get(position, "")
    # Where keys are filed as paths, what follows is what comes behind the folder that the position is in.
    return min(begun, filed_name(begun).partition("/")[0]) <= RECORD_KEY


def record_prefixes(raw_query: str) -> list[tuple[str, str]]:
    """The common prefixes that a list's delimiter may roll the record up into, each with how the keys begin that are
    under it; none where the record stands for itself."""
    as_sent = dict(parse_query(raw_query))
    prefix, delimiter = _as_filed(raw_query).get("prefix", ""), as_sent.get("delimiter", "")
    if not delimiter or not RECORD_KEY.startswith(prefix):
        return []
    rolled_up = []
    if (found := RECORD_KEY.find(delimiter, len(prefix))) >= 0:
        begun = RECORD_KEY[: found + len(delimiter)]
        rolled_up.append((begun, begun))
    if as_sent.get("prefix", "") != prefix and (found := RECORD_KEY.find(delimiter)) >= 0:
        # SeaweedFS 4.48 shows such a prefix as it was sent, and behind it the key from its very beginning.
        begun = RECORD_KEY[: found + len(delimiter)]
        rolled_up.append((as_sent["prefix"] + begun, max(begun, prefix, key=len)))
    return rolled_up


def _as_filed(raw_query: str) -> dict[str, str]:
    """The parameters without the separators they begin with: stores that file keys as paths overlook those (SeaweedFS
    4.48 lists all of a bucket for the prefix `/`)."""
    return {name: value.lstrip("/\\") for name, value in parse_query(raw_query)}


def names_common_prefix(body: bytes, prefix: str) -> bool:
    """Whether a list has that common prefix."""
    return any(_text(found[1]) == prefix for found in _COMMON.finditer(body))


def without_record(body: bytes, common_prefix: str | None) -> bytes:
    """A list without the record in all its versions, also those that the store files beside it, and without
    `common_prefix` where one is given."""
    removed = 0

    def cut(found: re.Match[bytes], hidden: bool) -> bytes:
        nonlocal removed
        if not hidden:
            return found[0]
        removed += 1
        return b""

    body = _ENTRY.sub(lambda found: cut(found, _is_records(_text(found[2]))), body)
    if common_prefix is not None:
        body = _COMMON.sub(lambda found: cut(found, _text(found[1]) == common_prefix), body)
    if not removed:
        return body
    return _KEY_COUNT.sub(lambda found: b"%b%d%b" % (found[1], int(found[2]) - removed, found[3]), body)


def goes_on_empty(body: bytes) -> bool:
    """Whether a page has no entry, though more follow."""
    return goes_on(body) and _ANY_ENTRY.search(body) is None


def goes_on(body: bytes) -> bool:
    """Whether more follows after a page."""
    return _TRUNCATED.search(body) is not None


def next_page(raw_query: str, body: bytes) -> str:
    """The query of the page after one that holds the record alone."""
    asked = parse_query(raw_query)
    kept = [(name, value) for name, value in asked if name not in _POSITIONS]
    named = dict(asked)
    if "versions" in named:
        position = [("key-marker", _element(body, b"NextKeyMarker")),
                    ("version-id-marker", _element(body, b"NextVersionIdMarker"))]  # fmt: skip
    elif named.get("list-type") == "2":
        position = [("continuation-token", _element(body, b"NextContinuationToken"))]
    else:
        position = [("marker", _element(body, b"NextMarker") or RECORD_KEY)]
    pairs = [*kept, *((name, value) for name, value in position if value)]
    return "&".join(f"{quote(name, safe='-_.~')}={quote(value, safe='-_.~')}" for name, value in pairs)


def as_if_asked(body: bytes, first: bytes) -> bytes:
    """A later page as the answer to the request that `first` was the answer to: with its positions."""
    for name in (b"ContinuationToken", b"Marker", b"KeyMarker", b"VersionIdMarker", b"StartAfter"):
        pattern = re.compile(rb"\s*<%b>[^<]*</%b>|\s*<%b\s*/>" % (name, name, name))
        was = pattern.search(first)
        body = pattern.sub(lambda found, was=was: was[0] if was else b"", body)  # type: ignore[misc]
    return body


def _element(body: bytes, name: bytes) -> str:
    found = re.search(rb"<%b>([^<]*)</%b>" % (name, name), body)
    return unescape(found[1].decode("utf-8", "surrogateescape")) if found else ""


def _is_records(key: str) -> bool:
    return key == RECORD_KEY or key.startswith(_FILED_VERSIONS)


def _text(name: bytes) -> str:
    """A key or prefix as it stands in a list, encoded or not: the record's has no character that either changes."""
    return name.decode("utf-8", "surrogateescape").strip()
