"""The demo topology: its numbers are those it promises."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest

from springtide.api.sink import ROLL_SIZE
from springtide.apps import tweets
from springtide.connectors.generate import GenerateSource
from springtide.model.endpoints import FilesSink, Rolling
from springtide.model.generated import draws
from springtide.model.topology import AUTO


def _shares() -> list[float]:
    return [b - a for a, b in pairwise([0.0, *tweets._cumulated()])]


def test_the_entities_follow_zipf_and_the_first_has_six_and_a_half_percent() -> None:
    shares = _shares()
    assert len(shares) == 35_000
    assert shares[0] == pytest.approx(0.065, abs=0.0001)
    assert shares[0] / shares[9] == pytest.approx(10**0.94, rel=0.01)
    assert sum(shares) == pytest.approx(1.0)


def test_the_tweets_follow_the_shares() -> None:
    """Of 20,000 tweets 1,300 ± 6 × 35 are about the first entity."""
    drawn = Counter(tweets.tweet(draw).entity for draw in draws(0, 0, [0] * 20_000))
    assert abs(drawn[0] - 1_300) < 210
    assert all(0 <= entity < 35_000 for entity in drawn)


def test_the_kinds_have_their_shares_of_the_entities() -> None:
    kinds = Counter(tweets.kind_of(entity) for entity in range(tweets.ENTITIES))
    assert {kind: round(100 * count / tweets.ENTITIES) for kind, count in kinds.items()} == tweets.KINDS


def test_the_kind_of_an_entity_never_changes() -> None:
    assert [tweets.kind_of(entity)[0] for entity in range(10)] == list("pooopoommo")


def test_the_costs_are_those_of_the_docstring() -> None:
    by_kind: Counter[str] = Counter()
    for entity, share in enumerate(_shares()):
        by_kind[tweets.kind_of(entity)] += share  # type: ignore[assignment]
    assert {k: round(100 * v, 1) for k, v in by_kind.items()} == {
        "media": 9.6,
        "politician": 32.0,
        "other": 58.4,
    }
    mean = sum(by_kind[kind] * wait for kind, wait in tweets.WAIT_S.items())
    assert mean == pytest.approx(0.00459, abs=0.00001)
    assert (round(400 * mean, 2), round(50 * mean, 2), round(1 / mean)) == (1.84, 0.23, 218)


def test_a_tweet_is_classified_and_enriched_after_its_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []
    monkeypatch.setattr("springtide.apps.tweets.time.sleep", waited.append)
    for entity in (0, 1, 7):
        classified = tweets.classify(tweets.Tweet(5, entity, "text"))
        enriched = tweets.enrich(classified)
        assert (enriched.id, enriched.entity, enriched.text) == (5, entity, "text")
        assert enriched.kind == classified.kind == tweets.kind_of(entity)
    assert waited == [0.005, 0.001, 0.025]


def test_the_rate_rises_and_falls_between_50_and_400_every_30_seconds() -> None:
    assert [round(tweets.wave(t)) for t in (0, 7.5, 15, 22.5, 30)] == [50, 225, 400, 225, 50]


def test_the_topology() -> None:
    made = tweets.topology(limit=100, path="/out")
    assert [operator.name for operator in made] == ["source", "classify", "enrich", "store"]
    assert [operator.grouping for operator in made] == [None, None, AUTO, None]
    assert made["classify"].chained
    source = made["source"].source
    assert isinstance(source, GenerateSource)
    assert source.limit == 100
    assert source.rate.count(60.0) == 60 * 225
    assert made["store"].sink == FilesSink("/out", rolling=Rolling(ROLL_SIZE, 10.0), append=True)


def test_the_rate_can_be_chosen() -> None:
    source = tweets.topology(rate=10)["source"].source
    assert isinstance(source, GenerateSource)
    assert source.rate.count(60.0) == 600
