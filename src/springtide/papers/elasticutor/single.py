"""Elasticutor's figures 13 to 16 (sections 5.2, 5.3): one executor on more and more cores; how many executors and shards.

The paper does not define scaling *efficiently* in numbers; here it means at least half of the throughput of the cores alone.
The first of 10,000 keys of Zipf-0.5 has 0.5 % of the tuples and a single core, which limits 256 cores to 0.78 of that.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from springtide.papers.elasticutor.rows import RATE, above, below, between, found
from springtide.papers.elasticutor.setup import CENTRIC, ELASTIC, KB, MB, STATIC, Lab, micro, single
from springtide.papers.rows import Claim, Row

CORES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
EFFICIENT = 0.5
SETTINGS: Mapping[str, Mapping[str, float]] = {
    "0.01 ms": {"cost_ms": 0.01}, "0.1 ms": {"cost_ms": 0.1}, "1 ms and 128 B": {}, "10 ms": {"cost_ms": 10.0},
    "2 KB": {"size": 2048.0}, "8 KB": {"size": 8192.0},
}  # fmt: skip
BOUND = ("0.01 ms", "8 KB")
"""Settings that cannot use more than 16 cores."""
HEAVY = ("0.01 ms", "0.1 ms", "2 KB", "8 KB")
"""Settings whose latency grows, because the network is the bottleneck."""
STATES = {"32 KB": 32 * KB, "1 MB": MB, "32 MB": 32 * MB}
WORKLOADS = {"default": (128.0, 2.0), "data-intensive": (8192.0, 2.0), "highly dynamic": (128.0, 16.0)}
EXECUTORS, SHARDS = (1, 8, 32, 64, 256), (16, 64, 256, 1024)


def _full(setting: Mapping[str, float]) -> float:
    """The number of cores that can process the tuples of an interface of 125 MB/s."""
    return 125e6 / setting.get("size", 128.0) * setting.get("cost_ms", 1.0) / 1000


def _speedup(lab: Lab, cores: int, setting: Mapping[str, float]) -> list[float]:
    """The throughput over that of a single core."""
    alone = lab.throughputs(single(1, **setting))
    return [a / b for a, b in zip(lab.throughputs(single(cores, **setting)), alone, strict=True)]


def figure_13(lab: Lab) -> list[Row]:
    made = []
    for label, setting in SETTINGS.items():
        full = _full(setting)
        wire = f"an interface carries what {full:.1f} cores do"
        for cores in CORES:
            if label in BOUND and cores > 16:
                most = 1.25 * lab.throughput(single(16, **setting)) / lab.throughput(single(1, **setting))
                claim = below(most, f"no more than 16 cores' worth, within a quarter; {wire}")
            elif cores > full:
                claim = below(1.25 * full, f"no more than the network carries, within a quarter; {wire}")
            else:
                claim = above(EFFICIENT * cores, "efficient: at least half of the cores' own")
            values = _speedup(lab, cores, setting)
            made.append(found(13, f"speed-up, {label}: {cores} cores", ELASTIC, cores, values, "ratio", claim))
    return made


def figure_14(lab: Lab) -> list[Row]:
    made = []
    shared = "the executor's own queue of 1,024 tuples is worked off faster by more cores, which hides it"
    for label, setting in SETTINGS.items():
        tails = {cores: [1000 * result.p99_s for result in lab.runs(single(cores, **setting))] for cores in CORES[3:]}
        least, before, full = min(float(np.mean(values)) for values in tails.values()), 0.0, _full(setting)
        for cores, values in tails.items():
            past = f"the network is the bottleneck from {full:.0f} cores on"
            if label in HEAVY and cores == 256:
                claim = above(2 * least, f"increases greatly: more than twice the least; {past}", shared)
            elif label in HEAVY and cores > 1.1 * full:
                claim = above(before, f"increases; {past}", shared)
            else:
                claim = below(2 * least, "does not increase noticeably: at most twice the least", shared)
            made.append(found(14, f"99th percentile, {label}: {cores} cores", ELASTIC, cores, values, "ms", claim))
            before = float(np.mean(values))
    return made


def figure_15(lab: Lab) -> list[Row]:
    made = []
    for omega in (2.0, 16.0):
        for label, state in STATES.items():
            for cores in CORES:
                values = _speedup(lab, cores, {"omega": omega, "state": state})
                claim = above(EFFICIENT * cores, "efficient: at least half of the cores' own")
                if label == "32 MB" and cores == 256:
                    crossed = np.mean(
                        [result.moves[:, 0].sum() for result in lab.runs(single(cores, omega=omega, state=state))]
                    )
                    reason = f"{crossed / (omega * lab.seconds / 60):.0f} shards of 8,192 cross the network after a shuffle"
                    claim = below(EFFICIENT * cores, "not efficient: less than half of the cores' own", reason)
                elif label == "32 MB" and cores > 8:
                    claim = below(float(cores), "less and less efficient")
                name = f"speed-up, ω = {omega:g}, {label}: {cores} cores"
                made.append(found(15, name, ELASTIC, cores, values, "ratio", claim))
    slow, fast = (lab.throughput(single(256, omega=omega, state=32 * MB)) for omega in (16.0, 2.0))
    made.append(found(15, "ω = 16 over ω = 2, 32 MB, 256 cores", ELASTIC, 256, [slow / fast], "ratio",
                      below(0.8, "decreases considerably: by a fifth at least")))  # fmt: skip
    return made


def figure_16(lab: Lab) -> list[Row]:
    made = []
    for label, (size, omega) in WORKLOADS.items():
        at = {(y, z): micro(ELASTIC, omega, size=size, executors=y, shards=z) for y in EXECUTORS for z in SHARDS}
        static = lab.throughput(micro(STATIC, omega, size=size))
        for (y, z), setup in at.items():
            claim = _of_shards(y, z, {count: lab.throughput(at[y, count]) for count in SHARDS}, static)
            made.append(found(16, f"throughput, {label}, y = {y}: z = {z}", ELASTIC, z, lab.throughputs(setup), RATE, claim))
    return made + _of_executors(lab)


def _of_shards(y: int, z: int, rates: Mapping[int, float], static: float) -> Claim:
    if y == 256:
        return between(0.95 * static, 1.05 * static, "as static: every executor has one core")
    if z <= 64:
        return below(1.03 * rates[256], "too few shards: no more than with 256")
    if z == 256:
        return above(0.97 * rates[64], "no less than with 64")
    reason = "with few executors 256 shards are few for a core, and 1,024 still help" if y <= 8 else ""
    return between(0.9 * rates[256], 1.1 * rates[256], "as with 256: within a tenth", reason)


def _of_executors(lab: Lab) -> list[Row]:
    made = []

    def rate(y: int, size: float, omega: float) -> float:
        return lab.throughput(micro(ELASTIC, omega, size=size, executors=y, shards=1024))

    for p in (STATIC, CENTRIC):
        large, small = (lab.throughput(micro(p, size=size)) for size in (8192.0, 128.0))
        made.append(found(16, "8 KB over 128 B", p, None, [large / small], "ratio", between(0.8, 1.2, "does not change much")))
    severe = below(0.5, "drops severely: by half at least")
    made.append(found(16, "8 KB over 128 B, y = 1", ELASTIC, 1, [rate(1, 8192.0, 2) / rate(1, 128.0, 2)], "ratio", severe))
    lost = {y: 1 - rate(y, 128.0, 16) / rate(y, 128.0, 2) for y in EXECUTORS[:-1]}
    reason = "a shard moves in 2.3 ms here: some hundred of them take a fraction of the 3.75 s between two shuffles"
    for y in (1, 8):
        made.append(found(16, f"loss from ω = 2 to 16, y = {y}", ELASTIC, y, [100 * lost[y]], "%", above(
            100 * max(lost[32], lost[64]), "greater than with 32 or 64 executors", reason)))  # fmt: skip
    return made
