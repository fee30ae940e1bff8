"""Names and labels of the core's counters, turned into metrics."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.samples import Sample

from mooncake_master.core.accounting import labelled
from mooncake_master.exposition import core_counters, kind_name, parse_series
from mooncake_master.meters import BUCKETS_S, Histogram


@given(values=st.dictionaries(st.from_regex(r"[a-z][a-z_]{0,8}", fullmatch=True), st.text()))
def test_any_label_survives(values: dict[str, str]) -> None:
    name, labels = parse_series(labelled("metric_total", **values))
    assert name == "metric_total"
    assert dict(labels) == values


def test_a_series_without_labels_is_its_name() -> None:
    assert parse_series("metric_total") == ("metric_total", ())


def test_counters_become_families() -> None:
    counters = {
        "mooncake_master_x_total": 3,
        'mooncake_master_y_total{reason="a"}': 1,
        'mooncake_master_y_total{reason="b"}': 2,
        "mooncake_master_z": 7,
    }
    families = {family.name: family for family in core_counters(counters)}
    assert [families[n].type for n in sorted(families)] == ["counter", "counter", "gauge"]
    assert families["mooncake_master_y"].samples == [
        Sample("mooncake_master_y_total", {"reason": "a"}, 1),
        Sample("mooncake_master_y_total", {"reason": "b"}, 2),
    ]


def test_a_kind_that_is_none_of_ours_has_one_name() -> None:
    assert kind_name(14) == "Exists"
    assert {kind_name(0), kind_name(999)} == {"unknown"}


@pytest.mark.parametrize("duration_s", [0.0, *BUCKETS_S, 1e9])
def test_a_duration_falls_into_one_bucket_up_to_its_bound(duration_s: float) -> None:
    histogram = Histogram()
    histogram.observe(duration_s)
    place = histogram.counts.index(1)
    assert histogram.count == 1
    assert place == len(BUCKETS_S) or duration_s <= BUCKETS_S[place]
    assert place == 0 or duration_s > BUCKETS_S[place - 1]
