"""From samples to rows: medians, ratios, and whether what was wanted was reached. Pure."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from tests.bench.parts import METRICS, Better

Samples = Mapping[str, Mapping[str, Mapping[int, float]]]
"""{system: {metric: {round: value}}}"""

Reasons = Mapping[tuple[str, str], str]
"""{(part, system): why it has no samples}"""

_SIGNIFICANT_DIGITS = 5
RATIO_MAX = 1e6
"""The ratio of a cost of nothing: JSON has no infinity."""


@dataclass(frozen=True, slots=True)
class RowSpec:
    """One promise: what is compared with what, and how much is wanted.

    Attributes:
        name: Stable identifier, for ``--rows`` and for scripts that read the results.
        title: What a person reads.
        against: What it is compared with, in words.
        system: Our configuration.
        metric: What is measured of it.
        wanted: Least ratio that keeps the promise.
        references: Systems it is compared with; the best of those that ran is the reference.
        reference_metric: Their metric where it is another one than ours.
        limit: A fixed reference instead, in the metric's unit.
    """

    name: str
    title: str
    against: str
    system: str
    metric: str
    wanted: float
    references: tuple[str, ...] = ()
    reference_metric: str = ""
    limit: float | None = None

    def needs(self) -> list[tuple[str, str]]:
        """(part, system) pairs to measure for this row."""
        pairs = [(METRICS[self.metric].part, self.system)]
        part = METRICS[self.reference_metric or self.metric].part
        return pairs + [(part, system) for system in self.references]


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table and one object of ``bench.json``.

    Attributes:
        name: The promise's identifier.
        title: What was measured, in words.
        against: What it is compared with, in words.
        ours: Median over the rounds, or None if it was not measured.
        reference: Median of the best reference, or the limit; None if none was measured.
        unit: Unit of both.
        ratio: How many times better ours is than the reference; above 1 is better, whatever
            the direction of the metric.
        wanted: Least ratio that keeps the promise.
        met: ``ratio >= wanted``, or None without a ratio.
        spread: Least and greatest value over the rounds of "ours", "reference" and "ratio".
        system: Our configuration.
        reference_system: The reference that was the best one, or "limit".
        rounds: Rounds behind the median of ours.
        skipped: Why a system has no figure, or "".
    """

    name: str
    title: str
    against: str
    ours: float | None
    reference: float | None
    unit: str
    ratio: float | None
    wanted: float
    met: bool | None
    spread: dict[str, list[float]]
    system: str
    reference_system: str
    rounds: int
    skipped: str

    def as_json(self) -> dict[str, object]:
        """The row with JSON's types only."""
        return asdict(self)


def evaluate(spec: RowSpec, samples: Samples, reasons: Reasons) -> Row:
    """Make the row of one promise.

    The ratio is that of the medians. Its spread is that of the rounds' own ratios, in each of
    which both systems ran side by side.
    """
    better = METRICS[spec.metric].better
    ours = samples.get(spec.system, {}).get(spec.metric, {})
    reference_system, reference = _reference(spec, samples, better, tuple(ours))
    ratio = None
    if ours and reference:
        medians = statistics.median(ours.values()), statistics.median(reference.values())
        ratio = _ratio(*medians, better)
    ratios = [_ratio(ours[key], reference[key], better) for key in ours if key in reference]
    spread = {"ours": [*ours.values()], "reference": [*reference.values()], "ratio": ratios}
    skipped = {
        system: reasons[part, system] for part, system in spec.needs() if (part, system) in reasons
    }
    return Row(
        name=spec.name,
        title=spec.title,
        against=spec.against,
        ours=_median(ours),
        reference=_median(reference),
        unit=METRICS[spec.metric].unit,
        ratio=None if ratio is None else _rounded(ratio),
        wanted=spec.wanted,
        met=None if ratio is None else ratio >= spec.wanted,
        spread={key: _extremes(values) for key, values in spread.items() if values},
        system=spec.system,
        reference_system=reference_system,
        rounds=len(ours),
        skipped="; ".join(f"{system}: {reason}" for system, reason in skipped.items()),
    )


def _reference(
    spec: RowSpec, samples: Samples, better: Better, rounds: Sequence[int]
) -> tuple[str, Mapping[int, float]]:
    """The best reference and its value in each round."""
    if spec.limit is not None:
        return "limit", dict.fromkeys(rounds, spec.limit)
    metric = spec.reference_metric or spec.metric
    found = {s: samples.get(s, {}).get(metric, {}) for s in spec.references}
    medians = {s: statistics.median(values.values()) for s, values in found.items() if values}
    if not medians:
        return "", {}
    best = (max if better is Better.MORE else min)(medians, key=medians.__getitem__)
    return best, found[best]


def _ratio(ours: float, reference: float, better: Better) -> float:
    """How many times better ours is."""
    above, below = (ours, reference) if better is Better.MORE else (reference, ours)
    return min(RATIO_MAX, above / below) if below else RATIO_MAX


def _median(values: Mapping[int, float]) -> float | None:
    return _rounded(statistics.median(values.values())) if values else None


def _extremes(values: Sequence[float]) -> list[float]:
    return [_rounded(min(values)), _rounded(max(values))]


def _rounded(value: float) -> float:
    return float(f"{value:.{_SIGNIFICANT_DIGITS}g}")
