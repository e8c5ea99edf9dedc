# ruff: noqa: N803 - the paper's names
"""Costs of records by key, in little memory: a pair of Count-Min matrices (POSG, section III-A and listing III.1).

F counts the records and W sums their seconds; both have r rows and c columns and the same hash for each row. A record of
key t adds to a cell of every row, so a cell contains t and all keys with the same hash. The estimate of t's cost is W/F in
the row with the least F, where the share of other keys is least.

- F never underestimates. After m records, the least cell of a key exceeds its frequency f by ε(m − f) or more with a
  probability of at most δ (Cormode and Muthukrishnan, An improved data stream summary, 2005).
- An estimate lies between the least and the greatest cost (equation 6), because a cell is a weighted mean.

The matrices are plain arrays, [r, c]. Two are merged by addition and aged by scaling: (F₁ + F₂, W₁ + W₂) is the sketch of
both streams, and (a·F, a·W) has the same estimates but less weight against later records. ``update`` and ``estimate`` work
on columns of keys, the kernels with ``_one`` on a single record; both use the same cells for a key.

>>> hashes, F, W = row_hashes(rows(0.1), seed=0), *empty(rows(0.1), columns(0.05))
>>> keys = np.array([7, 9], dtype=np.uint64)
>>> update(F, W, cells(hashes, 55, keys), np.array([2, 1]), np.array([0.06, 0.01]))
>>> estimate(F, W, cells(hashes, 55, keys), default=0.02).round(3).tolist()
[0.03, 0.01]
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from springtide.model.costs import Hashes
from springtide.policy.group import kernel
from springtide.policy.group.keys import mix

Matrix = npt.NDArray[np.float64]
Cells = npt.NDArray[np.int64]
_HALF, _LOW = np.uint64(32), np.uint64(0xFFFFFFFF)


def rows(delta: float) -> int:
    """r = ⌈log₂(1/δ)⌉, at least 1."""
    return max(1, math.ceil(math.log2(1 / delta)))


def columns(epsilon: float, e: float = math.e) -> int:
    """c = ⌈e/ε⌉. POSG's 54 columns at ε = 0.05 come from e = 2.7."""
    return max(1, math.ceil(e / epsilon))


def empty(r: int, c: int) -> tuple[Matrix, Matrix]:
    """F and W before the first record."""
    return np.zeros((r, c)), np.zeros((r, c))


def row_hashes(r: int, seed: int) -> Hashes:
    """The three parameters of each row's hash.

    The family is h(x) = ((a + x₁)(b + x₀) + d) mod 2⁶⁴ for the halves x₁, x₀ of a key, of which the upper 32 bits are used. Two
    keys collide with a probability of 2⁻³², so it is 2-universal (Thorup, High Speed Hashing for Integers and Strings).
    """
    start: Hashes = mix(np.full(1, seed % 2**64, dtype=np.uint64))
    places: Hashes = np.arange(3 * r, dtype=np.uint64)
    return mix(start + places).reshape(r, 3)


def cells(hashes: Hashes, c: int, keys: Hashes) -> Cells:
    """The column in [0, c) of every key in each row: [r, keys]."""
    a, b, d = hashes.T[:, :, None]
    mixed: Hashes = (keys >> _HALF) + a
    mixed *= (keys & _LOW) + b
    mixed += d
    mixed >>= _HALF
    mixed *= np.uint64(c)
    mixed >>= _HALF
    return mixed.view(np.int64)


def update(F: Matrix, W: Matrix, places: Cells, counts: npt.ArrayLike, seconds: npt.ArrayLike) -> None:
    """Add records to a pair of matrices in place (listing III.1): for each key the number of records and their seconds."""
    r, c = F.shape
    flat = (places + c * np.arange(r)[:, None]).ravel()
    for matrix, amounts in ((F, counts), (W, seconds)):
        weights = np.broadcast_to(np.asarray(amounts, dtype=np.float64), places.shape)
        matrix += np.bincount(flat, weights.ravel(), r * c).reshape(r, c)


def estimate(F: Matrix, W: Matrix, places: Cells, default: npt.ArrayLike) -> Matrix:
    """Each key's cost: W/F in the row with the least F (listing III.2), or the default if F is 0.

    Matrices [r, c, k] of k replicas give an estimate for each: [keys, k], with k defaults or a single default.
    """
    ratios = np.empty_like(W)
    ratios[...] = default
    np.divide(W, F, out=ratios, where=F > 0)
    least: Matrix = F[0].take(places[0], axis=0)
    costs: Matrix = ratios[0].take(places[0], axis=0)
    for row in range(1, len(F)):
        count = F[row].take(places[row], axis=0)
        np.copyto(costs, ratios[row].take(places[row], axis=0), where=count < least)
        np.minimum(least, count, out=least)
    return costs


@kernel
def cell_one(hashes: Hashes, row: int, c: int, key: int) -> int:
    x = np.uint64(key)
    mixed = (hashes[row, 0] + (x >> _HALF)) * (hashes[row, 1] + (x & _LOW)) + hashes[row, 2]
    return int(((mixed >> _HALF) * np.uint64(c)) >> _HALF)


@kernel
def update_one(F: Matrix, W: Matrix, hashes: Hashes, key: int, seconds: float) -> None:
    """Add a record to a pair of matrices."""
    for row in range(F.shape[0]):
        column = cell_one(hashes, row, F.shape[1], key)
        F[row, column] += 1.0
        W[row, column] += seconds


@kernel
def estimate_one(F: Matrix, W: Matrix, hashes: Hashes, key: int, default: float) -> float:
    least = np.inf
    cost = default
    for row in range(F.shape[0]):
        column = cell_one(hashes, row, F.shape[1], key)
        if F[row, column] < least:
            least = F[row, column]
            cost = W[row, column] / least if least > 0 else default
    return cost
