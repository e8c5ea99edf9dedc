"""Elasticutor's figures 6 to 12 (section 5.1): changing keys, data intensity, state, skew, and what moving a shard takes.

The paper prints hardly a number for them, so the conclusions of its text are judged.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from springtide.papers.elasticutor.engine import Elastic, ElasticResult
from springtide.papers.elasticutor.rows import RATE, above, below, between, found, panel
from springtide.papers.elasticutor.setup import CENTRIC, ELASTIC, KB, MB, STATIC, THREE, Lab, micro
from springtide.papers.rows import Row

OMEGAS = (0, 1, 2, 4, 8, 16)
COSTS_MS, SIZES = (0.01, 0.1, 1.0), (128, 512, 2048, 8192)
STATES = {"32 KB": 32 * KB, "256 KB": 256 * KB, "1 MB": MB, "8 MB": 8 * MB, "32 MB": 32 * MB}
SKEWS = (0.0, 0.2, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
UPSTREAM = (1, 8, 32, 64, 128)

_CLOSED = (
    "the senders hold 1,024 tuples each and wait when these are not taken, so that latency is the tuples under way over the"
    " throughput, and cannot grow by more than the throughput falls"
)
_SMALL = (
    "128 B for 1 ms of work are 128 KB/s a core: 256 cores take 33 of an interface's 125 MB/s, and no network is congested;"
    " what bounds both is the first key, of which one core does 1,000 tuples/s"
)
_COARSE = "θ = 1.2 holds within each of 32 executors, and they have whole cores; resource-centric balances 256 cores at once"
_NEAR_HOME = (
    "after a shuffle an executor's part changes by about a core of its eight, and {:.0f} of 8,192 shards cross the network,"
    " those of different executors at the same time; perhaps the prototype moved more, or halted longer for each"
)
_TWO_MS = between(1.5, 2.5, "around 2 ms, within 0.5; calibrated on it", published=2.0)


def figure_6(lab: Lab) -> list[Row]:
    at = {(p, w): micro(p, w) for p in THREE for w in OMEGAS}
    rate = {key: lab.throughput(setup) for key, setup in at.items()}
    delay = {key: lab.latency_ms(setup) for key, setup in at.items()}
    made = []
    for w in OMEGAS:
        setups = {p: at[p, w] for p in THREE}
        stable = "stable: within 1.5 of ω = 0"
        many, few = max(rate[STATIC, w], rate[CENTRIC, w]), min(delay[STATIC, w], delay[CENTRIC, w])
        rates = {
            STATIC: between(rate[STATIC, 0] / 1.5, 1.5 * rate[STATIC, 0], stable),
            CENTRIC: above(rate[STATIC, w], "above static while ω is small") if w <= 2 else
            below(rate[CENTRIC, 2], "falls as ω grows: less than at 2"),
            ELASTIC: above(many, "above both") if w else above(0.9 * many, "without changes within a tenth of the better one"),
        }  # fmt: skip
        delays = {
            STATIC: between(delay[STATIC, 0] / 1.5, 1.5 * delay[STATIC, 0], stable),
            CENTRIC: below(delay[STATIC, w], "below static while ω is small", _CLOSED) if w <= 2 else
            above(delay[CENTRIC, 2], "grows with ω: more than at 2"),
            ELASTIC: below(few, "below both") if w else below(1.1 * few, "without changes within a tenth of the better one"),
        }  # fmt: skip
        made += panel(lab, 6, "throughput", f"ω = {w}", w, setups, rates, Lab.throughputs, RATE)
        made += panel(lab, 6, "latency", f"ω = {w}", w, setups, delays, Lab.latencies_ms, "ms")
    lost = 100 * (1 - rate[ELASTIC, 16] / rate[ELASTIC, 0])
    useless = f"useless: below static; {rate[CENTRIC, 16] / rate[ELASTIC, 16]:.0%} of Elasticutor's"
    growth = (delay[CENTRIC, 16] / delay[CENTRIC, 0] - 1) / max(delay[ELASTIC, 16] / delay[ELASTIC, 0] - 1, 1e-3)
    return [
        *made,
        found(6, "loss at ω = 16", ELASTIC, 16, [lost], "%", below(10.0, "marginal: at most 10 %")),
        found(6, "throughput over static's at ω = 16", CENTRIC, 16, [rate[CENTRIC, 16] / rate[STATIC, 16]], "ratio",
              below(1.0, useless)),
        found(6, "latency's growth to ω = 16 over Elasticutor's", CENTRIC, 16, [growth], "ratio",
              between(100, 1000, "2 to 3 orders of magnitude", _CLOSED)),
    ]  # fmt: skip


def recoveries(result: ElasticResult, every: int = 30) -> list[float]:
    """The seconds after each shuffle during which the throughput is below 95 % of its final value."""
    made = []
    for first in range(0, len(result.throughputs) - every + 1, every):
        part = result.throughputs[first : first + every]
        low = np.flatnonzero(part < 0.95 * np.median(part[-10:]))
        made.append(float(low[-1] + 1) if len(low) else 0.0)
    return made


def figure_7(lab: Lab) -> list[Row]:
    known = {p: lab.runs(micro(p)) for p in THREE}
    times = {p: [seconds for result in known[p] for seconds in recoveries(result)] for p in (CENTRIC, ELASTIC)}
    lower = [
        float((static.throughputs < elastic.throughputs).mean())
        for static, elastic in zip(known[STATIC], known[ELASTIC], strict=True)
    ]
    moved = np.mean([len(result.moves) for result in known[CENTRIC]]) / max(1.0, lab.seconds / 30)
    stop = np.mean([result.moves[:, 1:].sum(axis=1).mean() for result in known[CENTRIC] if len(result.moves)] or [0.0])
    shown = f"10 to 20 s; here {moved:.0f} shards a shuffle, each with a stop of {1000 * stop:.0f} ms"
    return [
        found(7, "recovery", ELASTIC, None, times[ELASTIC], "s", between(1, 3, "1 to 3 s")),
        found(7, "recovery", CENTRIC, None, times[CENTRIC], "s", between(10, 20, shown, "perhaps more were moved there")),
        found(7, "seconds below Elasticutor", STATIC, None, [100 * share for share in lower], "%",
              above(95.0, "consistently lower: in 95 % of the seconds at least")),
    ]  # fmt: skip


def figure_8(lab: Lab) -> list[Row]:
    made = []
    at = {(p, c, s): micro(p, cost_ms=c, size=s) for p in THREE for c in COSTS_MS for s in SIZES}
    rate = {key: lab.throughput(setup) for key, setup in at.items()}
    for c in COSTS_MS:
        for k, s in enumerate(SIZES):
            smaller = SIZES[max(0, k - 1)]
            claims = {p: below(1.01 * rate[p, c, smaller], "no more than with smaller tuples") for p in THREE}
            if (c, s) == (0.01, 2048):
                claims = {p: below(0.5 * rate[p, c, 128], "beyond the network: less than half of that of 128 B") for p in THREE}
            setups = {p: at[p, c, s] for p in THREE}
            made += panel(lab, 8, f"throughput, {c} ms", f"{s} B", s, setups, claims, Lab.throughputs, RATE)
        falls = {p: rate[p, c, 128] / rate[p, c, 8192] for p in THREE}
        most = max(falls[STATIC], falls[CENTRIC])
        note = f"from 128 B to 8 KB it falls by a factor of {falls[ELASTIC]:.3g}, the others by at most {most:.3g}"
        least, word = (1.001, "more") if c == 0.01 else (0.999, "no less")
        claim = above(least, f"{word} sensitive than the others; {note}", "the interfaces suffice for 8 KB as for 128 B")
        made.append(found(8, f"sensitivity to size at {c} ms", ELASTIC, c, [falls[ELASTIC] / most], "ratio", claim))
    return made


def figure_9(lab: Lab) -> list[Row]:
    made = []
    first = {p: (lab.throughput(micro(p)), lab.latency_ms(micro(p))) for p in THREE}
    for label, state in STATES.items():
        setups = {p: micro(p, state=state) for p in THREE}
        rate, delay = ({p: of(setup) for p, setup in setups.items()} for of in (lab.throughput, lab.latency_ms))
        base = "the baseline: it moves no state"
        rates = {
            STATIC: between(0.99 * first[STATIC][0], 1.01 * first[STATIC][0], base),
            CENTRIC: below(1.01 * first[CENTRIC][0], "drops as the state grows: no more than with 32 KB"),
            ELASTIC: above(rate[CENTRIC], "above resource-centric"),
        }
        delays = {
            STATIC: between(0.99 * first[STATIC][1], 1.01 * first[STATIC][1], base),
            CENTRIC: above(0.99 * first[CENTRIC][1], "grows with the state: no less than with 32 KB"),
            ELASTIC: below(delay[CENTRIC], "below resource-centric"),
        }
        if label == "32 MB":
            moved = np.mean([result.moves[:, 0].sum() for result in lab.runs(setups[ELASTIC])]) / max(1.0, lab.seconds / 30)
            rates |= {p: below(rate[STATIC], "below static", _NEAR_HOME.format(moved)) for p in (CENTRIC, ELASTIC)}
            delays |= {p: above(delay[STATIC], "above static", _NEAR_HOME.format(moved)) for p in (CENTRIC, ELASTIC)}
        made += panel(lab, 9, "throughput", label, state / KB, setups, rates, Lab.throughputs, RATE)
        made += panel(lab, 9, "latency", label, state / KB, setups, delays, Lab.latencies_ms, "ms")
    return made


def figure_10(lab: Lab) -> list[Row]:
    made = []
    even = lab.latency_ms(micro(ELASTIC, skew=0.0))
    for skew in SKEWS:
        setups = {p: micro(p, skew=skew) for p in THREE}
        rate, delay = ({p: of(setup) for p, setup in setups.items()} for of in (lab.throughput, lab.latency_ms))
        low, high = "up to α = 0.6", "from α = 0.7 on"
        rates = {
            STATIC: below(max(rate[CENTRIC], rate[ELASTIC]), "suffers: below the better one"),
            CENTRIC: above(rate[STATIC] if skew < 0.8 else rate[ELASTIC], "above static" if skew < 0.8 else
                           f"above Elasticutor {high}", _SMALL),
            ELASTIC: above(rate[CENTRIC], f"above resource-centric {low}", _COARSE) if skew <= 0.6 else
            below(rate[CENTRIC], f"below resource-centric {high}", _SMALL),
        }  # fmt: skip
        delays = {
            STATIC: above(min(delay[CENTRIC], delay[ELASTIC]), "suffers: above the better one"),
            CENTRIC: above(delay[ELASTIC], f"above Elasticutor {low}") if skew <= 0.6 else
            below(delay[ELASTIC], f"below Elasticutor {high}", _SMALL),
            ELASTIC: below(1.25 * even, "no noticeable increase up to α = 0.5") if skew <= 0.5 else
            above(1.25 * even, "increases beyond α = 0.5"),
        }  # fmt: skip
        made += panel(lab, 10, "throughput", f"α = {skew}", skew, setups, rates, Lab.throughputs, RATE)
        made += panel(lab, 10, "latency", f"α = {skew}", skew, setups, delays, Lab.latencies_ms, "ms")
    return made


def _mean_ms(results: Sequence[ElasticResult], between_nodes: bool | None, column: int) -> list[float]:
    """The times of a move's synchronisation (1) or migration (2), for each run with such moves."""
    runs = [result.moves for result in results]
    chosen = [moves if between_nodes is None else moves[moves[:, 0] == between_nodes] for moves in runs]
    return [1000 * float(moves[:, column].mean()) for moves in chosen if len(moves)]


_TWICE = "the state goes over the controller, so twice as far, by the authors' code"
_FEW = "so few are stopped in little time; the paper's numbers of executors are in a plot only"


def figure_11(lab: Lab) -> list[Row]:
    made = []
    runs = {p: lab.runs(micro(p)) for p in (CENTRIC, ELASTIC)}
    for label, between_nodes in (("within a node", False), ("between nodes", True)):
        sync, state = ({p: _mean_ms(runs[p], between_nodes, column) for p in runs} for column in (1, 2))
        if not sync[CENTRIC] or not sync[ELASTIC]:
            continue  # 7 of 256 cores are on the same node: in a short run no shard may have moved to them
        own, other = float(np.mean(sync[ELASTIC])), float(np.mean(state[CENTRIC]))
        none = below(1e-6, "none: the state is shared")
        made += [
            found(11, f"synchronisation: {label}", ELASTIC, None, sync[ELASTIC], "ms", _TWO_MS),
            found(11, f"synchronisation: {label}", CENTRIC, None, sync[CENTRIC], "ms",
                  above(10 * own, "extremely long: an order of magnitude at least")),
            found(11, f"state migration: {label}", ELASTIC, None, state[ELASTIC], "ms",
                  below(other, "shorter than resource-centric's") if between_nodes else none),
            found(11, f"state migration: {label}", CENTRIC, None, state[CENTRIC], "ms",
                  below(float(np.mean(sync[CENTRIC])), f"less than the synchronisation; {_TWICE}") if between_nodes else none),
        ]  # fmt: skip
    return made


def figure_12(lab: Lab) -> list[Row]:
    made, before = [], 2.0
    for upstream in UPSTREAM:
        setups: dict[str, Elastic] = {p: micro(p, upstream=upstream) for p in (CENTRIC, ELASTIC)}
        sync = {p: _mean_ms(lab.runs(setup), None, 1) for p, setup in setups.items()}
        point = f"{upstream} upstream executors"
        longer = [centric / float(np.mean(sync[ELASTIC])) for centric in sync[CENTRIC]]
        more = "grows with the upstream executors: two messages of 2 ms to each, and the queue of the shard's core"
        made += [
            found(12, f"synchronisation: {point}", ELASTIC, upstream, sync[ELASTIC], "ms", _TWO_MS),
            found(12, f"synchronisation: {point}", CENTRIC, upstream, sync[CENTRIC], "ms", above(before, more)),
            found(12, f"synchronisation over Elasticutor's: {point}", CENTRIC, upstream, longer, "ratio",
                  between(100, 1000, "2 to 3 orders of magnitude", _FEW)),
        ]  # fmt: skip
        before = float(np.mean(sync[CENTRIC]))
    for label, state in STATES.items():
        times = {p: _mean_ms(lab.runs(micro(p, state=state)), True, 2) for p in (CENTRIC, ELASTIC)}
        wire = 1000 * state / 125e6
        made += [
            found(12, f"state migration: {label}", ELASTIC, state / KB, times[ELASTIC], "ms",
                  below(float(np.mean(times[CENTRIC])), f"slightly shorter than resource-centric's; {_TWICE}")),
            found(12, f"state migration: {label}", CENTRIC, state / KB, times[CENTRIC], "ms",
                  above(wire, f"the network dominates: at least the {wire:.3g} ms of one transfer")),
        ]  # fmt: skip
    return made
