"""Which object a key names, in stores that file objects as paths.

To S3 `a/b`, `a//b`, `/a/b`, `a\\b` and `a/b/` are five objects. To SeaweedFS the first four are one, and the last is
the folder of that name (measured on 4.48). Where that is so, the fence must take them for one object too: a stray
slash would lead around it. And some keys name no object there at all:

- none but separators: a PUT of `/` writes the object that is called like the bucket;
- a folder: its bytes are dropped, and what an upload assembles at `a/` appears as `a/a`;
- what climbs, by parts that are `.` or `..`: refused in a request's path, though not everywhere by older versions;
- the store's own files: the parts of uploads under way (`.uploads/<id>/…`), and the versions of objects
  (`<key>.versions/v_<id>`), which can be written there past the object that they belong to. Where versions are kept
  no longer, whatever else is put into that folder is taken for a version, too, and a file that is called like the
  folder is removed by whoever looks for `<key>` and finds none.
"""

from __future__ import annotations

import re

RECORD_KEY = ".fencing-gateway.record"
"""The bucket's record: the gateway's own object, in no folder, all of its characters unreserved in URLs."""

_OWN_FILE = re.compile(r"\.uploads(?:/.*)?|(?:.*/)?[^/]*\.versions/v_[^/]*", re.DOTALL)


def filed_name(object_key: str) -> str:
    """The one name that all keys of one filed object share; empty where the key names none."""
    return "/".join(_parts(object_key))


def names_record(object_key: str) -> bool:
    """Whether the key names the bucket's record, whatever its spelling, or lies under it as if it were a folder."""
    if RECORD_KEY not in object_key:
        return False
    return filed_name(object_key).partition("/")[0] == RECORD_KEY


def names_folder(object_key: str) -> bool:
    """Whether the key names a folder, not a file."""
    return object_key.endswith(("/", "\\"))


def names_own_file(object_key: str) -> bool:
    """Whether the key names a file that the store keeps for itself."""
    if ".uploads" not in object_key and ".versions" not in object_key:
        return False
    return _OWN_FILE.fullmatch(filed_name(object_key)) is not None


def lies_among_versions(object_key: str) -> bool:
    """Whether the key names the folder that an object's versions would be filed in, a file in its place, or one in
    it."""
    if ".versions" not in object_key:
        return False
    parts = _parts(object_key)
    places = parts[-1:] if names_folder(object_key) else parts[-2:]
    return any(name.endswith(".versions") for name in places)


def climbs(text: str) -> bool:
    """Whether a part of a key, of a copy's source or of an id is `.` or `..`: a path leads elsewhere by it."""
    return "." in text and not {".", ".."}.isdisjoint(_parts(text))


def is_path(text: str) -> bool:
    """Whether an id, of an upload or a version, is more than the name of one file."""
    return "/" in text or "\\" in text or climbs(text)


def _parts(object_key: str) -> list[str]:
    return [part for part in object_key.replace("\\", "/").split("/") if part]
