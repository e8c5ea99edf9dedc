"""A schema registry on the loopback: values with its header are decoded, and its failures are no fault of a record."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import springtide as st
from connectors.kafka.messages import Message, decoded, reasons, source_of
from connectors.kafka.test_values import AVRO, Order, Place, avro, message_classes
from springtide.connectors.kafka.clients import Connection
from springtide.connectors.kafka.registry import Registry
from springtide.errors import OptionError, RunError
from springtide.model.source import SourceUnavailable

LOGIN = "user:correct-horse"


class Server(ThreadingHTTPServer):
    """Answers by path: a document, a status, raw bytes, or another address to go to."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answers: dict[str, Any] = {}
        self.asked: list[tuple[str, str | None]] = []  # the path and the header Authorization
        self.wants: str | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        login = self.headers.get("Authorization")
        self.server.asked.append((self.path, login))
        answer = self.server.answers.get(self.path, 404)
        if self.server.wants is not None and login != self.server.wants:
            answer = 401
        if isinstance(answer, str):
            self.send_response(302)
            self.send_header("Location", answer)
            self.end_headers()
            return
        self.send_response(answer if isinstance(answer, int) else 200)
        self.end_headers()
        self.wfile.write(answer if isinstance(answer, bytes) else json.dumps(answer).encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def registry() -> Iterator[Server]:
    with Server() as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        yield server
        server.shutdown()


def headed(number: int, raw: bytes) -> bytes:
    return b"\0" + number.to_bytes(4, "big") + raw


def test_avro_by_the_schemas_of_its_writers(registry: Server) -> None:
    """An old and a new writer, and one schema that refers to another."""
    place = next(field["type"][1] for field in AVRO["fields"] if field["name"] == "place")
    refers = {"type": "record", "name": "Order", "fields": [
        {"name": "id", "type": "long"}, {"name": "route", "type": "string"},
        {"name": "place", "type": ["null", "Place"]}]}  # fmt: skip
    old = {"type": "record", "name": "Order", "fields": [{"name": "route", "type": "string"}, {"name": "id", "type": "int"}]}
    named = [{"name": "Place", "subject": "place/value", "version": 3}]
    registry.answers = {
        "/schemas/ids/1": {"schema": json.dumps(AVRO)},
        "/schemas/ids/2": {"schema": json.dumps(old)},
        "/schemas/ids/3": {"schema": json.dumps(refers), "references": named},
        "/subjects/place%2Fvalue/versions/3": {"schema": json.dumps(place)},
    }
    value = {"id": 1, "route": "a", "place": {"lat": 1.0, "lon": 2.0}}
    linked = avro(value, {**refers, "fields": [*refers["fields"][:2], {"name": "place", "type": ["null", place]}]})
    raws = [
        headed(1, avro(value)),
        headed(2, avro({"id": 2, "route": "b"}, old)),
        headed(3, linked),
        avro(value),
        headed(9, b"x"),
    ]
    found = decoded(Order, raws, format="avro", registry=registry.url)
    assert found.values == [Order(1, "a", place=Place(1.0, 2.0)), Order(2, "b"), Order(1, "a", place=Place(1.0, 2.0))]
    assert "has no header of a schema registry" in reasons(found)[3]
    assert "has no /schemas/ids/9" in reasons(found)[4]
    paths = [path for path, _ in registry.asked]
    assert all(paths.count(f"/schemas/ids/{number}") == 1 for number in (1, 2, 3)), "each schema is asked for once"


def test_json_and_protobuf_behind_the_header(registry: Server) -> None:
    found = decoded(Order, [headed(7, b'{"id": 1, "route": "a"}'), b'{"id": 1, "route": "a"}'], registry=registry.url)
    assert found.values == [Order(1, "a")] and list(reasons(found)) == [1]
    kind = message_classes()
    raw = kind(id=1, route="a").SerializeToString()
    raws = [headed(7, b"\0" + raw), headed(7, b"\x04\x02\x00" + raw), headed(7, b"\xff"), headed(7, b"\x02")]
    found = decoded(Order, raws, format="protobuf", schema=kind, registry=registry.url)
    assert [value.id for value in found.values] == [1, 1]
    assert "cut off" in reasons(found)[2] and "cut off" in reasons(found)[3]
    assert registry.asked == [], "these formats carry all that is needed"


def test_a_login_is_sent_to_the_registry_alone(registry: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REGISTRY_LOGIN", LOGIN)
    registry.wants = f"Basic {base64.b64encode(LOGIN.encode()).decode()}"
    with Server() as other:
        threading.Thread(target=other.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        registry.answers = {"/schemas/ids/1": f"{other.url}/schemas/ids/1"}
        other.answers = {"/schemas/ids/1": {"schema": json.dumps(AVRO)}}
        source = source_of(
            Order, format="avro", registry=registry.url,
            config={"schema.registry.basic.auth.user.info": st.secret.env("REGISTRY_LOGIN")},
        )  # fmt: skip
        found = source.layout.opened(source.connection).decode([Message(headed(1, avro({"id": 1, "route": "a"})))])
        assert found.values == [Order(1, "a")]
        assert [login for _, login in other.asked] == [None], "another server does not get the login"
        other.shutdown()


def test_a_wrong_login_ends_the_run_and_makes_no_dead_letters(registry: Server) -> None:
    registry.wants = "another"
    with pytest.raises(RunError, match=r"refuses /schemas/ids/1: HTTP 401; correct schema\.registry\.basic\.auth\.user\.info"):
        decoded(Order, [headed(1, b"x")], format="avro", registry=registry.url)


@pytest.mark.parametrize("answer", [500, 429, b"<html>", b"[]", b'{"error": "x"}'])
def test_a_registry_that_fails_is_waited_for(registry: Server, answer: object) -> None:
    registry.answers = {"/schemas/ids/1": answer}
    with pytest.raises(SourceUnavailable, match="the schema registry at http"):
        decoded(Order, [headed(1, b"x")], format="avro", registry=registry.url)


def test_a_registry_that_is_away_is_waited_for(registry: Server) -> None:
    url = registry.url
    registry.server_close()
    with pytest.raises(SourceUnavailable, match="cannot be reached"):
        Registry(url, {}).schema(1)


def test_a_server_that_speaks_no_http_is_waited_for() -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as plain:

        def answer() -> None:
            client, _ = plain.accept()
            client.recv(4096)
            client.sendall(b"SSH-2.0-OpenSSH\r\n")
            client.close()

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(SourceUnavailable, match="cannot be reached"):
            Registry(f"http://127.0.0.1:{plain.getsockname()[1]}", {}).schema(1)
        thread.join()


def test_a_login_in_the_url_or_as_text_is_refused() -> None:
    with pytest.raises(OptionError, match="has a login in its URL") as error:
        source_of(Order, format="avro", registry=f"http://{LOGIN}@registry:8081")
    assert "correct-horse" not in str(error.value)
    with pytest.raises(OptionError, match=r"secret\.env") as error:
        source_of(Order, format="avro", registry="http://r", config={"schema.registry.basic.auth.user.info": LOGIN})
    assert "correct-horse" not in str(error.value)
    with pytest.raises(OptionError, match=r"'schema\.registry\.url'; .*"):
        source_of(Order, format="avro", registry="http://r", config={"schema.registry.url": "x"})


def test_a_missing_file_with_the_registrys_authority_says_so(tmp_path: Path) -> None:
    settings = {"ssl.ca.location": str(tmp_path / "none.pem")}
    with pytest.raises(OptionError, match=r"none\.pem"):
        Registry("https://127.0.0.1:1", settings).schema(1)
    assert Connection("") is not None
