"""The one name of an object in stores that file objects as paths."""

from __future__ import annotations

import pytest

from gateway.core.names import filed_name


@pytest.mark.parametrize("key", ["a/b", "/a/b", "a//b", "a\\b", "a/b/", "\\a//\\b//"])
def test_all_spellings_of_a_path_are_one_name(key: str) -> None:
    """Empty segments and backslashes make no other object."""
    assert filed_name(key) == "a/b"


@pytest.mark.parametrize("key", ["a", "a b", "a/.b", "..", "a/../b", "/", "\\", "a\n", "é"])
def test_what_has_one_spelling_keeps_it(key: str) -> None:
    """Nothing else is changed, and no key becomes empty."""
    assert filed_name(key) == key
