"""Hashes of the records' keys, for groupings and for shards.

A hash is the same in every process, on every machine and in every version of Python, because a replay has to send a
record to the same target as before. Numbers and times are hashed by splitmix64 (Steele, Lea, Flood: Fast Splittable
Pseudorandom Number Generators, 2014), a column at a time. Strings and bytes of up to ``SHORT`` bytes take a splitmix64
step for each word of 8 bytes, longer values SHA-256, and every distinct decimal BLAKE2b. The hash of a nested value is
built from the hashes of its parts, so no Python object is made for a short string, a list or a struct.

Every type has a domain, and every level of a nested value a seed; both are derived from the seed of the key. Without
that seed nobody can choose keys that share a hash: neither integers in structs, nor an integer and a null.

Two keys are the same if they are equal integers of any width, equal times of any unit, 0.0 and -0.0, NaN and NaN,
equal decimals of any scale, or equal maps in any order. Null is a separate key, different from 0, "" and an empty
list. ``same.py`` compares keys by the same rules.
"""

from __future__ import annotations

import decimal
import enum
import functools
import hashlib
from collections.abc import Iterable
from types import MappingProxyType

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from springtide.errors import OptionError, nearest
from springtide.model.costs import Hashes
from springtide.policy.group import NO_KEY, kernel

HASHING = 2
"""The version of these hashes. A checkpoint records it, and state of another version is rehashed at the next start: increase
it with every change of a hash."""
SHORT = 64
"""The longest string, in bytes, that is hashed word by word. That is done for all rows at once, and takes 0.1 µs each. A longer
value takes 0.5 µs and 0.6 ns a byte by SHA-256; word by word a single long value would take 600 ns a byte. OpenSSL's SHA-256
uses the processor's own instructions, and is faster than BLAKE2b, which takes 1.1 to 1.5 ns a byte. Unlike xxHash it needs no
package on the workers, and, keyed by the seed, no collisions can be computed for it."""
_MICROSECONDS = MappingProxyType({"s": 1_000_000, "ms": 1_000, "us": 1})
_DAY_MS = 86_400_000


class Domain(enum.IntEnum):
    """The kind of a hashed value. Equal bits in two domains have different hashes."""

    KEY = 1
    NULL = 2
    WHOLE = 3
    LARGE = 4  # integers from 2⁶³ on, whose bits are also those of negative integers
    BOOLEAN = 5
    DATE = 6
    TIME = 7
    TIMESTAMP = 8
    DURATION = 9
    FLOATING = 10
    DECIMAL = 11
    TEXT = 12
    BINARY = 13
    LIST = 14
    MAP = 15
    STRUCT = 16


def key_hashes(batch: pa.RecordBatch, key: tuple[str, ...], seed: int = 0) -> Hashes:
    """A 64-bit hash of every record's key: of the columns in the order of ``key``. Two seeds give independent hashes.

    >>> trips = pa.record_batch({"route": [7, 7], "day": [0.0, -0.0]})
    >>> first, second = key_hashes(trips, ("route", "day"))
    >>> bool(first == second)
    True
    """
    if not key:
        raise OptionError(NO_KEY)
    columns = []
    for name in key:
        position = batch.schema.get_field_index(name)
        if position < 0:
            raise OptionError(f"no column is named {name!r}, which is in the key; {nearest(name, batch.schema.names)}")
        columns.append(batch.column(position))
    return _in_turn(columns, batch.num_rows, Domain.KEY, seed)


@functools.lru_cache(maxsize=1024)
def _seed_of(domain: Domain, seed: int) -> np.uint64:
    """The seed of a domain, or of the parts of a nested value."""
    both = np.array([domain, seed], dtype=np.uint64)
    return np.uint64(mix(mix(both[:1]) ^ both[1:])[0])


def mix(x: Hashes) -> Hashes:
    """splitmix64: a step of its sequence from the state ``x``."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@kernel
def mixed_one(x: int) -> int:
    """``mix`` of a single number of 64 bits."""
    y = np.uint64(x) + np.uint64(0x9E3779B97F4A7C15)
    y = (y ^ (y >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    y = (y ^ (y >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return y ^ (y >> np.uint64(31))  # type: ignore[return-value]  # an unsigned number of 64 bits


def _hashes(column: pa.Array, seed: int) -> Hashes:
    """A hash of every value of a column; null has a hash of its own."""
    null = _seed_of(Domain.NULL, seed)
    if len(column) == 0 or pa.types.is_null(column.type):
        return np.full(len(column), null, dtype=np.uint64)
    hashes = _by_type(column, seed)
    if column.null_count:
        hashes = np.where(column.is_null().to_numpy(zero_copy_only=False), null, hashes)
    return hashes


def _by_type(column: pa.Array, seed: int) -> Hashes:
    kind, is_ = column.type, pa.types
    if isinstance(kind, pa.BaseExtensionType):
        return _hashes(column.storage, seed)
    if is_text(kind):
        return _bytes(column.cast(pa.large_string()), Domain.TEXT, seed)
    if is_bytes(kind):
        return _bytes(column.cast(pa.large_binary()), Domain.BINARY, seed)
    if is_.is_boolean(kind):
        return mix(_whole(column.cast(pa.int8())) ^ _seed_of(Domain.BOOLEAN, seed))
    if is_.is_integer(kind) or is_.is_temporal(kind):
        return _integers(column, seed)
    if is_.is_floating(kind):
        return mix(floats(column) ^ _seed_of(Domain.FLOATING, seed))
    if is_.is_struct(kind):
        return _in_turn(column.flatten(), len(column), Domain.STRUCT, seed)
    if is_.is_map(kind):
        inner = int(_seed_of(Domain.MAP, seed))
        return _sums(column, _in_turn([column.keys, column.items], len(column.keys), Domain.MAP, inner), Domain.MAP, seed)
    if is_.is_list(kind) or is_.is_large_list(kind):
        return _list(column, seed)
    if is_.is_fixed_size_list(kind):
        return _list(column.cast(pa.large_list(kind.value_type)), seed)
    if is_.is_dictionary(kind):
        return _looked_up(_hashes(column.dictionary, seed), column.indices, seed)
    return _distinct(column, seed)


def is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def is_bytes(kind: pa.DataType) -> bool:
    is_ = pa.types
    variable = is_.is_binary(kind) or is_.is_large_binary(kind) or is_.is_binary_view(kind)
    return bool(variable or is_.is_fixed_size_binary(kind))


def _in_turn(columns: list[pa.Array], length: int, domain: Domain, seed: int) -> Hashes:
    """The hash of several columns: each column of a key, or field of a struct, is mixed into the hash of those before it."""
    inner = int(_seed_of(domain, seed))
    hashes = np.full(1, inner, dtype=np.uint64)
    for column in columns:
        hashes = mix(hashes ^ _hashes(column, inner))
    return np.broadcast_to(hashes, length) if not columns else hashes


def raw(column: pa.Array, form: str) -> npt.NDArray[np.generic]:
    """The numbers of a column as they are in memory. The numbers at nulls are undefined."""
    size = np.dtype(form).itemsize
    return np.frombuffer(column.buffers()[1], form, count=len(column), offset=column.offset * size)


def _integers(column: pa.Array, seed: int) -> Hashes:
    """The hashes of integers and times. Values of different types with equal bits have different domains."""
    values = _whole(column)
    hashes = mix(values ^ _seed_of(_domain(column.type), seed))
    if pa.types.is_uint64(column.type) and (large := values >= np.uint64(1 << 63)).any():
        hashes[large] = mix(values[large] ^ _seed_of(Domain.LARGE, seed))
    return hashes


def _domain(kind: pa.DataType) -> Domain:
    if pa.types.is_integer(kind):
        return Domain.WHOLE
    if pa.types.is_date(kind):
        return Domain.DATE
    if pa.types.is_time(kind):
        return Domain.TIME
    return Domain.DURATION if pa.types.is_duration(kind) else Domain.TIMESTAMP


def _whole(column: pa.Array) -> Hashes:
    """Integers, and times as microseconds or days, in 64 bits; fractions of a microsecond are dropped."""
    kind = column.type
    if pa.types.is_interval(kind):
        raise unfit(kind)
    sign = "u" if pa.types.is_unsigned_integer(kind) else "i"
    values = raw(column, f"{sign}{kind.bit_width // 8}").astype(np.int64)
    if pa.types.is_date64(kind):
        values = values // _DAY_MS
    elif not (pa.types.is_integer(kind) or pa.types.is_date32(kind)):
        values = values // 1_000 if kind.unit == "ns" else values * _MICROSECONDS[kind.unit]
    return values.view(np.uint64)


def floats(column: pa.Array) -> Hashes:
    """The bits of numbers as 64-bit floats; all NaN have the same, and so have 0.0 and -0.0."""
    values = raw(column, f"f{column.type.bit_width // 8}").astype(np.float64) + 0.0  # -0.0 + 0.0 is 0.0
    return np.where(np.isnan(values), np.nan, values).view(np.uint64)


def _bytes(column: pa.Array, domain: Domain, seed: int) -> Hashes:
    """The hashes of strings or bytes: the length, into which each word of 8 bytes is mixed; SHA-256 if they are long."""
    every = np.frombuffer(column.buffers()[1], np.int64)[column.offset : column.offset + len(column) + 1]
    data = np.frombuffer(column.buffers()[2] or b"", np.uint8)[every[0] : every[-1]]
    offsets = every - every[0]
    lengths = np.diff(offsets)
    hashes = mix(lengths.view(np.uint64) ^ _seed_of(domain, seed))
    long = np.flatnonzero(lengths > SHORT)
    if len(long):
        spans = zip(offsets[long].tolist(), offsets[long + 1].tolist(), strict=True)
        hashes[long] = _digests(data.data, spans, int(_seed_of(domain, seed)))
    _mix_words(hashes, data, offsets[:-1], np.where(lengths > SHORT, 0, lengths) if len(long) else lengths)
    return hashes


def _mix_words(
    hashes: Hashes, data: npt.NDArray[np.uint8], begins: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]
) -> None:  # fmt: skip
    """Mix the bytes of each value into its hash, 8 at a time, with the last word padded with zeros."""
    todo = np.flatnonzero(lengths)
    if not len(todo):
        return
    padded = np.concatenate([data, np.zeros(8, dtype=np.uint8)])
    words: Hashes = np.ndarray((len(data) + 1,), dtype="<u8", buffer=padded, strides=(1,))  # a word begins at every byte
    done = 0
    while len(todo):
        left = np.minimum(lengths[todo] - done, 8).astype(np.uint64)
        mask = np.uint64(0xFFFFFFFFFFFFFFFF) >> (np.uint64(8) * (np.uint64(8) - left))
        hashes[todo] = mix(hashes[todo] ^ (words[begins[todo] + done] & mask))
        done += 8
        todo = todo[lengths[todo] > done]


def _digests(data: memoryview, spans: Iterable[tuple[int, int]], seed: int) -> Hashes:
    """The first 8 bytes of SHA-256 of each span of the data, keyed by a first block with the seed."""
    keyed = hashlib.sha256(seed.to_bytes(8, "little").ljust(64, b"\0"))
    digests = bytearray()
    for begin, end in spans:
        digest = keyed.copy()
        digest.update(data[begin:end])
        digests += digest.digest()[:8]
    return np.frombuffer(digests, "<u8").astype(np.uint64)


def _list(column: pa.Array, seed: int) -> Hashes:
    """The sum of the elements' hashes, each mixed with its index in the list, so that [1, 2] differs from [2, 1]."""
    offsets = column.offsets.to_numpy()
    places = np.arange(len(column.values), dtype=np.int64)
    inside = (places >= offsets[0]) & (places < offsets[-1])
    places[inside] -= np.repeat(offsets[:-1], np.diff(offsets))
    elements = _hashes(column.values, int(_seed_of(Domain.LIST, seed)))
    return _sums(column, mix(elements ^ mix(places.view(np.uint64))), Domain.LIST, seed)


def _sums(column: pa.Array, elements: Hashes, domain: Domain, seed: int) -> Hashes:
    """For every list of a column, the mixed sum of its elements' hashes and its length."""
    offsets = column.offsets.to_numpy()
    below = np.concatenate([np.zeros(1, dtype=np.uint64), np.cumsum(elements, dtype=np.uint64)])
    sums = below[offsets[1:]] - below[offsets[:-1]] + np.diff(offsets).astype(np.uint64)
    return mix(sums ^ _seed_of(domain, seed))


def _distinct(column: pa.Array, seed: int) -> Hashes:
    """Hash every distinct value once, and look up the repeated values."""
    if pa.types.is_decimal(column.type) and column.type.bit_width < 128:
        column = column.cast(pa.decimal128(38, column.type.scale))
    try:
        encoded = column.dictionary_encode()
    except pa.ArrowNotImplementedError:
        raise unfit(column.type) from None
    secret = int(_seed_of(Domain.DECIMAL, seed)).to_bytes(8, "little")
    values = (_canonical(value) for value in encoded.dictionary.to_pylist())
    digests = b"".join(hashlib.blake2b(value, digest_size=8, key=secret).digest() for value in values)
    return _looked_up(np.frombuffer(digests, "<u8").astype(np.uint64), encoded.indices, seed)


def _looked_up(hashes: Hashes, indices: pa.Array, seed: int) -> Hashes:
    places: npt.NDArray[np.int64] = indices.cast(pa.int64()).fill_null(len(hashes)).to_numpy()
    return np.append(hashes, _seed_of(Domain.NULL, seed))[places]


def _canonical(value: object) -> bytes:
    """The bytes to hash for a value: a letter for its type, and a form that all equal values share."""
    if isinstance(value, decimal.Decimal):
        sign, digits, exponent = value.as_tuple()
        assert isinstance(exponent, int)
        text = "".join(map(str, digits)).lstrip("0")
        short = text.rstrip("0")
        return f"d{sign if short else 0}:{short}:{exponent + len(text) - len(short) if short else 0}".encode()
    raise unfit(type(value).__name__)


def unfit(kind: object) -> OptionError:
    return OptionError(
        f"a column of the type {kind} cannot be a key; allowed: bool, numbers, times, decimals, strings,"
        " bytes, and lists, maps and structs of these"
    )
