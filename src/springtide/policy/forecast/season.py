"""Detection of a season: whether a series repeats itself, and after how many values."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

MIN_SEASON = 4
"""The shortest season, in values. A scaling policy treats shorter swings as noise."""

MIN_STANDARD_ERRORS = 4.0
"""Least autocorrelation of a season, in standard errors above 0. It is high because the best of hundreds of lags is tested."""

SIMILAR = 0.9
"""A fraction of a season, or the season known before, wins if its autocorrelation is at least this share of the best."""

Floats = npt.NDArray[np.float64]
Lags = npt.NDArray[np.int64]


def season(values: Sequence[float], known: int = 0) -> int:
    """The number of values in a season, at most half of the given values; 0 if no season is significant.

    The autocorrelation is that of differences over q values, where q is a sixteenth to an eighth of the lag. Differences remove
    trends. They also remove the long swings of a random walk from lag q on, and leave a season intact. Without a season, the
    autocorrelation r of such differences of n values has a variance of (2q + 1/q)/3/(n − lag) for a random walk, by Bartlett's
    formula, or of 1.5/(n − lag) for noise. So a season of 8q values has to come three times with r > 0.82, or eight times with
    r > 0.44. If only few of the differences are large, as in a series of steps, n is reduced, so that a few steps up and down
    are not a season. Besides, r has to fall below 0 before its peak, as it does for every repetition, but not for noise on a
    slow swing. ``known``: the season found before.

    At most 1 of 200 series of 1,000 values without a season is said to have one, for noise, random walks and mixtures; for
    smoothed random walks, about 5 % are.

    >>> import math
    >>> season([100 + 50 * math.sin(2 * math.pi * t / 24) for t in range(96)])
    24
    >>> season([100.0 + t for t in range(96)])
    0
    """
    top = max(values, default=0.0)
    half = len(values) // 2
    if top <= 0.0:
        return 0
    series = np.asarray(values, dtype=np.float64) / top  # scaled, so that its powers do not overflow
    best, highest, scale = 0, 0.0, (np.zeros(0), 0)
    q = 1
    while 8 * q <= half:
        differences = series[q:] - series[:-q]
        r = _autocorrelation(differences, half + 2)
        lags = _peaks(r, q, MIN_SEASON if q == 1 else 8 * q, min(16 * q, half + 1))
        variance = max(1.5, (2 * q + 1 / q) / 3) / (len(series) - lags) / _full(differences)
        lags = lags[r[lags] > MIN_STANDARD_ERRORS * np.sqrt(variance)]
        if len(lags) and r[lags].max() > highest:
            best, highest, scale = int(lags[r[lags].argmax()]), float(r[lags].max()), (r, q)
        q *= 2
    if MIN_SEASON <= known <= half and best and scale[0][known] >= SIMILAR * highest:
        return known
    return _part(best, *scale) if best else 0


def _part(whole: int, r: Floats, q: int) -> int:
    """The shortest season of which the whole is a multiple, because a multiple of a season repeats too."""
    lags = _peaks(r, q, MIN_SEASON, whole)
    lags = lags[r[lags] >= SIMILAR * r[whole]]
    times = np.rint(whole / lags)
    fits = np.abs(whole - times * lags) <= 0.05 * lags
    if not fits.any():
        return whole
    lags = lags[fits & (times == times[fits].max())]
    return int(lags[r[lags].argmax()])


def _peaks(r: Floats, q: int, lowest: int, end: int) -> Lags:
    """The lags with a local maximum of r, after r was below 0. Lag q does not count, where noise alone makes r negative."""
    lags = np.arange(lowest, end)
    before = r.copy()
    before[q] = 1.0
    fallen = np.minimum.accumulate(before)[lags - 1] < 0
    return lags[fallen & (r[lags] > r[lags - 1]) & (r[lags] >= r[lags + 1])]


def _full(differences: Floats) -> float:
    """The share of the differences that carries the variance, by kurtosis: 1 for normal ones, less if only few are large."""
    squares = differences * differences
    fourths = float(squares @ squares)
    return min(1.0, 3 * float(squares.sum()) ** 2 / fourths / len(squares)) if fourths > 0 else 1.0


def _autocorrelation(differences: Floats, lags: int) -> Floats:
    """The autocorrelation at lags 0, 1, 2, …; all 0 if the series varies by no more than a millionth of its values."""
    n = len(differences)
    centred = differences - differences.mean()
    spectrum = np.fft.rfft(centred, 1 << (n + lags).bit_length())  # zero padding, so that the end does not wrap around
    products = np.fft.irfft(spectrum.real**2 + spectrum.imag**2)[:lags]
    if products[0] <= n * 1e-12:  # rounding errors can be periodic too
        return np.zeros(lags)
    r: Floats = products / products[0] * n / (n - np.arange(lags))
    return r
