"""Options that every kind of test shares."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

# A property test must not fail because the machine was slow; the seed is printed on failure. Where
# changes land, the same examples are tried each time: what is rare is looked for elsewhere.
settings.register_profile(
    "ci",
    deadline=None,
    print_blob=True,
    derandomize=bool(os.environ.get("CI")),
    suppress_health_check=[HealthCheck.too_slow],
)
settings.register_profile("thorough", settings.get_profile("ci"), max_examples=1_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))
