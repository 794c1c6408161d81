"""The one name of an object in stores that file objects as paths, and the keys that name none there."""

from __future__ import annotations

import pytest

from gateway.core.names import (
    RECORD_KEY,
    climbs,
    filed_name,
    is_path,
    lies_among_versions,
    names_folder,
    names_own_file,
    names_record,
)


@pytest.mark.parametrize("key", ["a/b", "/a/b", "a//b", "a\\b", "a/b/", "\\a//\\b//"])
def test_all_spellings_of_a_path_are_one_name(key: str) -> None:
    """Empty segments and backslashes make no other object."""
    assert filed_name(key) == "a/b"


@pytest.mark.parametrize("key", ["a", "a b", "a/.b", "..", "a/../b", "a\n", "é"])
def test_what_has_one_spelling_keeps_it(key: str) -> None:
    """Nothing else is changed."""
    assert filed_name(key) == key


@pytest.mark.parametrize("key", ["/", "//", "\\", "/\\/"])
def test_separators_alone_name_nothing(key: str) -> None:
    """No name is left of them."""
    assert not filed_name(key)


@pytest.mark.parametrize(("key", "folder"), [("a/", True), ("a\\", True), ("/", True), ("a", False), ("a/b", False)])
def test_folders(key: str, folder: bool) -> None:
    """A key that ends in a separator names a folder."""
    assert names_folder(key) is folder


@pytest.mark.parametrize(
    "key",
    [
        ".uploads",
        ".uploads/",
        ".uploads/id/0001.part",
        "/.uploads//id",
        ".uploads\\id",
        "k.versions/v_0123",
        "/a//k.versions\\v_0123",
        ".versions/v_0123",
        "k.versions/v_0123/",
        "a\nb.versions/v_\n",
        ".uploads/\n",
    ],
)
def test_own_files(key: str) -> None:
    """The parts of uploads under way and the versions of objects, however they are spelt."""
    assert names_own_file(key)


@pytest.mark.parametrize(
    "key",
    [
        "uploads/x",
        "a/.uploads/x",
        "a.uploads/x",
        ".uploads2",
        "x/.uploadsx/y",
        "k.versions",
        "k.versions/2.0",
        "k.versions/v_1/x",
        "k",
    ],
)
def test_what_only_looks_like_an_own_file(key: str) -> None:
    """An object of a client may be called nearly like one."""
    assert not names_own_file(key)


@pytest.mark.parametrize(
    "key",
    [
        "k.versions/", "k.versions/x", "/a//k.versions\\x", ".versions/x", "a/k.versions\\", "x.versions/y.versions/z",
        "k.versions", "a\\k.versions", "k.versions/x.versions",
    ],
)  # fmt: skip
def test_what_lies_among_versions(key: str) -> None:
    """Their folder, what would stand in its place and what is in it, however they are spelt."""
    assert lies_among_versions(key)


@pytest.mark.parametrize(
    "key", ["k.versions/x/y", "k.versions/x/", "versions/x", "a.versionsx/y", "a.versionsx", "/", "k"]
)
def test_what_lies_elsewhere(key: str) -> None:
    """What is called nearly so, and what is deeper below it."""
    assert not lies_among_versions(key)


@pytest.mark.parametrize(
    "key",
    [RECORD_KEY, f"/{RECORD_KEY}", f"//{RECORD_KEY}", f"{RECORD_KEY}/", f"\\{RECORD_KEY}", f"{RECORD_KEY}/below/it"],
)
def test_the_record_is_known_by_all_its_spellings(key: str) -> None:
    """Where keys are filed as paths each of these names it, or would put a folder in its place."""
    assert names_record(key)


@pytest.mark.parametrize("key", ["a", f"a{RECORD_KEY}", f"{RECORD_KEY}s", f"folder/{RECORD_KEY}", f"x/{RECORD_KEY}/y"])
def test_other_objects_are_no_records(key: str) -> None:
    """Only the one at the bucket's root is the gateway's."""
    assert not names_record(key)


@pytest.mark.parametrize("text", ["..", ".", "a/../b", "a/..", "/./a", "a\\..\\b", "a//.//b"])
def test_what_climbs(text: str) -> None:
    """A part of it is no name, but a way."""
    assert climbs(text)
    assert is_path(text)


@pytest.mark.parametrize("text", ["a", "", "a..b", "...", "a.", ".a", "2/a.b", "a/..b"])
def test_what_stays(text: str) -> None:
    """Dots within names are dots."""
    assert not climbs(text)
    assert is_path(text) is ("/" in text)
