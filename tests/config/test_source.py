"""Where in a file each key was written."""

from __future__ import annotations

from gateway.config.source import lines_of


def test_lines_inside_texts_are_no_keys() -> None:
    """The index of lines is not misled by what stands in a multi-line text, and counts arrays of tables."""
    text = 'a.b = """\n[s3]\nlisten = 1\n"""\n[[x]]\n"k" = 1\n[[x]]\nk=2\n[ s3 ] # c\nlisten=[\n1]\n'
    assert lines_of(text) == {
        ("a", "b"): 1,
        ("x", 0): 5,
        ("x", 0, "k"): 6,
        ("x", 1): 7,
        ("x", 1, "k"): 8,
        ("s3",): 9,
        ("s3", "listen"): 10,
    }
