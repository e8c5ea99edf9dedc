"""The forecasters: the properties that all of them share, and the arithmetic of each."""

from __future__ import annotations

import json
import math
import pickle
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from springtide.errors import OptionError
from springtide.policy.forecast import Forecaster, State, many, regression
from springtide.policy.forecast.best_fit import BestFit
from springtide.policy.forecast.ensemble import Ensemble
from springtide.policy.forecast.exponential import ExponentialCurve
from springtide.policy.forecast.holt import Holt
from springtide.policy.forecast.holt_winters import HoltWinters
from springtide.policy.forecast.last import Last
from springtide.policy.forecast.linear import Linear
from springtide.policy.forecast.logarithmic import Logarithmic
from springtide.policy.forecast.markov import Markov
from springtide.policy.forecast.moving_average import MovingAverage
from springtide.policy.forecast.season import season
from springtide.policy.registry import find

ALL: tuple[Forecaster, ...] = (
    Last(), Linear(), Logarithmic(), ExponentialCurve(), BestFit(), BestFit(window=20, linear_log=True), MovingAverage(),
    Holt(), Holt(1.0, 1.0, 1.0), HoltWinters(history=32), Markov(), Markov(0.5, 3), Ensemble(), Ensemble(horizon=3),
    Ensemble("last, linear, logarithmic, exponential, best-fit, moving-average, holt, holt-winters, markov", 0.999, 100.0),
)  # fmt: skip

rates = st.floats(0, 1e6, allow_subnormal=False)
anything = st.floats(0, allow_nan=False, allow_infinity=False)


def after(forecaster: Forecaster, values: Iterable[float], state: State | None = None) -> State:
    state = forecaster.initial() if state is None else state
    for value in values:
        state = forecaster.update(state, value)
    return state


def ahead(forecaster: Forecaster, values: Iterable[float], steps: int = 1) -> float:
    forecast = forecaster.ahead(after(forecaster, values), steps)
    assert forecast is not None
    return forecast


def sine(length: float, number: int, noise: float = 0.0, seed: int = 0) -> list[float]:
    t = np.arange(number)
    made: list[float] = (
        100 + 50 * np.sin(2 * np.pi * t / length) + np.random.default_rng(seed).normal(0, 1, number) * noise
    ).tolist()
    return made


# What holds for all of them.


@pytest.mark.parametrize("forecaster", ALL, ids=repr)
@given(
    values=st.lists(st.one_of(anything, rates, st.sampled_from([0.0, 1.0, 5e-324, 1.7e308])), max_size=30),
    steps=st.integers(1, 40),
)
@settings(max_examples=40)
def test_forecasts_are_sound_whatever_comes(forecaster: Forecaster, values: list[float], steps: int) -> None:
    state = forecaster.initial()
    assert forecaster.ahead(state, steps) is None
    for value in values:
        before = json.dumps(state, allow_nan=False)
        state = forecaster.update(state, value)
        restored = json.loads(json.dumps(state, allow_nan=False))
        assert restored == state
        forecast = forecaster.ahead(state, steps)
        assert forecast is not None
        assert math.isfinite(forecast)
        assert forecast >= 0
        assert forecaster.ahead(restored, steps) == forecast
        assert json.dumps(forecaster.update(json.loads(before), value)) == json.dumps(state)


@pytest.mark.parametrize("forecaster", ALL, ids=repr)
def test_the_state_that_comes_in_is_not_changed(forecaster: Forecaster) -> None:
    state = after(forecaster, sine(8, 50))
    before = json.dumps(state)
    forecaster.update(state, 7.0)
    forecaster.ahead(state, 3)
    assert json.dumps(state) == before


@pytest.mark.parametrize("forecaster", ALL, ids=repr)
@given(value=rates, number=st.integers(1, 40), steps=st.integers(1, 40))
@settings(max_examples=25)
def test_a_constant_series_stays_so(forecaster: Forecaster, value: float, number: int, steps: int) -> None:
    assert ahead(forecaster, [value] * number, steps) == pytest.approx(value, rel=1e-9)


@pytest.mark.parametrize("forecaster", ALL, ids=repr)
def test_they_are_plugins(forecaster: Any) -> None:
    cls = type(forecaster)
    assert find("forecast", f"{cls.__module__}:{cls.__name__}") is cls
    assert pickle.loads(pickle.dumps(forecaster)) == forecaster


@pytest.mark.parametrize("forecaster", ALL, ids=repr)
def test_memory_is_bounded(forecaster: Forecaster) -> None:
    once = after(forecaster, sine(8, 1_500, noise=5))
    twice = after(forecaster, sine(8, 1_500, noise=5), once)
    assert len(json.dumps(twice)) <= 1.05 * len(json.dumps(once)) + 50  # a count may have one more digit


@pytest.mark.parametrize(
    ("forecaster", "window"), [(f(window=5), 5) for f in (Linear, Logarithmic, ExponentialCurve, BestFit, MovingAverage)]
)
@given(old=st.lists(rates, max_size=10), new=st.lists(rates, min_size=5, max_size=5))
@settings(max_examples=30)
def test_only_the_window_counts(forecaster: Forecaster, window: int, old: list[float], new: list[float]) -> None:
    assert after(forecaster, [*old, *new]) == after(forecaster, new)


# The simplest ones.


def test_the_last_value() -> None:
    assert ahead(Last(), [3, 9, 4]) == 4.0
    assert ahead(Last(), [3, 9, 4], steps=7) == 4.0


def test_the_mean_of_the_last_values() -> None:
    assert ahead(MovingAverage(window=3), [100, 1, 2, 6]) == 3.0
    assert ahead(MovingAverage(window=3), [4, 6]) == 5.0


# Regressions.


def test_a_line_by_hand() -> None:
    # t̄ = 2, ȳ = 5, Σ(t − t̄)·y = −2 + 9 = 7, Σ(t − t̄)² = 2: a = 3.5, b = 5 − 3.5·2 = −2
    # R² = 3.5²·2 / (9 + 1 + 16) = 24.5/26
    state = after(Linear(), [2, 4, 9])
    assert state["curve"] == ["linear", 3.5, -2.0, pytest.approx(24.5 / 26), None]
    assert Linear().ahead(state) == 12.0
    assert Linear().ahead(state, 4) == 22.5


def test_a_falling_line_ends_at_0() -> None:
    assert ahead(Linear(), [9, 4, 2]) == 0.0  # −3.5·4 + 12 = −2
    assert ahead(Logarithmic(), [9, 4, 2], 20) == 0.0


def test_a_logarithm_by_hand() -> None:
    # ln 1, ln 2, ln 3 = 0, 0.6931, 1.0986, mean 0.5973; Σ(x − x̄)·y = −0.5973·1 + 0.0958·2 + 0.5013·4 = 1.5996
    # Σ(x − x̄)² = 0.3568 + 0.0092 + 0.2513 = 0.6173; a = 2.591, b = 7/3 − 2.591·0.5973 = 0.7856; at t = 4: 2.591·1.3863 + 0.7856
    assert ahead(Logarithmic(), [1, 2, 4]) == pytest.approx(4.378, abs=2e-3)


def test_an_exponential_by_hand() -> None:
    # ln y = ln 3 + t·ln 2: it goes through all of 6, 12, 24, 48
    state = after(ExponentialCurve(), [6, 12, 24, 48])
    assert state["curve"] == ["exponential", pytest.approx(math.log(2)), pytest.approx(math.log(3)), pytest.approx(1), 144]
    assert ExponentialCurve().ahead(state) == pytest.approx(96)
    assert ExponentialCurve().ahead(state, 2) == 144.0  # 192, but at most 3 · 48
    assert ahead(ExponentialCurve(cap=1.5), [6, 12, 24, 48]) == 72.0


def test_no_exponential_goes_through_0() -> None:
    assert ahead(ExponentialCurve(), [8, 0, 4, 5]) == 5.0
    assert after(BestFit(), [0, 1, 2, 4, 8, 16])["curve"][0] == "linear"
    assert after(BestFit(), [0, 1, 2, 4, 8, 16, 32])["curve"][0] == "exponential"  # the 0 has left the window


@pytest.mark.parametrize("forecaster", [Linear(), Logarithmic(), ExponentialCurve(), BestFit()], ids=repr)
def test_two_values_are_too_few(forecaster: Forecaster) -> None:
    assert ahead(forecaster, [10], 5) == 10.0
    assert ahead(forecaster, [10, 20], 5) == 20.0
    assert ahead(forecaster, [10, 20, 30], 5) != 30.0


@pytest.mark.parametrize(
    ("values", "shape"),
    [
        ([5, 7, 9, 11, 13, 15], "linear"),
        ([5, 5, 5, 5, 5, 5], "linear"),
        ([100 + 50 * math.log(t) for t in range(1, 7)], "logarithmic"),
        ([100 - 50 * math.log(t) for t in range(1, 7)], "logarithmic"),
        ([math.exp(0.8 * t) for t in range(1, 7)], "exponential"),
        ([math.exp(-0.8 * t) for t in range(1, 7)], "exponential"),
        ([10, 10, 10, 10, 10, 200], "linear"),  # R² 0.43; logarithm 0.26, exponential 0.21
    ],
)
def test_the_best_fit_is_the_curve_that_made_the_values(values: list[float], shape: str) -> None:
    assert after(BestFit(), values)["curve"][0] == shape


@pytest.mark.parametrize("forecaster", [Linear(), BestFit(), BestFit(window=12, cap=1.2), BestFit(linear_log=True)], ids=repr)
def test_many_series_at_once_are_forecast_as_one_by_one(forecaster: Linear | BestFit) -> None:
    """Windows of every length, level ones, some with a 0, and of every shape more than arrays are made for."""
    chance = np.random.default_rng(5)
    histories: list[list[float]] = [[], [3], [3, 4], [0, 0, 0], [1e-200, 1, 1e100, 1], [9, 4, 2]]
    histories += [[8.0, 0.0, 4.0, 5.0], [7.0] * 4] * 20
    for growth in (1.0, 1.6, 0.5):
        histories += [list(chance.uniform(50, 150, n) * growth ** np.arange(n)) for n in (4, 12) for _ in range(20)]
    histories += [[100 + a * math.log(t) for t in range(1, 7)] for a in range(-30, 31, 3)]
    states = [after(forecaster, history) for history in histories]
    values = [float(value) for value in chance.choice([0.0, 7.0, 120.0, 5_000.0], len(states))]

    found = forecaster.update_all(states, values)
    alone = [forecaster.update(state, value) for state, value in zip(states, values, strict=True)]
    assert [state["window"] for state in found] == [state["window"] for state in alone]
    for together, single in zip(found, alone, strict=True):
        assert (together["curve"][0], together["curve"][4]) == (single["curve"][0], single["curve"][4])
        assert together["curve"][1:4] == pytest.approx(single["curve"][1:4], rel=1e-9, abs=1e-9)
    assert many.next_windows(found, 6) == pytest.approx([regression.next_window(state, 6) for state in found], rel=1e-12)
    json.dumps(found, allow_nan=False)


def test_the_exponential_can_be_left_out() -> None:
    doubling = [1, 2, 4, 8, 16, 32]
    assert ahead(BestFit(), doubling) == pytest.approx(64)
    # t̄ = 3.5, ȳ = 10.5, Σ(t − t̄)·y = −2.5 − 3 − 2 + 4 + 24 + 80 = 100.5, Σ(t − t̄)² = 17.5: a = 5.743, b = −9.6; at t = 7: 30.6
    assert ahead(BestFit(linear_log=True), doubling) == pytest.approx(30.6)


@given(st.lists(st.floats(0.1, 1e4), min_size=3, max_size=30), st.integers(1, 10))
@settings(max_examples=100)
def test_regressions_are_those_of_numpy(values: list[float], steps: int) -> None:
    n = len(values)
    t = np.arange(1, n + 1)
    at = n + steps
    near: Any = lambda wanted: pytest.approx(wanted, rel=1e-6, abs=1e-6 * max(values))  # noqa: E731
    if max(values) - min(values) < 1e-3:
        return
    assert ahead(Linear(n), values, steps) == near(max(0, np.polyval(np.polyfit(t, values, 1), at)))
    assert ahead(Logarithmic(n), values, steps) == near(max(0, np.polyval(np.polyfit(np.log(t), values, 1), math.log(at))))
    exponent = np.polyval(np.polyfit(t, np.log(values), 1), at)
    assert ahead(ExponentialCurve(n), values, steps) == near(min(3 * max(values), math.exp(min(float(exponent), 500.0))))


@given(st.lists(st.floats(0, 1e4), min_size=3, max_size=30))
@settings(max_examples=100)
def test_the_best_fit_has_the_largest_r2_as_it_is_defined(values: list[float]) -> None:
    if max(values) - min(values) < 1e-3:
        return
    n, mean = len(values), sum(values) / len(values)

    def r2(state: State) -> float:
        shape, a, b, _, limit = state["curve"]
        fitted = {
            "linear": lambda: [a * t + b for t in range(1, n + 1)],
            "logarithmic": lambda: [a * math.log(t) + b for t in range(1, n + 1)],
            "exponential": lambda: [min(limit, math.exp(a * t + b)) for t in range(1, n + 1)],
        }[shape]()
        return float(1 - sum((v - f) ** 2 for v, f in zip(values, fitted, strict=True)) / sum((v - mean) ** 2 for v in values))

    best = after(BestFit(n), values)
    assert best["curve"][3] == pytest.approx(r2(best), abs=1e-6)
    others: list[Forecaster] = [Linear(n), Logarithmic(n), *([ExponentialCurve(n)] if min(values) > 0 else [])]
    assert r2(best) >= max(r2(after(other, values)) for other in others) - 1e-9


def test_a_curve_that_grows_beyond_floats_is_capped() -> None:
    assert ahead(ExponentialCurve(), [1e-300, 1e-100, 1e100], 40) == pytest.approx(3e100)


# Holt, with and without a season.


def test_holt_by_hand() -> None:
    # 10: level 10, trend 0. 20: level 0.5·20 + 0.5·10 = 15, trend 0.4·5 = 2.
    # 10: level 0.5·10 + 0.5·(15 + 0.5·2) = 13, trend 0.4·(13 − 15) + 0.6·0.5·2 = −0.2
    holt = Holt(alpha=0.5, beta=0.4, damping=0.5)
    state = after(holt, [10, 20, 10])
    assert (state["level"], state["trend"]) == (13.0, pytest.approx(-0.2))
    assert holt.ahead(state) == pytest.approx(13 - 0.2 * 0.5)
    assert holt.ahead(state, 2) == pytest.approx(13 - 0.2 * (0.5 + 0.25))


def test_holt_follows_a_line_and_stops_at_0() -> None:
    rising = range(0, 1000, 5)
    assert ahead(Holt(damping=1.0), rising, 4) == pytest.approx(995 + 20)
    assert ahead(Holt(damping=1.0), [*range(1000, 0, -5)], 40) == 0.0


@given(st.lists(rates, min_size=1, max_size=15), st.integers(1, 9))
def test_without_a_season_it_is_holt(values: list[float], steps: int) -> None:
    # fewer than 16 values have no season of 4 or more that 8q ≤ n/2 would allow
    assert ahead(HoltWinters(), values, steps) == ahead(Holt(), values, steps)


@pytest.mark.parametrize("seed", range(5))
def test_noise_and_random_walks_have_no_season(seed: int) -> None:
    rng = np.random.default_rng(seed)
    noise = rng.normal(100, 10, 600)
    walk = 1000 + np.cumsum(rng.normal(0, 1, 600))
    steps = np.repeat(rng.integers(1, 50, 12), 50)
    trend = 5 * np.arange(600) + noise
    for values in (noise, walk, steps, trend, np.exp(rng.normal(0, 1.5, 600))):
        assert season(values.tolist()) == 0
        assert ahead(HoltWinters(), values.tolist(), 3) == ahead(Holt(), values.tolist(), 3)


@pytest.mark.parametrize("length", [700, 1500])
def test_noise_on_a_slow_swing_is_no_season(length: int) -> None:
    for seed in range(3):
        assert season(sine(length, 1_000, noise=0.5, seed=seed)) == 0


@pytest.mark.parametrize("length", [8, 12, 24, 60, 97])
@pytest.mark.parametrize("noise", [0.0, 5.0])
def test_a_season_is_found(length: int, noise: float) -> None:
    values = sine(length, 6 * length, noise)
    assert season(values) == pytest.approx(length, abs=max(1, 0.02 * length) if noise else 0)
    assert season([value + 0.5 * t for t, value in enumerate(values)]) == pytest.approx(length, abs=max(1, 0.02 * length))


def test_what_a_season_looks_like_does_not_matter() -> None:
    pulses = ([900.0] + [100.0] * 19) * 8
    sawtooth = [float(t % 15) for t in range(120)]
    assert season(pulses) == 20
    assert season(sawtooth) == 15
    assert season(sawtooth, known=30) == 30  # a multiple of a season repeats too
    assert season(sawtooth, known=31) == 15
    assert season([1e100, 0.0] * 50) == 4  # the shortest that is looked for


@pytest.mark.parametrize("values", [[], [1.0], [0.0] * 100, [5.0] * 100, [t / 3 for t in range(200)]])
def test_nothing_to_find_a_season_in(values: list[float]) -> None:
    assert season(values) == 0


def test_the_season_is_in_the_forecast() -> None:
    model = HoltWinters()
    values = sine(24, 144)
    state = after(model, values)
    for steps in (1, 6, 12, 18, 24, 30):
        wanted = 100 + 50 * math.sin(2 * math.pi * (143 + steps) / 24)
        assert model.ahead(state, steps) == pytest.approx(wanted, abs=1.0)
    # half a season ahead Holt sees a line where there is a turn
    assert abs(ahead(Holt(), values, 12) - wanted) > 20
    pulses = ([900.0] + [100.0] * 19) * 8
    assert [round(ahead(model, pulses, steps)) for steps in (1, 2, 20, 21)] == [900, 100, 100, 900]


def test_the_season_is_learned_further_by_hand() -> None:
    # lifts −10, 0, 10, 0 and the level 100: 95 comes where −10 was due. The level of 95 + 10 is 0.5·105 + 0.5·100 = 102.5,
    # the lift 0.2·(95 − 102.5) − 0.8·10 = −9.5; the next forecast is the level plus 0.
    model = HoltWinters(alpha=0.5, beta=0.0, gamma=0.2)
    state = {"history": [], "unsearched": 0, "season": [-10.0, 0.0, 10.0, 0.0], "holt": {"level": 100.0, "trend": 0.0}}
    state = dict(model.update(state, 95.0))
    assert state["season"] == [0.0, 10.0, 0.0, pytest.approx(-9.5)]
    assert model.ahead(state) == 102.5
    assert model.ahead(state, 4) == pytest.approx(93.0)


def test_a_season_begins_with_its_mean_without_the_trend() -> None:
    # 1 more with each value, and lifts of −3, 1, 3, −1: nothing else is left
    values = [100.0 + t + (-3, 1, 3, -1)[t % 4] for t in range(40)]
    model = HoltWinters(damping=1.0)
    state = model._begun(values, 4)
    assert state["season"] == pytest.approx([-3, 1, 3, -1])
    assert model.ahead(state, 3) == pytest.approx(100 + 42 + 3, abs=0.1)


def test_a_known_season_stays_while_it_is_as_good() -> None:
    sawtooth = [float(t % 15) for t in range(120)]
    model = HoltWinters()
    state = {"history": sawtooth[:119], "unsearched": 100, **model._begun(sawtooth[:119], 30)}
    assert len(model.update(state, sawtooth[119])["season"]) == 30


def test_a_season_that_ends_is_given_up() -> None:
    model = HoltWinters(history=128)
    state = after(model, sine(16, 128))
    assert len(state["season"]) == 16
    state = after(model, np.random.default_rng(1).normal(100, 20, 200).tolist(), state)
    assert state["season"] == []
    assert len(state["history"]) == 128


# What follows what.


def test_markov_by_hand() -> None:
    # bins of 50: 10→0, 60→1, 20→0, 110→2, 30→0, 70→1, 40→0. After bin 0 came bin 1 twice and bin 2 once; their means are 65
    # and 110: (2·65 + 110)/3 = 80. From there all goes back to bin 0, whose mean is (10 + 20 + 30 + 40)/4 = 25.
    state = after(Markov(), [10, 60, 20, 110, 30, 70, 40])
    assert state["counts"] == {"0": {"1": 2, "2": 1}, "1": {"0": 2}, "2": {"0": 1}}
    assert Markov().ahead(state) == pytest.approx(80)
    assert Markov().ahead(state, 2) == pytest.approx(25)
    assert Markov().ahead(state, 3) == pytest.approx(80)


def test_what_nothing_has_followed_stays() -> None:
    assert ahead(Markov(), [10, 60, 170], 3) == 170.0
    state = after(Markov(), [10, 170, 20])  # bin 0 is followed by bin 3, and that by bin 0
    assert Markov().ahead(state) == 170.0
    state = after(Markov(), [10, 20, 170, 15])
    assert Markov().ahead(state) == pytest.approx(0.5 * 15 + 0.5 * 170)


def test_the_last_bin_has_all_rates_above_it() -> None:
    assert set(after(Markov(bins=3), [10, 120, 1e9, 1e100])["counts"]) == {"0", "2"}


@given(st.lists(rates, min_size=1, max_size=60), st.integers(1, 6))
@settings(max_examples=50)
def test_markov_stays_among_what_was_seen(values: list[float], steps: int) -> None:
    forecast = ahead(Markov(quantum=1e4, bins=20), values, steps)
    assert min(values) * (1 - 1e-9) <= forecast <= max(values) * (1 + 1e-9)


# The ensemble.


def regret(ensemble: Ensemble, values: Sequence[float]) -> tuple[float, dict[str, float], int]:
    """The discounted losses of the ensemble and of each member, by definition; and how many there were."""
    state, own, number = ensemble.initial(), 0.0, 0
    members: dict[str, float] = dict.fromkeys(state["members"], 0.0)
    for value in values:
        forecast = ensemble.ahead(state)
        if forecast is not None:
            number += 1
            missed = {name: abs((ensemble._members[name].ahead(state["members"][name]) or 0.0) - value) for name in members}
            worst = max(*missed.values(), 1e-9 * value) or 1.0
            own = ensemble.discount * own + abs(forecast - value) / worst
            members = {name: ensemble.discount * loss + missed[name] / worst for name, loss in members.items()}
        state = ensemble.update(state, value)
    assert state["losses"] == pytest.approx(members)
    return own, members, number


series = st.one_of(
    st.lists(rates, max_size=60),
    st.lists(st.sampled_from([0.0, 1.0, 100.0]), max_size=60),
    st.builds(lambda block, times: block * times, st.lists(rates, min_size=1, max_size=6), st.integers(1, 12)),
)


@given(
    values=series,
    discount=st.sampled_from([0.0, 0.5, 0.9, 0.99]),
    rate=st.sampled_from([0.1, 1.0, 2.0, 10.0]),
    members=st.sampled_from(["last, linear", "last, moving-average, best-fit, holt-winters", "last, markov, exponential"]),
)
@settings(max_examples=150)
def test_the_regret_is_bounded(values: list[float], discount: float, rate: float, members: str) -> None:
    ensemble = Ensemble(members, discount, rate)
    own, losses, number = regret(ensemble, values)
    bound = math.log(len(losses)) / rate + rate / 8 * sum(discount**age for age in range(number))
    for loss in losses.values():
        assert own <= loss + bound + 1e-5  # rounding, counted as a share of 1e-9 of the value


def test_a_series_made_against_it_costs_no_more() -> None:
    """Every value proves the heavier member wrong: then there is regret, and it is within the bound."""
    ensemble = Ensemble("last, moving-average", 0.9, 2.0)
    values = [50.0]
    state = after(ensemble, values)
    for _ in range(200):
        last, mean = values[-1], sum(values[-6:]) / len(values[-6:])
        above = (last <= mean) == (ensemble.weights(state)["last"] > 0.5)
        values.append(60.0 if above else 40.0)
        state = ensemble.update(state, values[-1])
    own, losses, number = regret(ensemble, values)
    bound = math.log(2) / 2 + 2 / 8 * (1 - 0.9**number) / 0.1
    assert bound == pytest.approx(2.85, abs=0.01)
    assert 1 < own - min(losses.values()) <= bound


def test_rounding_is_no_error() -> None:
    state = after(Ensemble(), [427366.8499857725] * 30)
    assert max(state["losses"].values()) < 1e-5


def test_weights_by_hand() -> None:
    # 10, 20: both forecast 10 and miss by 10, the worst: losses 1 and 1. 30: last says 20, the mean 15, they miss by 10 and
    # 15: L = 0.5·1 + 10/15 = 1.1667 and 0.5·1 + 1 = 1.5. The weights are as e^(−2·0.5·L), 0.3114 to 0.2231: 0.5826 and 0.4174.
    # Next: last says 30, the mean 20: 0.5826·30 + 0.4174·20 = 25.83
    ensemble = Ensemble("last, moving-average", discount=0.5, rate=2.0)
    state = after(ensemble, [10, 20, 30])
    assert state["losses"] == pytest.approx({"last": 7 / 6, "moving-average": 1.5})
    assert ensemble.weights(state) == pytest.approx({"last": 0.5826, "moving-average": 0.4174}, abs=1e-4)
    assert ensemble.ahead(state) == pytest.approx(25.826, abs=1e-3)
    # The errors: ln(20/10), and ln(30/17.5), the weights having been equal.
    assert state["errors"] == pytest.approx([math.log(2), math.log(30 / 17.5)])


def test_it_follows_whoever_is_right_lately() -> None:
    ensemble = Ensemble()
    rng = np.random.default_rng(5)
    noise = [100 + x for x in rng.normal(0, 10, 60)]
    line = [100 + 8.0 * t for t in range(60)]
    state = after(ensemble, noise)
    assert max(ensemble.weights(state), key=ensemble.weights(state).__getitem__) == "moving-average"
    state = after(ensemble, line, state)
    assert ensemble.weights(state)["best-fit"] > 0.5
    assert ensemble.weights(state)["moving-average"] < 0.01
    assert ensemble.ahead(state) == pytest.approx(line[-1] + 8, rel=0.01)


@given(values=st.lists(rates, min_size=1, max_size=40), steps=st.integers(1, 10))
@settings(max_examples=60)
def test_the_mean_is_between_the_members_and_quantiles_rise(values: list[float], steps: int) -> None:
    ensemble = Ensemble("last, linear, moving-average")
    state = after(ensemble, values)
    weights = ensemble.weights(state)
    assert sum(weights.values()) == pytest.approx(1)
    forecasts = [ensemble._members[name].ahead(state["members"][name], steps) or 0.0 for name in weights]
    forecast = ensemble.ahead(state, steps)
    assert forecast is not None
    assert min(forecasts) - 1e-6 <= forecast <= max(forecasts) + 1e-6
    quantiles = [ensemble.quantile(state, q, steps) for q in (0.0, 0.01, 0.25, 0.49, 0.5, 0.75, 0.9, 0.99, 1.0)]
    known = [quantile for quantile in quantiles if quantile is not None]
    assert len(known) == len(quantiles)
    assert known == sorted(known)
    assert 0 <= known[0] <= known[-1] <= 10.000001 * forecast


def test_a_quantile_by_hand() -> None:
    # Errors, the newest last, with weights 0.25, 0.5 and 1, and the doubt, ln 2, with 0.125: 1.875 in all.
    # In order: −0.1 (0.5), 0.0 (1.0), 0.3 (0.25), 0.693 (0.125): up to each 0.267, 0.8, 0.933 and 1 of the weight.
    ensemble = Ensemble("last", error_discount=0.5, doubt=2.0)
    state = {**after(ensemble, [100]), "errors": [0.3, -0.1, 0.0]}
    assert ensemble.quantile(state, 0.75) == 100.0
    assert ensemble.quantile(state, 0.9) == pytest.approx(100 * math.exp(0.3))
    assert ensemble.quantile(state, 0.95) == pytest.approx(200.0)
    # Four steps ahead errors are twice as large. Below 0.5 the doubt is on the other side: −0.693 (0.125), −0.1 (0.5) ...
    assert ensemble.quantile(state, 0.9, steps=4) == pytest.approx(100 * math.exp(0.6))
    assert ensemble.quantile(state, 0.2) == pytest.approx(100 * math.exp(-0.1))
    assert ensemble.quantile(state, 0.05) == pytest.approx(50.0)


def test_quantiles_are_careful_at_first() -> None:
    ensemble = Ensemble()
    assert ensemble.quantile(ensemble.initial(), 0.9) is None
    known = [ensemble.quantile(after(ensemble, [100.0] * n), 0.9) or 0.0 for n in range(1, 12)]
    assert known == pytest.approx([150.0] * 9 + [100.0] * 2)  # n values, n − 1 errors: careful up to 8 of them
    assert ensemble.quantile(after(ensemble, [100.0] * 16), 0.95) == pytest.approx(150.0)
    assert ensemble.quantile(after(ensemble, [100.0] * 17), 0.95) == pytest.approx(100.0)


@pytest.mark.parametrize("horizon", [1, 4])
@pytest.mark.parametrize("walk", [False, True])
def test_a_quantile_is_what_it_says(horizon: int, walk: bool) -> None:
    rng = np.random.default_rng(11)
    shocks = rng.normal(0, 0.05 if walk else 0.2, 1_000)
    values = (1000 * np.exp(np.cumsum(shocks) if walk else shocks)).tolist()
    ensemble = Ensemble("last, moving-average, linear", horizon=horizon)
    state, said = ensemble.initial(), []
    for value in values:
        state = ensemble.update(state, value)
        said.append(ensemble.quantile(state, 0.9, horizon) or 0.0)
    below = [value <= quantile for value, quantile in zip(values[horizon:], said, strict=False)][30:]
    assert sum(below) / len(below) == pytest.approx(0.9, abs=0.03)


def test_errors_are_of_forecasts_so_far_ahead_and_forgotten() -> None:
    ensemble = Ensemble("last", error_discount=0.5, horizon=2)
    state = after(ensemble, [10, 20, 40])
    assert state["awaited"] == [20.0, 40.0]
    assert state["errors"] == pytest.approx([math.log(4)])  # 40, when 10 was forecast
    state = after(ensemble, [10.0] * 20, state)
    assert len(state["awaited"]) == 2
    assert len(state["errors"]) == 5  # 1, 0.5, 0.25, 0.125, 0.0625; the next would count less than 0.05


def test_values_of_0_are_no_trouble() -> None:
    ensemble = Ensemble()
    state = after(ensemble, [0.0] * 30)
    assert (ensemble.ahead(state), ensemble.quantile(state, 0.99)) == (0.0, 0.0)
    state = after(ensemble, [100.0], state)
    assert state["errors"][-1] == pytest.approx(math.log(10))  # it has no end, and counts as a factor of ten
    state = after(ensemble, [0.0], state)
    assert state["errors"][-1] == pytest.approx(-math.log(10))


class Seven(Last):
    """A user's own."""

    name: ClassVar[str] = "seven"

    def ahead(self, state: State, steps: int = 1) -> float | None:
        return None if state["last"] is None else 7.0


def test_members_by_name_and_by_class() -> None:
    own = f"{__name__}:Seven"
    assert ahead(Ensemble(members=own), [1, 2, 3]) == 7.0
    for wrong, said in (
        ("last, lats", "no forecast policy is named 'lats'"),
        ("last, last", "each forecaster once"),
        ("", "no forecast policy is named ''"),
        ("last, ensemble", "not itself"),
    ):
        with pytest.raises(OptionError, match=said):
            Ensemble(members=wrong)


def test_parameters_out_of_range_are_refused() -> None:
    for make in (lambda: Linear(2), lambda: ExponentialCurve(cap=0.5), lambda: Holt(alpha=0.0), lambda: Ensemble(discount=1.0)):
        with pytest.raises(OptionError):
            make()


# The cost of it.
