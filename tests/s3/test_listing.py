"""Lists without the bucket's record, and what the gateway reads of them."""

from __future__ import annotations

import pytest

from gateway.core.names import RECORD_KEY
from gateway.s3.errors import S3Error
from gateway.s3.listing import (
    as_if_asked,
    goes_on_empty,
    may_show_record,
    names_common_prefix,
    next_page,
    page_of,
    record_prefixes,
    versions_beside,
    versions_of,
    without_record,
)


def entry(key: str, tag: str = "Contents", more: str = "") -> str:
    return f"<{tag}><ETag>&quot;e&quot;</ETag><Key>{key}</Key>{more}<Size>1</Size></{tag}>"


def page(*entries: str, tag: str = "ListBucketResult", head: str = "", truncated: bool = False) -> bytes:
    flag = f"<IsTruncated>{str(truncated).lower()}</IsTruncated>"
    return f"<?xml version='1.0'?>\n<{tag} xmlns='urn:s3'>{head}{flag}{''.join(entries)}</{tag}>".encode()


def test_keys_are_read_decoded() -> None:
    """Names that XML cannot hold come percent-encoded."""
    body = page(entry("a%20b"), entry("%01"), "<CommonPrefixes><Prefix>c/</Prefix></CommonPrefixes>", truncated=True)
    assert (page_of(body).keys, page_of(body).truncated) == (("a b", "\x01"), True)
    assert not page_of(page()).truncated


def test_what_is_no_list_is_an_error() -> None:
    """It is not taken for an empty bucket."""
    with pytest.raises(S3Error):
        page_of(b"not xml")


def test_all_versions_of_one_object_are_found() -> None:
    """Delete marks too; not those of objects that its name is the beginning of."""
    body = page(
        entry("k", "Version", "<VersionId>1</VersionId>"),
        entry("k", "DeleteMarker", "<VersionId>2</VersionId>"),
        entry("kk", "Version", "<VersionId>3</VersionId>"),
        tag="ListVersionsResult",
    )
    assert versions_of(body, "k") == ["1", "2"]


@pytest.mark.parametrize(
    ("entries", "beside"),
    [
        ([], False),
        (
            [entry("k", "Version", "<VersionId>1</VersionId>"), entry("k", "DeleteMarker", "<VersionId>2</VersionId>")],
            False,
        ),
        ([entry("k", "Version", "<VersionId>1</VersionId>"), entry("kk", "Version", "<VersionId>3</VersionId>")], True),
        ([entry("a", "DeleteMarker", "<VersionId>4</VersionId>")], True),
        ([entry("a", "Version", "<VersionId>null</VersionId>")], True),
        ([entry("a", "DeleteMarker", "<VersionId>null</VersionId>")], False),
    ],
)
def test_versions_of_other_objects_are_seen(entries: list[str], beside: bool) -> None:
    """Delete marks too, unless they have no id by which they could be removed; and what a page does not show may be
    one."""
    assert versions_beside(page(*entries, tag="ListVersionsResult"), "k") is beside
    assert versions_beside(page(*entries, tag="ListVersionsResult", truncated=True), "k")


@pytest.mark.parametrize(
    ("query", "may"),
    [
        ("", True),
        ("list-type=2", True),
        ("list-type=2&prefix=.fencing", True),
        (f"list-type=2&prefix={RECORD_KEY}", True),
        (f"prefix={RECORD_KEY}s", True),
        ("prefix=renders/", False),
        ("prefix=.fence", False),
        ("versions=&prefix=/", True),
        ("prefix=//.fencing", True),
        ("list-type=2&start-after=/", True),
        ("list-type=2&marker=z&key-marker=z", True),
        ("versions=&marker=z&start-after=z", True),
        ("start-after=z&key-marker=z", True),
        # Whether that is version 2 of the call is not for everybody the same.
        ("list-type=1&start-after=z", True),
        ("list-type=1&marker=z", True),
        ("prefix=/renders/", False),
        ("list-type=2&start-after=a", False),
        ("marker=.a", True),
        # SeaweedFS 4.48 goes on behind the folder.
        ("marker=.fencing-gateway/x", True),
        ("list-type=2&start-after=/.fencing-gateway%5Cx", True),
        ("versions=&key-marker=.fencing-gateway/x", True),
        ("marker=.g/x", False),
        ("versions=&key-marker=z", False),
        ("list-type=2&continuation-token=z", True),
        # The token goes before, and says what only the store can read.
        ("list-type=2&start-after=z&continuation-token=t", True),
        ("list-type=2&start-after=z&continuation-token=", True),
        ("marker=z&continuation-token=t", False),
    ],
)
def test_only_lists_that_may_hold_the_record_are_looked_into(query: str, may: bool) -> None:
    """By their prefix and where they begin."""
    assert may_show_record(query) is may


@pytest.mark.parametrize(
    ("query", "rolled_up"),
    [
        ("", None),
        ("delimiter=/", None),
        ("delimiter=-", ".fencing-"),
        ("delimiter=.&prefix=.", ".fencing-gateway."),
        ("delimiter=.", "."),
        ("delimiter=-&prefix=.fencing-", None),
        ("delimiter=way", ".fencing-gateway"),
        ("delimiter=-&prefix=a", None),
    ],
)
def test_a_delimiter_rolls_the_record_up_into_a_prefix(query: str, rolled_up: str | None) -> None:
    """As S3 rolls up every key: at the first delimiter behind the prefix."""
    assert record_prefixes(query) == ([] if rolled_up is None else [(rolled_up, rolled_up)])


@pytest.mark.parametrize(
    ("query", "rolled_up"),
    [
        ("delimiter=-&prefix=/", [(".fencing-", ".fencing-"), ("/.fencing-", ".fencing-")]),
        ("delimiter=.&prefix=//.f", [(".fencing-gateway.", ".fencing-gateway."), ("//.f.", ".f")]),
        ("delimiter=-&prefix=/.fencing-", [("/.fencing-.fencing-", ".fencing-")]),
        ("delimiter=x&prefix=/.f", []),
        ("delimiter=-&prefix=/a", []),
    ],
)
def test_a_prefix_that_begins_with_a_separator_may_be_shown_twice(query: str, rolled_up: list[tuple[str, str]]) -> None:
    """As SeaweedFS shows it: as it was sent, and behind it the key as if there were no prefix."""
    assert record_prefixes(query) == rolled_up


@pytest.mark.parametrize("tag", ["Contents", "Version", "DeleteMarker"])
def test_the_record_is_taken_out_and_nothing_else(tag: str) -> None:
    """All other bytes stay as they are; the count says what is left."""
    record, others = entry(RECORD_KEY, tag), [entry("-a", tag), entry(f"{RECORD_KEY}s", tag), entry("z", tag)]
    head = "<KeyCount>{}</KeyCount><MaxKeys>4</MaxKeys>"
    body = page(others[0], "\n  " + record, *others[1:], head=head.format(4))
    assert without_record(body, None) == page(*others, head=head.format(3))


@pytest.mark.parametrize("slash", ["/", "%2F"])
def test_the_files_of_its_versions_are_taken_out(slash: str) -> None:
    """SeaweedFS lists them for a prefix that names their folder."""
    kept = entry(f"{RECORD_KEY}.versions{slash}else")
    body = page(entry(f"{RECORD_KEY}.versions{slash}v_1"), kept, entry(f"{RECORD_KEY}.versions{slash}v_2"))
    assert without_record(body, None) == page(kept)


def test_a_list_without_the_record_is_the_same() -> None:
    """Byte for byte."""
    body = page(
        entry("a"), "<CommonPrefixes><Prefix>.fencing-</Prefix></CommonPrefixes>", head="<KeyCount>2</KeyCount>"
    )
    assert without_record(body, None) == body


def test_a_common_prefix_is_taken_out_where_it_is_said() -> None:
    """It counts like a key."""
    prefix = "<CommonPrefixes><Prefix>.fencing-</Prefix></CommonPrefixes>"
    other = "<CommonPrefixes><Prefix>a-</Prefix></CommonPrefixes>"
    body = page(prefix, other, head="<KeyCount>2</KeyCount>")
    assert names_common_prefix(body, ".fencing-")
    assert not names_common_prefix(body, ".")
    assert without_record(body, ".fencing-") == page(other, head="<KeyCount>1</KeyCount>")


def test_a_page_left_empty_is_told_from_one_that_ends() -> None:
    """Only where more follows is there something to go on to."""
    assert goes_on_empty(page(truncated=True))
    assert not goes_on_empty(page())
    assert not goes_on_empty(page(entry("a"), truncated=True))
    assert not goes_on_empty(page("<CommonPrefixes><Prefix>a/</Prefix></CommonPrefixes>", truncated=True))


def test_the_next_page_is_asked_for_as_a_client_would() -> None:
    """By token, by marker or by version, with all else as it was asked."""
    v2 = page(head="<NextContinuationToken>t&amp;1</NextContinuationToken>")
    assert next_page("list-type=2&max-keys=1&start-after=%20", v2) == "list-type=2&max-keys=1&continuation-token=t%261"
    assert next_page("max-keys=1&marker=-", page()) == f"max-keys=1&marker={RECORD_KEY}"
    assert next_page("max-keys=1", page(head="<NextMarker>m</NextMarker>")) == "max-keys=1&marker=m"
    versions = page(head="<NextKeyMarker>k</NextKeyMarker><NextVersionIdMarker>v</NextVersionIdMarker>")
    assert next_page("versions&max-keys=1", versions) == "versions=&max-keys=1&key-marker=k&version-id-marker=v"


def test_a_later_page_answers_the_first_request() -> None:
    """It shows the positions that the client has asked for, not those that the gateway has."""
    first = page(head="<Marker></Marker><StartAfter> </StartAfter><NextContinuationToken>1</NextContinuationToken>")
    later = page(entry("a"), head="<Marker>m</Marker><ContinuationToken>1</ContinuationToken>")
    assert as_if_asked(later, first) == page(entry("a"), head="<Marker></Marker>")
