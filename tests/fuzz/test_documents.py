"""Any XML: S3's MalformedXML or what stands there, quickly, and nothing that a DOCTYPE or an entity brought."""

# ruff: noqa: PT017

from __future__ import annotations

from xml.etree import ElementTree

from hypothesis import given
from hypothesis import strategies as st

from gateway.s3.errors import S3Error
from gateway.s3.xml import (
    error_code,
    find_text,
    names_output,
    parse_batch,
    parse_batch_result,
    refuse_doctype,
    render_batch,
)
from tests.fuzz.settings import short

PARTS = (
    *"""
<Delete> </Delete> <Object> </Object> <Key> </Key> k <VersionId>v</VersionId> <Quiet>true</Quiet> <x:Key></x:Key>
<Delete~xmlns='http://s3.amazonaws.com/doc/2006-03-01/'> <x:Key~xmlns:x='y'> </x:Key> <Error> </Error> <OutputLocation/>
<Code>NoSuchKey</Code> <ETag>e</ETag> <Deleted> </Deleted> <!--~c~--> <![CDATA[ ]]> <?xml~version='1.0'?> <?pi?>
<?xml~version='1.0'~encoding='UTF-16'?> <?xml~version='1.0'~encoding='latin-1'?> <a~b='c'~b='d'/> &e; &#0; &#x10; &amp;
<!DOCTYPE~a> <!DOCTYPE~a~[<!ENTITY~e~'v'>]> <!DOCTYPE~a~SYSTEM~'file:///etc/passwd'> &#xD800;
""".split(),
    " ", "\n", "\ufeff", "\u00e9",
)  # fmt: skip
ENCODINGS = ("utf-8", "utf-8", "utf-8", "utf-16", "utf-16-le", "utf-16-be", "utf-8-sig", "latin-1", "utf-7")


@st.composite
def documents(draw: st.DrawFn) -> bytes:
    """Parts of documents, in any order and encoding; sometimes a whole batch around."""
    parts = st.one_of(st.sampled_from(PARTS).map(lambda part: part.replace("~", " ")), st.text(max_size=3))
    text = "".join(draw(st.lists(parts, max_size=12)))
    if draw(st.booleans()):
        prolog = draw(st.sampled_from(("", "", "<?xml version='1.0'?>", "<!DOCTYPE Delete [<!ENTITY e 'v'>]>", "\n")))
        text = f"{prolog}<Delete><Object><Key>{text}</Key></Object></Delete>"
    raw = text.encode(draw(st.sampled_from(ENCODINGS)), "replace")
    return draw(st.sampled_from((b"", b"", b"", b"\n", b" \r\n\t", b"\xef\xbb\xbf"))) + raw


def by_another_reader(body: bytes) -> ElementTree.Element | None:
    """What a reader with DTDs makes of it; None: nothing."""
    try:
        return ElementTree.fromstring(body)
    except (ElementTree.ParseError, ValueError, LookupError):
        return None


@short(600)
@given(body=documents())
def test_any_document(body: bytes) -> None:
    """No document is a fault. One that another reader understands, and that has a DOCTYPE, is refused by each of ours
    (unless it only speaks of one)."""
    has_doctype = by_another_reader(body) is not None and any(
        "<!DOCTYPE".encode(encoding) in body for encoding in ("utf-8", "utf-16-le", "utf-16-be")
    )
    speaks = any(mark in body.replace(b"\0", b"") for mark in (b"<![CDATA[", b"<!--", b"<?pi"))
    for read in (refuse_doctype, parse_batch, names_output, parse_batch_result):
        try:
            read(body)
        except S3Error as error:
            assert error.code == "MalformedXML"
        else:
            assert not has_doctype or speaks, read
    find_text(body, "Key")
    error_code(body)


@short(300)
@given(body=documents())
def test_a_batch_is_what_another_reader_finds(body: bytes) -> None:
    """The keys that are fenced are those that the store would delete, told from a document of our own writing."""
    try:
        objects, _ = parse_batch(body)
    except S3Error:
        return
    root = by_another_reader(body.strip())
    assert root is not None
    found = [
        [child.text or "" for child in one if child.tag.rpartition("}")[2] == "Key"]
        for one in root
        if one.tag.rpartition("}")[2] == "Object"
    ]
    assert [[one.key] for one in objects] == found
    again, _ = parse_batch(render_batch(objects))
    assert [one.key for one in again] == [one.key for one in objects]


def test_depth_and_size_cost_little() -> None:
    """A mebibyte of nested elements, of one tag, of attributes, or of one text is read or refused, not choked on."""
    many = 1 << 20
    for body in (
        b"<a>" * (many // 3),
        b"<a>" * (many // 8) + b"</a>" * (many // 8),
        b"<" + b"a" * many,
        b"<Delete><Object><Key>" + b"k" * many + b"</Key></Object></Delete>",
        b"<a " + b" ".join(b"a%d='1'" % n for n in range(many // 12)) + b"/>",
        b"<Delete>" + b"<Object><Key>k</Key></Object>" * 1001 + b"</Delete>",
    ):
        for read in (refuse_doctype, parse_batch, names_output):
            try:
                read(body)
            except S3Error as error:
                assert error.code in ("MalformedXML", "KeyTooLongError")
