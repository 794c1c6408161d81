"""docs/operations.md says what the table of operations says."""

from __future__ import annotations

from gateway.s3.operations import OPERATIONS
from tests.docs.operations_page import PAGE, render


def test_the_page_is_what_the_table_gives() -> None:
    """`make docs` writes it anew."""
    assert PAGE.read_text() == render(), (
        "docs/operations.md is not what gateway/s3/operations.py gives: run `make docs`"
    )


def test_every_operation_has_its_line() -> None:
    """Once, by its name, and once by each of its other names."""
    text = render()
    for row in OPERATIONS:
        assert text.count(f"\n| {row.name} ") == 1, row.name
        for alias in row.aliases:
            assert text.count(f" {alias})") == 1, alias


def test_a_change_of_the_table_changes_the_page() -> None:
    """What is not on the page cannot be held to it: every column of the table that a user meets is."""
    text = render()
    assert "| PutObject | `PUT /b/k` | commits | the last bytes of the body | yes | the object | by its rule |" in text
    assert (
        "| UploadPart | `PUT /b/k?partNumber&uploadId` | stages | none | - | the upload's object | by its rule |"
        in text
    )
    assert "| DeleteBucketWebsite | `DELETE /b?website` | configures | - | - | - | passed¹ |" in text
