"""URIs of folders in object stores and other file systems that pyarrow can open."""

from __future__ import annotations

import functools
import re
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from springtide.errors import OptionError

SCHEMES = ("s3", "s3a", "gs", "abfs", "abfss", "hdfs", "file")
HARMLESS = ("region", "scheme", "endpoint_override", "enable_tls", "replication")
"""The allowed query parameters of a URI. Any other could be a key or a token."""


def checked(text: str, option: str = "state") -> str:
    """Check and normalise the URI that an option gives, without access to it."""
    parts = urlsplit(text)
    if parts.scheme in SCHEMES:
        check_no_secret(text, option)
    else:
        came = f"=: {parts.scheme}://" if parts.scheme else f"={text!r}: a path"  # a path has no secret in it
        raise OptionError(
            f"{option}{came} is not allowed; give a URI with one of {', '.join(SCHEMES)}, such as s3://bucket/folder,"
            " or file:///folder for one that is mounted on all nodes"
        )
    if parts.scheme == "file" and (parts.netloc or not parts.path.strip("/")):
        raise OptionError(
            f"{option}={text!r}: file: has three slashes and a folder that all nodes have, such as file:///mnt/folder"
        )
    if parts.scheme not in ("file", "hdfs") and not parts.netloc:
        raise OptionError(f"{option}={text!r}: no bucket or container is named; write {parts.scheme}://NAME/folder")
    scheme = "s3" if parts.scheme == "s3a" else parts.scheme
    query = f"?{parts.query}" if parts.query else ""
    return f"{scheme}://{parts.netloc}{parts.path.rstrip('/')}{query}"


def check_no_secret(text: str, option: str) -> None:
    """Refuse a URI that may contain a password or a key. The message omits it, since it goes to run folders and logs."""
    rest = re.sub(r"^[a-z0-9]+:(//)?", "", text)
    host, query = re.split(r"[/?#]", rest)[0], urlsplit(text).query
    bucket = text.startswith(("s3", "gs"))
    named = bool(re.search(r":(?!\d*$)", host)) or (bucket and (":" in host or "@" in host)) or "@" in rest[len(host) :]
    unknown = [name for name, _ in parse_qsl(query, keep_blank_values=True) if name not in HARMLESS]
    if named or unknown or "#" in rest:
        raise OptionError(
            f"{option}=: this URI has, or may have, a user, password, key or token in it; leave that out, and give it to driver"
            " and executors in their environment (such as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY) or by their roles. After"
            f" a question mark only {', '.join(HARMLESS)} are allowed"
        )


def is_uri(place: str) -> bool:
    return re.match(r"[a-z0-9]+://", place) is not None


@functools.lru_cache(maxsize=64)
def filesystem(uri: str) -> tuple[Any, str]:
    """The file system of a URI, and the path in it; cached in the process, since connections do not survive a fork."""
    from pyarrow.fs import FileSystem

    files, path = FileSystem.from_uri(uri)
    return files, path.rstrip("/")
