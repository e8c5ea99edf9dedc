"""A hash of every record's key, by which groupings tell keys apart.

The hash is the same in every process, on every machine and in every version of Python, because a replay has
to send a record where it went the first time. Numbers and times are hashed by splitmix64 (Steele, Lea, Flood:
Fast Splittable Pseudorandom Number Generators, 2014), whole columns at once, strings and bytes by as many steps as
the longest has words of 8 bytes; every distinct decimal once, by BLAKE2b of 8 bytes. Nested values are built from
the hashes of their parts, so no Python object is made for a string, a list or a struct.

What counts as the same key: equal integers of any width, equal times of any unit, 0.0 and -0.0, all NaN,
equal decimals of any scale, equal maps in any order. A null is a key of its own, apart from 0, "" and an
empty list.
"""

from __future__ import annotations

import decimal
import hashlib
from types import MappingProxyType

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from springtide.errors import OptionError, nearest
from springtide.model.costs import Hashes
from springtide.policy.group import kernel

_NULL = np.uint64(0x6E756C6C6E756C6C)
_LIST, _MAP, _STRUCT, _TEXT, _BINARY = map(np.uint64, range(1, 6))
_MICROSECONDS = MappingProxyType({"s": 1_000_000, "ms": 1_000, "us": 1})
_DAY_MS = 86_400_000


def key_hashes(batch: pa.RecordBatch, key: tuple[str, ...], seed: int = 0) -> Hashes:
    """A hash of 64 bits of every record's key: of the columns in the order of ``key``. Two seeds give independent ones.

    >>> trips = pa.record_batch({"route": [7, 7], "day": [0.0, -0.0]})
    >>> one, other = key_hashes(trips, ("route", "day"))
    >>> bool(one == other)
    True
    """
    if not key:
        raise OptionError("a grouping by key needs one: name its columns with key_by, or choose 'round-robin'")
    hashes = np.full(batch.num_rows, seed, dtype=np.uint64)
    for name in key:
        position = batch.schema.get_field_index(name)
        if position < 0:
            raise OptionError(f"no column is named {name!r}, which is in the key; {nearest(name, batch.schema.names)}")
        hashes = mix(mix(hashes) ^ _hashes(batch.column(position), seed))
    return hashes


def mix(x: Hashes) -> Hashes:
    """splitmix64: one step of its sequence from the state ``x``."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@kernel
def mixed_one(x: int) -> int:
    """The same, of one number of 64 bits."""
    y = np.uint64(x) + np.uint64(0x9E3779B97F4A7C15)
    y = (y ^ (y >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    y = (y ^ (y >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return y ^ (y >> np.uint64(31))  # type: ignore[return-value]  # a number of 64 bits without a sign


def _hashes(column: pa.Array, seed: int = 0) -> Hashes:
    """A hash of every value of a column; nulls have their own."""
    if len(column) == 0 or pa.types.is_null(column.type):
        return np.full(len(column), _NULL, dtype=np.uint64)
    hashes = _by_type(column, seed)
    if column.null_count:
        hashes = np.where(column.is_null().to_numpy(zero_copy_only=False), _NULL, hashes)
    return hashes


def _by_type(column: pa.Array, seed: int) -> Hashes:
    kind, is_ = column.type, pa.types
    if isinstance(kind, pa.BaseExtensionType):
        return _hashes(column.storage, seed)
    if is_.is_string(kind) or is_.is_large_string(kind) or is_.is_string_view(kind):
        return _bytes(column.cast(pa.large_string()), _TEXT, seed)
    if is_.is_binary(kind) or is_.is_large_binary(kind) or is_.is_fixed_size_binary(kind) or is_.is_binary_view(kind):
        return _bytes(column.cast(pa.large_binary()), _BINARY, seed)
    if is_.is_boolean(kind):
        return mix(_whole(column.cast(pa.int8())))
    if is_.is_integer(kind) or is_.is_temporal(kind):
        return mix(_whole(column))
    if is_.is_floating(kind):
        return mix(_floats(column))
    if is_.is_struct(kind):
        return _struct(column.flatten(), len(column), seed)
    if is_.is_map(kind):
        return _sums(column, _struct([column.keys, column.items], len(column.keys), seed)) ^ _MAP
    if is_.is_list(kind) or is_.is_large_list(kind):
        return _list(column, seed)
    if is_.is_fixed_size_list(kind):
        return _list(column.cast(pa.large_list(kind.value_type)), seed)
    if is_.is_dictionary(kind):
        return _looked_up(_hashes(column.dictionary, seed), column.indices)
    return _distinct(column, seed)


def _raw(column: pa.Array, form: str) -> npt.NDArray[np.generic]:
    """The numbers of a column as they lie in memory; what lies under a null is left to the caller."""
    size = np.dtype(form).itemsize
    return np.frombuffer(column.buffers()[1], form, count=len(column), offset=column.offset * size)


def _whole(column: pa.Array) -> Hashes:
    """Integers, and times as microseconds or days, in 64 bits; finer than a microsecond does not count."""
    kind = column.type
    if pa.types.is_interval(kind):
        raise _unfit(kind)
    sign = "u" if pa.types.is_unsigned_integer(kind) else "i"
    values = _raw(column, f"{sign}{kind.bit_width // 8}").astype(np.int64)
    if pa.types.is_date64(kind):
        values = values // _DAY_MS
    elif not (pa.types.is_integer(kind) or pa.types.is_date32(kind)):
        values = values // 1_000 if kind.unit == "ns" else values * _MICROSECONDS[kind.unit]
    return values.view(np.uint64)


def _floats(column: pa.Array) -> Hashes:
    values = _raw(column, f"f{column.type.bit_width // 8}").astype(np.float64) + 0.0  # -0.0 + 0.0 is 0.0
    return np.where(np.isnan(values), np.nan, values).view(np.uint64)


def _bytes(column: pa.Array, kind: np.uint64, seed: int) -> Hashes:
    """Of every string or bytes: its length, then its words of 8 bytes, the last filled up with zeros, each mixed in."""
    offsets = np.frombuffer(column.buffers()[1], np.int64)[column.offset : column.offset + len(column) + 1]
    lengths = np.diff(offsets)
    data = np.frombuffer(column.buffers()[2] or b"", np.uint8)[: offsets[-1]]
    padded = np.concatenate([data, np.zeros(8, dtype=np.uint8)])
    words: Hashes = np.ndarray((len(data) + 1,), dtype="<u8", buffer=padded, strides=(1,))  # one begins at every byte
    hashes = mix(lengths.view(np.uint64) ^ mix(np.full(len(column), kind ^ np.uint64(seed), dtype=np.uint64)))
    todo = np.flatnonzero(lengths)
    done = 0
    while len(todo):
        left = np.minimum(lengths[todo] - done, 8).astype(np.uint64)
        mask = np.uint64(0xFFFFFFFFFFFFFFFF) >> (np.uint64(8) * (np.uint64(8) - left))
        hashes[todo] = mix(hashes[todo] ^ (words[offsets[:-1][todo] + done] & mask))
        done += 8
        todo = todo[lengths[todo] > done]
    return hashes


def _struct(children: list[pa.Array], length: int, seed: int) -> Hashes:
    hashes = np.full(length, _STRUCT, dtype=np.uint64)
    for child in children:
        hashes = mix(mix(hashes) ^ _hashes(child, seed))
    return hashes


def _list(column: pa.Array, seed: int) -> Hashes:
    """The sum of the elements' hashes, each mixed with its place in its list: [1, 2] is not [2, 1]."""
    offsets = column.offsets.to_numpy()
    places = np.arange(len(column.values), dtype=np.int64)
    inside = (places >= offsets[0]) & (places < offsets[-1])
    places[inside] -= np.repeat(offsets[:-1], np.diff(offsets))
    return _sums(column, mix(_hashes(column.values, seed) ^ mix(places.view(np.uint64)))) ^ _LIST


def _sums(column: pa.Array, elements: Hashes) -> Hashes:
    """For every list of a column, the sum of its elements' hashes and of its length, mixed."""
    offsets = column.offsets.to_numpy()
    below = np.concatenate([np.zeros(1, dtype=np.uint64), np.cumsum(elements, dtype=np.uint64)])
    return mix(below[offsets[1:]] - below[offsets[:-1]] + np.diff(offsets).astype(np.uint64))


def _distinct(column: pa.Array, seed: int) -> Hashes:
    """Hash every distinct value once, and look the others up."""
    if pa.types.is_decimal(column.type) and column.type.bit_width < 128:
        column = column.cast(pa.decimal128(38, column.type.scale))
    try:
        encoded = column.dictionary_encode()
    except pa.ArrowNotImplementedError:
        raise _unfit(column.type) from None
    secret = seed.to_bytes(8, "little")
    values = (_canonical(value) for value in encoded.dictionary.to_pylist())
    digests = b"".join(hashlib.blake2b(value, digest_size=8, key=secret).digest() for value in values)
    return _looked_up(np.frombuffer(digests, "<u8").astype(np.uint64), encoded.indices)


def _looked_up(hashes: Hashes, indices: pa.Array) -> Hashes:
    places: npt.NDArray[np.int64] = indices.cast(pa.int64()).fill_null(len(hashes)).to_numpy()
    return np.append(hashes, _NULL)[places]


def _canonical(value: object) -> bytes:
    """The bytes that stand for a value: a letter for its type, and what equal values have in common."""
    if isinstance(value, decimal.Decimal):
        sign, digits, exponent = value.as_tuple()
        assert isinstance(exponent, int)
        text = "".join(map(str, digits)).lstrip("0")
        short = text.rstrip("0")
        return f"d{sign if short else 0}:{short}:{exponent + len(text) - len(short) if short else 0}".encode()
    raise _unfit(type(value).__name__)


def _unfit(kind: object) -> OptionError:
    return OptionError(
        f"a column of the type {kind} cannot be a key; allowed: bool, numbers, times, decimals, strings,"
        " bytes, and lists, maps and structs of these"
    )
