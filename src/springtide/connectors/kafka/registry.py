"""A schema registry: the header that its serializers put before values, and the schemas behind the numbers in it."""

from __future__ import annotations

import base64
import http.client
import json
import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from typing import Any

from springtide.errors import OptionError, RunError
from springtide.model.source import SourceUnavailable

HEADER = 5
"""A zero and the number of the schema in four bytes."""

ANSWER_S = 10.0


def header_of(raw: bytes) -> int:
    """The number of the schema in the header of a value."""
    if len(raw) < HEADER or raw[0] != 0:
        raise ValueError(
            f"the value has no header of a schema registry: it begins with {raw[:HEADER]!r}; leave out registry= if none has"
        )
    return int.from_bytes(raw[1:HEADER], "big")


class Registry:
    """Asks for each schema once. ``settings``: "basic.auth.user.info" ("user:password") and "ssl.ca.location"."""

    def __init__(self, url: str, settings: Mapping[str, str]) -> None:
        self._url, self._settings = url.rstrip("/"), settings
        self._known: dict[int, tuple[str, list[str]]] = {}

    def schema(self, number: int) -> tuple[str, list[str]]:
        """A schema, and before it those that it refers to, in their order."""
        if number not in self._known:
            found = self._get(f"/schemas/ids/{number}")
            self._known[number] = found["schema"], self._referred(found)
        return self._known[number]

    def _referred(self, found: Mapping[str, Any]) -> list[str]:
        schemas: list[str] = []
        for each in found.get("references", ()):
            inner = self._get(f"/subjects/{urllib.parse.quote(each['subject'], safe='')}/versions/{each['version']}")
            schemas += [*self._referred(inner), inner["schema"]]
        return list(dict.fromkeys(schemas))

    def _get(self, path: str) -> Any:
        asked = urllib.request.Request(self._url + path)  # noqa: S310  the scheme was checked when the source was declared
        login = self._settings.get("basic.auth.user.info")
        if login:
            # another server, to which an answer may lead, does not get it
            asked.add_unredirected_header("Authorization", f"Basic {base64.b64encode(login.encode()).decode()}")
        try:
            with urllib.request.urlopen(asked, timeout=ANSWER_S, context=self._trust()) as answer:  # noqa: S310
                found = json.load(answer)
        except urllib.error.HTTPError as error:
            raise self._refused(path, error) from None
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise SourceUnavailable(f"the schema registry at {self._url} cannot be reached: {error}") from None
        if not isinstance(found, dict) or not isinstance(found.get("schema"), str):
            raise SourceUnavailable(f"the schema registry at {self._url} answers {path} without a schema")
        return found

    def _trust(self) -> ssl.SSLContext | None:
        authority = self._settings.get("ssl.ca.location")
        if not authority:
            return None
        try:
            return ssl.create_default_context(cafile=authority)
        except OSError as error:
            raise OptionError(
                f"kafka: {authority} cannot be read: {error}; correct schema.registry.ssl.ca.location in config="
            ) from None

    def _refused(self, path: str, error: urllib.error.HTTPError) -> Exception:
        with error:
            if error.code == 404:
                return ValueError(f"the schema registry at {self._url} has no {path}")
            if error.code in (401, 403):
                return RunError(
                    f"the schema registry at {self._url} refuses {path}: HTTP {error.code};"
                    " correct schema.registry.basic.auth.user.info in config="
                )
            return SourceUnavailable(f"the schema registry at {self._url} answers HTTP {error.code} to {path}")
