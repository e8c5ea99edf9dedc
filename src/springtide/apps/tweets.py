"""Tweets about entities: source → classify → enrich → store, on a generated stream that rises and falls.

    source    one tweet, about one of 35,000 entities, drawn by Zipf's law: the first has 6.5 % of the tweets
    classify  whether the entity is media (10 % of the entities), a politician (30 %) or another (60 %)
    enrich    waits 25, 5 or 1 ms for them, as a call to an external store would
    store     files

What it costs: by the entities that happen to be frequent, 9.6 % of the tweets are about media, 32.0 % about
politicians and 58.4 % about others. So a tweet waits 4.59 ms on average, 0.46 % of a slot-second. The default
rate of 50 to 400 records/s needs, for waiting alone, 0.23 slots when it is low, 1.03 on average and 1.84 at
its peak: one slot falls behind from 218 records/s on, two keep up.
"""

from __future__ import annotations

import math
import time
from bisect import bisect_right
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from typing import Any

import springtide as st
from springtide.model.generated import base_of
from springtide.model.rate import sampled

ENTITIES = 35_000
EXPONENT = 0.937
"""0.94, with the digit more that gives the first entity 6.5 % of the tweets; 0.940 would give it 6.6 %."""
KINDS = {"media": 10, "politician": 30, "other": 60}
"""Kinds of entities, with their percentages of all entities."""
WAIT_S = {"media": 0.025, "politician": 0.005, "other": 0.001}
"""Response time of the external store for an entity, s."""
LOW, HIGH, PERIOD_S = 50.0, 400.0, 30.0
_HOURS = 6
_KIND_SEED = 20
_WORDS = ("a", "plan", "for", "more", "trains", "was", "voted", "down", "again", "today", "says", "the")


@dataclass(frozen=True)
class Tweet:
    """A tweet that mentions one entity."""

    id: int
    entity: int
    text: str


@dataclass(frozen=True)
class Classified:
    """A tweet with the kind of its entity."""

    id: int
    entity: int
    kind: str
    text: str


@dataclass(frozen=True)
class Enriched:
    """A classified tweet with the external store's profile of its entity."""

    id: int
    entity: int
    kind: str
    text: str
    profile: str


def tweet(draw: st.Draw) -> Tweet:
    entity = bisect_right(_cumulated(), draw.random.random())
    return Tweet(draw.index, entity, f"@{entity} {' '.join(draw.random.choices(_WORDS, k=6))}")


def classify(tweet: Tweet) -> Classified:
    """Determine the kind of its entity."""
    return Classified(tweet.id, tweet.entity, kind_of(tweet.entity), tweet.text)


def enrich(tweet: Classified) -> Enriched:
    """Query the external store."""
    time.sleep(WAIT_S[tweet.kind])
    profile = f"https://example.org/{tweet.kind}/{tweet.entity}"
    return Enriched(tweet.id, tweet.entity, tweet.kind, tweet.text, profile)


def wave(t: float) -> float:
    """Records/s at ``t`` seconds: from 50 up to 400 and back, smoothly, every 30 s."""
    return (LOW + HIGH) / 2 - (HIGH - LOW) / 2 * math.cos(2 * math.pi * t / PERIOD_S)


def topology(rate: object = None, limit: int | None = None, path: str = "tweets") -> st.Topology:
    """The topology. The default rate is ``wave``, for six hours; after them it stays low."""
    tweets = st.source.generate(tweet, rate=sampled(wave, _HOURS * 3600) if rate is None else rate, limit=limit)
    return _stored(tweets, st.sink.files(path, roll_every="10s", append=True))  # each demonstration adds to the folder


def on_kafka(servers: str, tweets: str, enriched: str, group: str, partitions: int) -> st.Topology:
    """The topology from topic to topic, exactly once. ``group`` gets the offsets of what was read; the topic of enriched tweets
    is made with these partitions."""
    source = st.source.kafka(servers, tweets, value=Tweet, group=group)
    return _stored(source, st.sink.kafka(servers, enriched, key="entity", partitions=partitions))


def _stored(tweets: st.Stream, sink: Any) -> st.Topology:
    return tweets.map(classify).map(enrich, grouping="auto").to(sink, name="store").named("tweets")


def kind_of(entity: int) -> str:
    """An entity's kind, the same in every process: its place among 100 by a seeded hash."""
    place = base_of((_KIND_SEED, entity)) % 100
    return next(kind for kind, below in zip(KINDS, accumulate(KINDS.values()), strict=True) if place < below)


@cache
def _cumulated() -> list[float]:
    """The share of tweets about the entities 0 to i; computed once per process, in 7 ms."""
    weights = [(rank + 1) ** -EXPONENT for rank in range(ENTITIES)]
    total = math.fsum(weights)
    sums = [weight / total for weight in accumulate(weights)]
    return [*sums[:-1], 1.0]  # a number below 1 always finds an entity
