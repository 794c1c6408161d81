"""The XML that the gateway reads and writes."""

from __future__ import annotations

from xml.etree.ElementTree import fromstring

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.s3.errors import S3Error
from gateway.s3.xml import (
    BatchDeleted,
    BatchError,
    BatchObject,
    error_code,
    find_text,
    names_output,
    parse_batch,
    parse_batch_result,
    refuse_doctype,
    render_batch,
    render_batch_result,
    render_complete_result,
    render_copy_result,
    with_location,
)

NAMESPACE = "http://s3.amazonaws.com/doc/2006-03-01/"
xml_characters = st.one_of(
    st.characters(exclude_categories=("Cs", "Cc"), exclude_characters="\ufffe\uffff"),
    st.sampled_from("\t\n\r\x85&<>\"'] "),
)
xml_texts = st.text(xml_characters, max_size=20)
keys = st.text(xml_characters, min_size=1, max_size=20)


def delete(*objects: str, rest: str = "") -> bytes:
    inner = "".join(f"<Object>{o}</Object>" for o in objects)
    return f'<Delete xmlns="{NAMESPACE}">{inner}{rest}</Delete>'.encode()


def one_key(body: bytes) -> str:
    (only,), _ = parse_batch(body)
    return only.key


# --- errors in answers


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"<Error><Code>NoSuchKey</Code><Message>m</Message></Error>", "NoSuchKey"),
        (b'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>SlowDown</Code></Error>', "SlowDown"),
        (b" \n\t  <Error><Code>InternalError</Code></Error>", "InternalError"),
        (b'<?xml version="1.0"?>  \n\n  <Error><Code>InternalError</Code></Error>', "InternalError"),
        (b'\n <?xml version="1.0"?><Error><Code>InternalError</Code></Error>', "InternalError"),
        (b'\xef\xbb\xbf<?xml version="1.0"?><Error><Code>X</Code></Error>', "X"),
        (b'<Error xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Code> A.B </Code></Error>', "A.B"),
        (b"<Error\n><Message>m</Message><Code>X</Code></Error>", "X"),
        (b"<Error></Error>", ""),
        (b"<Error/>", ""),
        (b"<Error />", ""),
        (b"<Error><Code></Code></Error>", ""),
        (b"<Error><Code>cut o", ""),
        (b"", None),
        (b"   ", None),
        (b"not xml", None),
        (b"<Errors><Code>X</Code></Errors>", None),
        (b"<CopyObjectResult><Error><Code>X</Code></Error></CopyObjectResult>", None),
        (b"<html><Error><Code>X</Code></Error></html>", None),
    ],
)
def test_error_code(body: bytes, code: str | None) -> None:
    """An error document is known by its root, also behind white space in a 200, and even where it is cut off."""
    assert error_code(body) == code


# --- batches


def test_parse_batch() -> None:
    """A batch is read with what each object bears, with a namespace, a prefix, or none."""
    fields = "<Key>a</Key><VersionId>v</VersionId><ETag>&quot;e&quot;</ETag>"
    expected = BatchObject("a", "v", (("Key", "a"), ("VersionId", "v"), ("ETag", '"e"')))
    prefixed = f'<s:Delete xmlns:s="{NAMESPACE}"><s:Object><s:Key>a</s:Key></s:Object></s:Delete>'.encode()
    assert parse_batch(delete(fields)) == ([expected], False)
    assert parse_batch(f"<Delete><Object>{fields}</Object></Delete>".encode()) == ([expected], False)
    assert one_key(prefixed) == "a"


def test_an_empty_version_in_a_batch_is_none() -> None:
    """Stores delete the object itself then, and name no version in their answer."""
    (only,), _ = parse_batch(delete("<Key>a</Key><VersionId></VersionId>"))
    assert only.version_id is None


@pytest.mark.parametrize(
    ("depth", "elements", "taken"), [(32, 1, True), (33, 1, False), (1, 49_999, True), (1, 50_000, False)]
)
def test_depth_and_number_of_elements_are_bounded(depth: int, elements: int, taken: bool) -> None:
    """What is deeper, or has more elements, than any of S3's documents is not built."""
    body = b"<a>" * (depth - 1) + b"<Key>k</Key>" * elements + b"</a>" * (depth - 1)
    if depth == 1:
        body = b"<a>" + b"<b/>" * (elements - 1) + b"<Key>k</Key></a>"
    assert find_text(body, "Key") == ("k" if taken else None)


@pytest.mark.parametrize(
    ("text", "quiet"),
    [("true", True), ("TRUE", True), (" true ", True), ("false", False), ("", False), ("1", False)],
)
def test_quiet(text: str, quiet: bool) -> None:
    """Quiet is what the document says."""
    assert parse_batch(delete("<Key>a</Key>", rest=f"<Quiet>{text}</Quiet>"))[1] is quiet


@pytest.mark.parametrize(
    ("raw", "key"),
    [
        ("a&amp;b&lt;c&gt;", "a&b<c>"),
        ("<![CDATA[a&b<c>]]>", "a&b<c>"),
        ("a&#13;b&#10;c&#9;", "a\rb\nc\t"),
        (" a ", " a "),
        ("a<!-- b -->c", "ac"),
        ("a<?b?>c", "ac"),
        ("é&#x1F600;", "é😀"),
        ("a%20b+c", "a%20b+c"),
        ("//a/../b", "//a/../b"),
    ],
)
def test_keys_of_batches(raw: str, key: str) -> None:
    """A key is the element's text, exactly."""
    assert one_key(delete(f"<Key>{raw}</Key>")) == key


def test_a_key_in_a_batch_has_the_bound_of_one_in_a_target() -> None:
    """1,024 bytes of UTF-8."""
    assert one_key(delete(f"<Key>{'é' * 512}</Key>")) == "é" * 512
    with pytest.raises(S3Error) as caught:
        parse_batch(delete(f"<Key>a{'é' * 512}</Key>"))
    assert (caught.value.code, caught.value.elements["Size"]) == ("KeyTooLongError", "1025")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<Delete>",
        b"{}",
        b"\xff\xfe",
        delete(),
        delete("<Key></Key>"),
        delete("<Key/>"),
        delete("<VersionId>v</VersionId>"),
        delete("<Key>a&#x10;</Key>"),
        delete("<Key>a&#0;</Key>"),
        delete("<Key>a\x01</Key>"),
        delete("<Key>&unknown;</Key>"),
        delete("<Key>a</Key>") + b"<more/>",
        b"<Remove><Object><Key>a</Key></Object></Remove>",
        b"<Object><Key>a</Key></Object>",
        b"<!DOCTYPE Delete>" + delete("<Key>a</Key>"),
        b'<!DOCTYPE d [<!ENTITY x "y">]>' + delete("<Key>&x;</Key>"),
        b'<!DOCTYPE d [<!ENTITY x SYSTEM "file:///etc/passwd">]>' + delete("<Key>&x;</Key>"),
        b'<!DOCTYPE d [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;&a;">]>' + delete("<Key>&b;</Key>"),
        b'<?xml version="1.0" encoding="no-such"?>' + delete("<Key>a</Key>"),
        b'<?xml version="1.0" encoding="utf-7"?>' + delete("<Key>a</Key>"),
        b"<Delete><Object><Key>\xff</Key></Object></Delete>",
        # Of a doubled element the upstream might read the other.
        delete("<Key>a</Key><Key>b</Key>"),
        delete("<Key>a</Key><VersionId>1</VersionId><VersionId>2</VersionId>"),
        delete('<Key>a</Key><x:Key xmlns:x="elsewhere">b</x:Key>'),
    ],
)
def test_malformed_batches(body: bytes) -> None:
    """What is not a batch, or can be read in two ways, is MalformedXML; no DTD and no entity is looked at."""
    with pytest.raises(S3Error) as caught:
        parse_batch(body)
    assert (caught.value.code, caught.value.status) == ("MalformedXML", 400)


def test_depth() -> None:
    """A document of great depth costs no stack."""
    deep = b"<a>" * 200_000 + b"</a>" * 200_000
    with pytest.raises(S3Error, match="well-formed"):
        parse_batch(deep)
    assert find_text(deep, "b") is None
    assert one_key(delete(f"<Key>a</Key><Deep>{'<a>' * 29}{'</a>' * 29}</Deep>")) == "a"


def test_batch_size() -> None:
    """1000 objects are a batch, 1001 are not."""
    assert len(parse_batch(delete(*["<Key>a</Key>"] * 1000))[0]) == 1000
    with pytest.raises(S3Error, match="well-formed"):
        parse_batch(delete(*["<Key>a</Key>"] * 1001))


def batch_object(key: str, version: str | None, etag: str | None = None) -> BatchObject:
    fields = (("Key", key), ("VersionId", version), ("ETag", etag))
    return BatchObject(key, version or None, tuple((n, v) for n, v in fields if v is not None))


optional = st.none() | xml_texts
batch_objects = st.builds(batch_object, keys, optional, optional)


@given(st.lists(batch_objects, min_size=1, max_size=5))
def test_batch_round_trip(objects: list[BatchObject]) -> None:
    """A batch that is written anew names the very same objects, and wants to hear of each."""
    assert parse_batch(render_batch(objects)) == (objects, False)


# --- their answers


@given(
    st.lists(st.tuples(keys, optional), max_size=4, unique=True),
    st.lists(st.builds(BatchError, keys, optional, xml_texts, xml_texts), max_size=4),
)
def test_batch_result_round_trip(deleted: list[tuple[str, str | None]], errors: list[BatchError]) -> None:
    """An answer that is read and written anew tells the same of every object."""
    elements = [
        render_batch([batch_object(k, v)]).partition(b"<Object>")[2].partition(b"</Object>")[0] for k, v in deleted
    ]
    first = render_batch_result([b"<Deleted>" + e + b"</Deleted>" for e in elements], errors)
    read, read_errors = parse_batch_result(first)
    named = [(one.key, one.version_id) for one in read]
    assert named == [batch_object(key, version).called for key, version in deleted]
    assert read_errors == errors
    assert render_batch_result([one.element for one in read], read_errors) == first
    assert fromstring(first).tag == f"{{{NAMESPACE}}}DeleteResult"


def test_parse_batch_result() -> None:
    """Deleted objects keep all their elements, also one that stands there twice; errors may lack some; what else stands
    there is passed over."""
    element = "<Deleted><Key>a&amp;b</Key><DeleteMarker>true</DeleteMarker><DeleteMarkerVersionId>m"
    element += "</DeleteMarkerVersionId></Deleted>"
    body = (
        f'<?xml version="1.0"?>\n<DeleteResult xmlns="{NAMESPACE}">{element}<Error><Key>c</Key></Error>{element}'
        "<Later/></DeleteResult>"
    ).encode()
    deleted, errors = parse_batch_result(body)
    assert deleted == [BatchDeleted("a&b", None, element.encode())] * 2
    assert errors == [BatchError("c", None, "", "")]


def test_unreadable_batch_result() -> None:
    """An answer that is no XML is an error: nobody knows what was deleted."""
    with pytest.raises(S3Error):
        parse_batch_result(b"<DeleteResult><Deleted>")


# --- answers that the gateway vouches for


@given(st.text(min_size=1), xml_texts)
def test_results_are_well_formed(key: str, etag: str) -> None:
    """Results are well-formed for every key, also for one that XML cannot hold."""
    complete = fromstring(render_complete_result("b", key, etag))
    assert complete.tag == f"{{{NAMESPACE}}}CompleteMultipartUploadResult"
    assert [child.tag.rpartition("}")[2] for child in complete] == ["Location", "Bucket", "Key", "ETag"]
    assert find_text(render_complete_result("b", key, etag), "ETag") == etag
    assert find_text(render_copy_result(etag, "2026-01-01T00:00:00Z"), "ETag") == etag
    assert find_text(render_copy_result(etag, "2026-01-01T00:00:00Z"), "LastModified") == "2026-01-01T00:00:00Z"


def test_results_name_the_key() -> None:
    """A result names the key as it is."""
    body = render_complete_result("b", "a&b< \r\n", '"e"')
    assert find_text(body, "Key") == "a&b< \r\n"
    assert find_text(body, "Location") == "/b/a&b< \r\n"


@pytest.mark.parametrize(
    ("body", "relocated"),
    [
        (
            b"<R><Location>http://store:8333/b/k</Location><Key>k</Key></R>",
            b"<R><Location>/a&amp;b</Location><Key>k</Key></R>",
        ),
        (b"  <x:R><x:Location></x:Location></x:R>", b"  <x:R><x:Location>/a&amp;b</x:Location></x:R>"),
        (b"<R><Bucket>b</Bucket></R>", b"<R><Bucket>b</Bucket></R>"),
        (
            b"<R><Location>a</Location><Location>b</Location></R>",
            b"<R><Location>/a&amp;b</Location><Location>b</Location></R>",
        ),
        (b"", b""),
    ],
)
def test_a_location_is_put_in_place(body: bytes, relocated: bytes) -> None:
    """The text of the first Location alone is another, escaped; an answer without one stays as it is."""
    assert with_location(body, "/a&b") == relocated


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"<R><UploadId>u</UploadId></R>", "u"),
        (b'<R xmlns="x"><A><UploadId>u</UploadId></A></R>', "u"),
        (b"  <UploadId>u</UploadId>", "u"),
        (b"<R><UploadId/></R>", ""),
        (b"<R/>", None),
        (b"", None),
        (b"not xml", None),
        (b"<!DOCTYPE R><R><UploadId>u</UploadId></R>", None),
    ],
)
def test_find_text(body: bytes, text: str | None) -> None:
    """The first element of a name is found at any depth and in any namespace; in what is no XML there is none."""
    assert find_text(body, "UploadId") == text


@pytest.mark.parametrize(
    "body",
    [
        b"<!DOCTYPE a><a/>",
        b'<?xml version="1.0"?>\n<!-- -->\n<!DOCTYPE a SYSTEM "file:///etc/passwd"><a/>',
        b"\n <!DOCTYPE a [<!ENTITY x 'y'>]><a>&x;</a>",
        b"<!--" + b"x" * 100_000 + b"--><!DOCTYPE a><a/>",
        "<!DOCTYPE a><a/>".encode("utf-16"),
        b"<!DOCTYPE a><a>",
    ],
    ids=["bare", "declared", "entity", "far", "utf-16", "cut"],
)
def test_a_doctype_is_refused(body: bytes) -> None:
    """Whatever stands before it, and however it is encoded."""
    with pytest.raises(S3Error, match="well-formed"):
        refuse_doctype(body)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<a/>",
        b"<a>" * 200_000,
        b"<a><!DOCTYPE a></a>",
        b"<!-- <!DOCTYPE a> --><a/>",
        b'{"Statement": "<!DOCTYPE a>"}',
        b'<?xml version="1.0" encoding="no-such"?><a/>',
        b"\xff\x00",
    ],
    ids=["nothing", "root", "deep", "inside", "comment", "json", "encoding", "bytes"],
)
def test_what_has_no_doctype_is_its_readers_matter(body: bytes) -> None:
    """Well-formed or not, XML or not: it passes."""
    refuse_doctype(body)


@pytest.mark.parametrize(
    ("document", "named"),
    [
        (b"<RestoreRequest><Days>1</Days></RestoreRequest>", False),
        (b"<RestoreRequest><Type>SELECT</Type><OutputLocation/></RestoreRequest>", True),
        (f'<a:R xmlns:a="{NAMESPACE}"><a:b><a:OutputLocation/></a:b></a:R>'.encode(), True),
        (b"<OUTPUTLOCATION/>", True),
    ],
)
def test_where_a_restore_would_write(document: bytes, named: bool) -> None:
    """A place for the results is seen wherever it stands, in whatever namespace and case."""
    assert names_output(document) is named


@pytest.mark.parametrize("document", [b"<Restore", b"plain", b"<!DOCTYPE a><a/>"])
def test_a_restore_that_cannot_be_read_is_malformed(document: bytes) -> None:
    """It might name such a place to a more lenient reader."""
    with pytest.raises(S3Error) as caught:
        names_output(document)
    assert caught.value.code == "MalformedXML"
