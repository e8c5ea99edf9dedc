"""Avro values, with the writer's schema given or in a schema registry."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any

from springtide.connectors.kafka.clients import needed
from springtide.connectors.kafka.registry import HEADER, Registry, header_of


def avro_decoder(kind: type, schema: str | bytes | None, registry: Registry | None) -> Callable[[bytes], Any]:
    """Reads with the writer's schema, then takes the fields of ``kind``. With a registry, ``schema`` is the reader's schema."""
    given = parsed(schema) if schema is not None else None
    read, convert = needed("fastavro").schemaless_reader, needed("msgspec").convert
    writers: dict[int, Any] = {}

    def decode(raw: bytes) -> Any:
        stream = io.BytesIO(raw)
        writer = given
        if registry is not None:
            number = header_of(raw)
            stream.seek(HEADER)
            writer = writers.get(number)
            if writer is None:
                text, before = registry.schema(number)
                writer = writers[number] = parsed(text, before)
        found = read(stream, writer, given if registry is not None else None)
        if stream.tell() != len(raw):
            raise ValueError(f"{len(raw) - stream.tell()} bytes are left behind the Avro value; its writer had another schema")
        return convert(found, kind)

    return decode


def parsed(schema: str | bytes, before: Any = ()) -> Any:
    """A schema that fastavro reads with; ``before`` are the schemas that it refers to."""
    parse = needed("fastavro").parse_schema
    names: dict[str, Any] = {}
    for each in before:
        parse(json.loads(each), names)
    return parse(_loaded(schema), names)


def _loaded(schema: str | bytes) -> Any:
    """A schema as JSON; a registry has the names of plain types without quotes too."""
    text = schema.decode() if isinstance(schema, bytes) else schema
    return json.loads(text)
