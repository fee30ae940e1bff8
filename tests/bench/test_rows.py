"""The arithmetic of the rows, the shape of ``bench.json``, and that every promise has its row."""

import json
from pathlib import Path

import pytest

from tests.bench.catalogue import ROWS
from tests.bench.parts import METRICS, PARTS
from tests.bench.quiet import Disturbance
from tests.bench.report import table, write
from tests.bench.rounds import Outcome, Record, Step, plan
from tests.bench.rows import RATIO_MAX, RowSpec, evaluate
from tests.bench.systems import SYSTEMS

RATE = RowSpec("r", "rate", "rivals", "ours", "put 1 MiB", 1.5, ("slow", "fast"))
COST = RowSpec("c", "cost", "rivals", "ours", "put 4 KiB", 2, ("slow", "fast"))


def by_round(*values: float) -> dict[int, float]:
    return dict(enumerate(values))


class TestEvaluate:
    def test_a_rate_is_compared_with_the_fastest_reference(self) -> None:
        samples = {
            "ours": {"put 1 MiB": by_round(3, 2, 4)},
            "slow": {"put 1 MiB": by_round(1, 1, 1)},
            "fast": {"put 1 MiB": by_round(2, 1, 2)},
        }
        row = evaluate(RATE, samples, {})
        assert (row.ours, row.reference, row.reference_system) == (3, 2, "fast")
        assert (row.ratio, row.met, row.rounds) == (1.5, True, 3)
        assert row.spread == {"ours": [2, 4], "reference": [1, 2], "ratio": [1.5, 2]}

    def test_a_cost_is_compared_with_the_cheapest_reference(self) -> None:
        samples = {
            "ours": {"put 4 KiB": by_round(100)},
            "slow": {"put 4 KiB": by_round(300)},
            "fast": {"put 4 KiB": by_round(190)},
        }
        row = evaluate(COST, samples, {})
        assert (row.ratio, row.met, row.reference_system) == (1.9, False, "fast")

    def test_a_limit_is_a_reference_in_every_round(self) -> None:
        spec = RowSpec("m", "memory", "limit", "ours", "memory", 1, limit=700)
        row = evaluate(spec, {"ours": {"memory": by_round(350, 350)}}, {})
        assert (row.ratio, row.met, row.reference_system) == (2, True, "limit")

    def test_a_cost_of_nothing_has_a_finite_ratio(self) -> None:
        spec = RowSpec("t", "trips", "limit", "ours", "round trips", 1, limit=1)
        row = evaluate(spec, {"ours": {"round trips": by_round(0)}}, {})
        assert row.ratio == RATIO_MAX

    def test_a_reference_may_have_another_metric(self) -> None:
        spec = RowSpec("v", "view", "copy", "ours", "view", 100, ("m",), "copy time")
        samples = {"ours": {"view": by_round(10)}, "m": {"copy time": by_round(2000)}}
        assert evaluate(spec, samples, {}).ratio == 200

    def test_rounds_that_only_one_side_has_count_for_no_ratio(self) -> None:
        samples = {"ours": {"put 1 MiB": {0: 2.0, 2: 4.0}}, "slow": {"put 1 MiB": {0: 2.0, 1: 9.0}}}
        assert evaluate(RATE, samples, {}).spread["ratio"] == [1, 1]

    def test_what_was_not_measured_is_unknown_and_says_why(self) -> None:
        samples = {"ours": {"put 1 MiB": by_round(2)}}
        row = evaluate(RATE, samples, {("bulk", "fast"): "not installed", ("cpu", "slow"): "no"})
        assert (row.ours, row.reference, row.ratio, row.met) == (2, None, None, None)
        assert row.skipped == "fast: not installed"


class TestCatalogue:
    def test_names_are_unique(self) -> None:
        assert len({spec.name for spec in ROWS}) == len(ROWS)

    @pytest.mark.parametrize("spec", ROWS, ids=lambda spec: spec.name)
    def test_every_row_names_metrics_and_systems_that_exist(self, spec: RowSpec) -> None:
        reference = METRICS[spec.reference_metric or spec.metric]
        assert reference.unit == METRICS[spec.metric].unit
        assert {system for _, system in spec.needs()} <= SYSTEMS.keys()
        assert {part for part, _ in spec.needs()} <= PARTS.keys()
        assert (spec.limit is None) == bool(spec.references)


class TestPlan:
    def test_systems_take_turns_within_a_part_and_the_order_rotates(self) -> None:
        specs = [RowSpec("x", "x", "x", "memcpy", "copy", 1, ("redis", "memcached"))]
        order = [(step.round_index, step.system) for step in plan(specs, 2, quick=True)]
        first, second = [s for r, s in order if r == 0], [s for r, s in order if r == 1]
        assert sorted(first) == ["memcached", "memcpy", "redis"]
        assert second == [*first[1:], first[0]]

    def test_a_measurement_that_two_rows_need_is_made_once(self) -> None:
        steps = plan(ROWS, 1, quick=True)
        assert len(set(steps)) == len(steps)


class TestReport:
    def test_the_files_are_json_with_the_promised_keys(self, tmp_path: Path) -> None:
        record = Record()
        values = {"put 1 MiB": 3.0}
        record.add(Step(0, "bulk", "ours"), Outcome(values, "", Disturbance(0.1, 0)))
        record.add(Step(0, "bulk", "fast"), Outcome({}, "broken", Disturbance(0, 0)))
        rows = [evaluate(RATE, record.samples, record.reasons)]
        write(tmp_path, rows, record, ["redis==8.1.0"])
        (row,) = json.loads((tmp_path / "bench.json").read_text())
        wanted = {"name", "ours", "reference", "unit", "ratio", "wanted", "met", "spread"}
        assert wanted <= row.keys()
        assert row["skipped"] == "fast: broken"
        samples = json.loads((tmp_path / "bench-samples.json").read_text())
        assert samples["samples"] == {"ours": {"put 1 MiB": {"0": 3.0}}}
        assert "| `r` | 3 |" in (tmp_path / "bench.md").read_text()
        assert table(rows, "title").row_count == 1
