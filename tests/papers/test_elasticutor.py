"""``springtide papers elasticutor``: what the simulator comes to by hand, what it never does, and a short run of all."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from springtide.cli.main import cli
from springtide.errors import OptionError
from springtide.papers.elasticutor import engine as elastic
from springtide.papers.elasticutor import setup as elasticutor_setup
from springtide.papers.elasticutor.control import balance, schedule
from springtide.papers.elasticutor.engine import Elastic, ElasticOperator, ElasticResult, Keys, run
from springtide.papers.elasticutor.exchange import scheduling_s
from springtide.papers.elasticutor.experiments import EXPERIMENTS
from springtide.papers.elasticutor.history import History, percentile
from springtide.papers.elasticutor.micro import recoveries
from springtide.papers.elasticutor.moves import OneByOne, Stopping
from springtide.papers.elasticutor.rows import between
from springtide.papers.elasticutor.setup import CENTRIC, ELASTIC, NAIVE, STATIC, Floats, Lab, exchange, micro, shuffled, single
from springtide.papers.elasticutor.state import ExecutorState
from springtide.papers.rows import NOT_REPRODUCED, REPRODUCED

KEYS = ["paper", "experiment", "row", "series", "x", "published", "measured", "unit", "verdict", "note"]


def fixed(*weights: float) -> Keys:
    """Keys whose shares never change."""

    def shares(rng: np.random.Generator) -> Iterator[Floats]:
        while True:
            yield np.array(weights) / sum(weights)

    return Keys(f"fixed {weights}", shares)


def even(keys: int = 1000) -> Keys:
    return fixed(*[1.0] * keys)


SMALL = {"executors": 2, "shards": 32, "nodes": 2, "cores_per_node": 4, "upstream": 2, "seconds": 10.0}


def of(paradigm: str, keys: Keys | None = None, operator: ElasticOperator | None = None, **given: Any) -> Elastic:
    return Elastic(paradigm, keys or even(), (operator or ElasticOperator(),), **{**SMALL, **given})


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elastic, "WARM_UP_S", 10.0)


# what it comes to by hand


@pytest.mark.parametrize("paradigm", elastic.PARADIGMS)
def test_one_core_does_a_thousand_tuples_a_second(paradigm: str) -> None:
    """1 ms each; 2 senders hold 1,024 tuples each and the executor's queue 1,024, or 64 more in an elastic one."""
    found = run(of(paradigm, executors=1, nodes=1, cores_per_node=1))
    assert found.throughput == pytest.approx(1000, rel=1e-6)
    queue = 1024 + (64 if paradigm in (ELASTIC, NAIVE) else 0)
    assert found.latency_s == pytest.approx((2048 + queue) / 1000, rel=0.02)
    assert found.p99_s == pytest.approx(found.latency_s, rel=0.02)
    assert len(found.moves) == 0 and found.migrated == 0 and found.remote == 0


def test_one_slow_executor_holds_up_all() -> None:
    """4 cores; one key has half of the tuples, so its core needs 0.5 ms of a source tuple, whatever the others do."""
    hot = fixed(500.0, *[1.0] * 500)
    static = run(of(STATIC, hot, nodes=1))
    assert static.throughput <= 1000 / 0.5 + 1
    alone = run(of(ELASTIC, hot, nodes=1, executors=1, shards=256))
    # the balancer leaves the hot shard alone on its core, but for shards that nothing would be gained by moving
    assert static.throughput < alone.throughput <= 2000 + 1
    assert alone.throughput > 1900


def test_the_interface_bounds_what_comes_in() -> None:
    """2 nodes: half of the tuples come from the other one. 125 MB/s of 1 MB each are 125 a second, 250 for an executor on each
    node, 500 for both."""
    found = run(of(STATIC, operator=ElasticOperator(bytes_in=1e6), executors=2, shards=500))
    # each of 8 cores has an eighth, give or take the keys' luck
    assert 400 < found.throughput <= 500


def test_remote_cores_cost_their_home_node() -> None:
    """One executor at home on node 0, with 4 cores there and 4 on node 1, even load: half of the tuples go on to node 1."""
    found = run(of(ELASTIC, executors=1, shards=1000))
    assert found.remote == pytest.approx(found.throughput * 128 / 2, rel=0.1)
    wide = run(of(ELASTIC, operator=ElasticOperator(bytes_in=1e6), executors=1, shards=1000))
    # node 0 sends on half of 1 MB, and its senders' half of the tuples goes to any node, so half of it away: 0.75 MB a tuple
    assert wide.throughput == pytest.approx(125 / 0.75, rel=0.1)


def test_a_move_within_a_node_and_between_nodes() -> None:
    """A shard of 1.25 MB: 2 pending tuples of 1 ms, and 10 ms at 125 MB/s if it goes to another node, more as tuples cross."""
    setup = of(ELASTIC, operator=ElasticOperator(state_bytes=1.25e6), executors=1, shards=8)
    state = ExecutorState.of(setup, np.random.default_rng(0))
    state.spread(np.full(1000, 0.001))
    moves = OneByOne(setup, state)
    assert state.shard_core.tolist() == list(range(8)) and state.core_node.tolist() == [0, 0, 0, 0, 1, 1, 1, 1]
    moves.ask(0, np.array([0, 1]), np.array([2, 5]))
    moves.advance(0.02)
    assert state.shard_core.tolist() == [2, 5, 2, 3, 4, 5, 6, 7]
    (at_1, away_1, sync_1, took_1), (at_2, away_2, sync_2, took_2) = moves.done
    assert (away_1, away_2) == (False, True)
    assert (at_1, sync_1, took_1) == pytest.approx((0.002, 0.002, 0.0))
    assert (at_2, sync_2, took_2) == pytest.approx((0.014, 0.002, 0.010))
    assert moves.taken == pytest.approx(1.25e6)
    assert moves.claimed[1][0] == moves.claimed[0][1] == pytest.approx(1.25e6 / 0.02) and not moves.stopped
    assert (moves.open == 1.0).all()  # nothing was sent yet, so the receiver met no tuple of a paused shard


def test_the_receiver_waits_at_the_first_tuple_of_a_paused_shard() -> None:
    """The only shard that moves has an eighth of 8,000 tuples/s: after τ it waits with a chance of 1 − e^(−1000·τ). In 2 ms
    that is 2 − (1 − e^−2) = 1.135 ms."""
    setup = of(ELASTIC, fixed(*[1.0] * 8), executors=1, shards=8)
    state = ExecutorState.of(setup, np.random.default_rng(0))
    state.spread(np.full(8, 0.125))
    state.share[:] = 0.125
    state.last_rate = 8000.0
    moves = OneByOne(setup, state)
    moves.ask(0, np.array([0]), np.array([1]))
    moves.advance(0.02)
    assert moves.open.tolist() == pytest.approx([1 - 0.00113534 / 0.02], abs=1e-6)


def test_resource_centric_stops_all_senders_for_every_shard() -> None:
    """2 senders: 2·2·2 ms for the messages. A state of 1.25 MB goes twice over 125 MB/s, 20 ms, and counts once."""
    setup = of(CENTRIC, operator=ElasticOperator(state_bytes=1.25e6))
    state = ExecutorState.of(setup, np.random.default_rng(0))
    state.spread(np.full(1000, 0.001))
    moves = Stopping(setup, state)
    moves.advance(0.02)
    assert not moves.stopped and moves.undisturbed()
    moves.ask(0, np.array([0, 1]), np.array([7, 1]))
    taken = 0.0
    for _ in range(2):
        moves.advance(0.02)
        taken += moves.taken
        assert moves.stopped
    assert taken == pytest.approx(1.25e6)
    assert [move[1] for move in moves.done] == [True, False]
    assert moves.done[0] == pytest.approx((0.048, True, 0.008, 0.020))
    assert moves.done[1] == pytest.approx((0.056, False, 0.008, 0.0))
    assert not moves.undisturbed()
    moves.advance(0.02)
    assert not moves.stopped and moves.undisturbed()


def test_resource_centric_waits_for_the_cores_queue() -> None:
    setup = of(CENTRIC)
    state = ExecutorState.of(setup, np.random.default_rng(0))
    state.spread(np.full(1000, 0.001))
    state.waiting[0] = 50.0
    moves = Stopping(setup, state)
    moves.ask(0, np.array([0]), np.array([1]))
    for _ in range(4):
        moves.advance(0.02)
        elastic._flow(setup, state, moves)
        assert state.sent.sum() == 0
    # 50 tuples of 1 ms are worked off while the 8 ms of messages pass and after: until 50 ms, seen at the next step, 60 ms
    assert len(moves.done) == 1 and moves.done[0][2] == pytest.approx(0.060)


def test_latencies_are_first_come_first_served() -> None:
    """10 tuples come in the first second and 5 leave in each of two: the last of them waits a second. Of 4 in the senders the
    last was made when 4 fewer had been sent."""
    book = History(3, 1)
    book.rate[:] = 10.0, 0.0, 0.0
    book.sent[:, 0] = 10.0, 0.0, 0.0
    book.served[:, 0] = 5.0, 5.0, 0.0
    book.backlog[:] = 4.0, 4.0, 4.0
    blocked, inside = book.latencies(1.0)
    assert inside[0, 0] == pytest.approx(1.0)
    assert blocked[0] == pytest.approx(1 - 10 / 14)
    assert percentile(np.array([1.0, 2.0, 3.0]), np.array([98.0, 1.0, 1.0]), 0.99) == 2.0
    assert math.isnan(percentile(np.array([1.0]), np.array([0.0]), 0.99))


# what holds whatever happens


@pytest.mark.parametrize("paradigm", elastic.PARADIGMS)
def test_no_tuple_and_no_core_is_lost(paradigm: str) -> None:
    """Two operators, 100 keys shuffled every 2 s, step by step: what was sent is served or waits; every shard is on a core of
    its own executor; every core has one executor and every executor a core; no queue overflows."""
    operators = (ElasticOperator(), ElasticOperator(0.0005, 256.0, 64.0, 1e5, 2.0, from_source=False))
    setup = replace(of(paradigm, nodes=4, shards=64), operators=operators)
    rng = np.random.default_rng(1)
    state = ExecutorState.of(setup, rng)
    moves = OneByOne(setup, state) if setup.elastic else Stopping(setup, state)
    weights = np.arange(1.0, 101.0) ** -0.5
    sent = served = np.zeros(len(state.home))
    before, handed = state.core_group, 0
    for step in range(400):
        if step % 100 == 0:
            state.spread(rng.permutation(weights / weights.sum()))
            assert state.share.sum() == pytest.approx(3.0)
        if step % 25 == 24 and paradigm != STATIC:
            state.close_window(keep=moves.undisturbed())
            if step % 50 == 49:
                schedule(setup, state, moves, rng)
            balance(state, moves)
        moves.advance(0.02)
        elastic._flow(setup, state, moves)
        state.hand_over()
        sent, served = sent + state.sent, served + state.served
        assert state.waiting == pytest.approx(sent - served, abs=1e-3)
        assert (state.waiting >= -1e-6).all() and (state.served >= 0).all()
        assert (state.waiting <= state.room + 64 * 8).all()  # a core that went took its part of the queue's room along
        assert (state.core_group[state.shard_core] == state.shard_group).all()
        handed += int((state.core_group != before).sum())
        before = state.core_group
        assert set(state.core_group) == set(range(state.groups))
        assert np.bincount(state.core_next, minlength=state.groups).min() >= 1
        load = np.bincount(state.shard_core, state.share * state.cost_s, minlength=len(state.core_node))
        assert state.core_load == pytest.approx(load, abs=1e-12)
        assert (state.core_shards == np.bincount(state.shard_core, minlength=len(state.core_node))).all()
        # nobody serves more than the cores could do
        assert state.served @ state.mean_cost_s <= 0.02 * len(state.core_node) * (1 + 1e-9)
    if paradigm != STATIC:
        assert len(moves.done) > 10
    if setup.elastic:
        assert handed > 0  # and cores did change hands
    assert served.sum() > 1000


def test_the_same_seed_gives_the_same() -> None:
    setup = of(NAIVE, shuffled(0.5, 12))
    first, again, other = run(setup, 3), run(setup, 3), run(setup, 4)
    assert first.throughput == again.throughput and (first.p99s_s == again.p99s_s).all()
    assert first.throughput != other.throughput


def test_what_cannot_be_set_up() -> None:
    with pytest.raises(OptionError, match="no paradigm 'storm', but static, resource-centric"):
        of("storm")
    with pytest.raises(OptionError, match="9 executors need a core each, and there are 8"):
        run(of(ELASTIC, executors=9))


# the papers' set-ups


def test_the_set_ups_are_the_papers() -> None:
    default = micro(ELASTIC)
    assert (default.nodes * default.cores_per_node, default.executors * default.shards) == (256, 8192)
    assert default.keys.every_s == 30.0 and micro(STATIC, omega=0).keys.every_s == math.inf
    weights = next(shuffled(0.5, 2).shares(np.random.default_rng(0)))
    assert len(weights) == 10_000 and weights.sum() == pytest.approx(1)
    assert weights.max() == pytest.approx(0.005, rel=0.02)  # 1/(2·√10,000 − 1.46)
    state = ExecutorState.of(default, np.random.default_rng(0))
    assert (state.core_node == np.repeat(np.arange(32), 8)).all() and (state.core_group == state.core_node).all()
    state = ExecutorState.of(single(20), np.random.default_rng(0))
    assert state.core_node.tolist() == [0] * 8 + [1] * 8 + [2] * 4 and state.home.tolist() == [0]
    stocks = exchange(ELASTIC, 8)
    assert len(stocks.operators) == 12 and stocks.executors == 2
    # 96 B in, 11 · 160 B out of the transactor; the others take 160 B each
    assert (stocks.operators[0].bytes_out, stocks.operators[1].bytes_in) == (1760.0, 160.0)
    assert sum(operator.cost_s for operator in stocks.operators) == pytest.approx(elasticutor_setup.WORK_S)
    shares = elasticutor_setup.traded().shares(np.random.default_rng(0))
    before, after = next(shares).copy(), next(shares)
    assert 10 < (abs(after / before - np.median(after / before)) > 1e-9).sum() < 90  # 1,200/30 = 40 stocks a second


def test_a_recovery_ends_where_it_stays_above() -> None:
    """10 for 30 s, but 2 in the first three seconds and 9 in the sixth, which is below 9.5; then 10 throughout."""
    series = np.full(60, 10.0)
    series[:3], series[5] = 2.0, 9.0
    empty = np.zeros((0, 3))
    assert recoveries(ElasticResult(9.0, 0.0, 0.0, series, series, series, empty, 0.0, 0.0)) == [6.0, 0.0]


def test_neither_side_of_between_is_better() -> None:
    claim = between(1, 3, "1 to 3 s", "because")
    assert [claim.verdict(value) for value in (0.5, 1, 3, 3.5)] == [NOT_REPRODUCED, REPRODUCED, REPRODUCED, NOT_REPRODUCED]
    assert claim.remark(0.5) == "1 to 3 s; because"


def test_every_schedule_is_timed() -> None:
    times = scheduling_s(8, 3)
    assert len(times) == 3 and all(seconds > 0 for seconds in times)


# the command


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[dict[str, Any]], Path]:
    """Figures 6 and 7 over 30 s, a shuffle at ω = 2; and figure 11, which shows the same runs."""
    folder = tmp_path_factory.mktemp("plots")
    chosen = [part for number in ("6", "7", "11") for part in ("--figure", number)]
    command = ["papers", "elasticutor", "--seeds", "1", "--seconds", "30", *chosen, "--json", "--plots", str(folder)]
    result = CliRunner().invoke(cli, command)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout), folder


@pytest.mark.long
def test_rows_are_as_agreed(short: tuple[list[dict[str, Any]], Path]) -> None:
    rows, _ = short
    assert {row["experiment"] for row in rows} == {"figure 6", "figure 7", "figure 11"}
    for row in rows:
        assert list(row)[: len(KEYS)] == KEYS
        assert row["paper"] == "elasticutor" and row["note"]
        assert row["verdict"] in ("reproduced", "better", "not reproduced")
        assert math.isfinite(row["measured"])


@pytest.mark.long
def test_elasticutor_bears_changes_that_resource_centric_does_not(short: tuple[list[dict[str, Any]], Path]) -> None:
    at = {(row["row"], row["series"]): row["measured"] for row in short[0]}
    for omega in (2, 4, 8, 16):  # once a minute is not within these 30 s
        name = f"throughput: ω = {omega}"
        assert at[name, ELASTIC] > max(at[name, STATIC], at[name, CENTRIC])
    assert at["throughput: ω = 2", CENTRIC] > at["throughput: ω = 2", STATIC]
    assert at["throughput: ω = 16", CENTRIC] < at["throughput: ω = 16", STATIC]
    assert at["loss at ω = 16", ELASTIC] < 15
    assert at["recovery", ELASTIC] < 4 < at["recovery", CENTRIC]
    assert at["synchronisation: between nodes", ELASTIC] == pytest.approx(2.0)
    assert at["synchronisation: between nodes", CENTRIC] > 128  # 2·32·2 ms, and the queue


@pytest.mark.long
def test_figures_are_drawn(short: tuple[list[dict[str, Any]], Path]) -> None:
    drawn = sorted(path.name for path in short[1].iterdir())
    assert drawn == ["elasticutor-figure-06.png", "elasticutor-figure-07.png"]  # figure 11 has nothing to go along an axis
    assert all(path.stat().st_size > 10_000 for path in short[1].iterdir())


def test_the_tables_on_the_terminal() -> None:
    command = ["papers", "elasticutor", "--seeds", "1", "--seconds", "30", "--figure", "11"]
    result = CliRunner().invoke(cli, command, env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    assert "figure 11" in result.stdout and "synchronisation: between nodes (ms)" in result.stdout
    assert "2 (2)" in result.stdout


@pytest.mark.parametrize("wrong", [["--figure", "17"], ["--table", "1"]])
def test_what_is_not_measured(wrong: list[str]) -> None:
    result = CliRunner().invoke(cli, ["papers", "elasticutor", *wrong])
    assert result.exit_code == 2
    assert "figure 6" in result.output and "table 3" in result.output


def test_every_experiment_is_there() -> None:
    assert list(EXPERIMENTS) == [*(f"figure {n}" for n in (*range(6, 17), 19)), "table 2", "table 3"]


def test_a_set_up_is_run_once(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, int]] = []
    empty = ElasticResult(1.0, 0.5, 0.5, np.ones(1), np.ones(1), np.ones(1), np.zeros((0, 3)), 0.0, 0.0)

    def noted(setup: Elastic, seed: int) -> ElasticResult:
        seen.append((setup.paradigm, seed))
        return empty

    monkeypatch.setattr(elasticutor_setup, "run", noted)
    lab = Lab(2)
    assert lab.throughput(micro(STATIC)) == 1.0 and lab.latency_ms(micro(STATIC)) == 500.0
    assert lab.throughput(micro(STATIC, skew=0.6)) == 1.0  # told apart by the keys' name
    assert seen == [(STATIC, 0), (STATIC, 1)] * 2
