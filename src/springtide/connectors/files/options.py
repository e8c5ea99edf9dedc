"""The options of formats, under the names of Spark's reader; those that are not supported are refused with a replacement."""

from __future__ import annotations

import codecs
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from springtide.errors import OptionError, nearest

SPARK = "read the files with st.source.dataframe(lambda spark: spark.readStream…)"
LETTERS = "records that do not parse become dead letters, with file and line"
LATER = "read that column as str, and convert it in a map"
REPLACED = {
    "mode": LETTERS,
    "columnNameOfCorruptRecord": LETTERS,
    "maxFilesPerTrigger": "give max_files=",
    "maxBytesPerTrigger": "give max_files=, or a target latency, which sets the read limit",
    "latestFirst": f"the oldest files are read first; for another order, {SPARK}",
    "maxFileAge": "every file that is not read yet is read, however old it is",
    "fileNameOnly": "files are known by their paths below the folder",
    "cleanSource": "remove or archive files yourself, once `waiting` in batches.jsonl says that none of them waits",
    "sourceArchiveDir": "remove or archive files yourself",
    "inferSchema": "schema= says it",
    "prefersDate": LATER,
    "timestampFormat": LATER,
    "timestampNTZFormat": LATER,
    "dateFormat": LATER,
    "locale": LATER,
    "timeZone": "times without a zone are in UTC",
    "multiLine": f"a record is a line; for others, {SPARK}",
    "lineSep": "lines end with a line feed, or with carriage return and line feed",
    "comment": f"there are no comments; filter them, or {SPARK}",
    "mergeSchema": "columns are found by name in each file",
    "compression": "the end of a file's name says it, such as .gz, .bz2, .zst or .lz4",
}
HARMLESS = {"recursiveFileLookup": "true", "enforceSchema": "false"}
"""Options that may say what is done anyway."""
ENCODINGS = ("utf-8", "ascii", "iso8859-1", "cp1252")


@dataclass(frozen=True)
class CsvOptions:
    header: bool = False
    delimiter: str = ","
    quote: str = '"'
    escape: str | None = None
    nulls: tuple[str, ...] = ("",)


@dataclass(frozen=True)
class Options:
    """The options of all formats."""

    csv: CsvOptions = CsvOptions()
    encoding: str = "utf-8"
    pattern: str | None = None


def parsed(format: str, given: Mapping[str, str]) -> Options:
    """Read the options, in any case, as Spark does."""
    found: dict[str, object] = {}
    encoding, pattern = "utf-8", None
    for name, value in given.items():
        key = name.lower()
        if key == "pathglobfilter":
            pattern = str(value)
        elif key in ("encoding", "charset") and format != "parquet":
            encoding = _encoding(str(value))
        elif format == "csv" and key in CSV:
            field, convert = CSV[key]
            found[field] = convert(name, str(value))
        else:
            _refuse(format, name, str(value))
    return Options(CsvOptions(**found), encoding, pattern)  # type: ignore[arg-type]


def _refuse(format: str, name: str, value: str) -> None:
    harmless = {key.lower(): allowed for key, allowed in HARMLESS.items()}.get(name.lower())
    if harmless == value.lower():
        return
    replaced = {key.lower(): way for key, way in REPLACED.items()}.get(name.lower())
    if replaced is not None:
        raise OptionError(f"files: option {name!r} of Spark's reader is not supported: {replaced}")
    allowed = ["pathGlobFilter", *(["encoding"] if format != "parquet" else []), *(CSV if format == "csv" else ())]
    raise OptionError(f"files: option {name!r} of format {format!r} is not supported; {nearest(name, allowed)}. Or {SPARK}")


def _flag(name: str, value: str) -> bool:
    if value.lower() not in ("true", "false"):
        raise OptionError(f"files: option {name}={value!r} is not allowed; give true or false")
    return value.lower() == "true"


def _character(name: str, value: str) -> str:
    if len(value) != 1 or ord(value) > 127 or value in "\r\n":
        raise OptionError(f"files: option {name}={value!r} is not allowed; give one ASCII character")
    return value


def _quote(name: str, value: str) -> str:
    return _character(name, value) if value else ""


def _nulls(name: str, value: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(("", value)))


def _encoding(value: str) -> str:
    try:
        found = codecs.lookup(value).name
    except LookupError:
        found = ""
    if found not in ENCODINGS:
        raise OptionError(f"files: encoding={value!r} is not supported; {nearest(value, ENCODINGS)}. Or {SPARK}")
    return found


CSV: Mapping[str, tuple[str, Callable[[str, str], object]]] = {
    "header": ("header", _flag),
    "sep": ("delimiter", _character),
    "delimiter": ("delimiter", _character),
    "quote": ("quote", _quote),
    "escape": ("escape", _character),
    "nullvalue": ("nulls", _nulls),
}
