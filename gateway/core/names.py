"""Which object a key names, in stores that file objects as paths.

To S3 `a/b`, `a//b`, `/a/b`, `a\\b` and `a/b/` are five objects. To SeaweedFS the first four are one, and the last
replaces it (measured on 4.48). Where that is so, the fence must take them for one object too: a stray slash would lead
around it.
"""

from __future__ import annotations


def filed_name(object_key: str) -> str:
    """The one name that all keys of one filed object share."""
    parts = [part for part in object_key.replace("\\", "/").split("/") if part]
    return "/".join(parts) or object_key
