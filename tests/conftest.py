"""Options that every kind of test shares."""

from __future__ import annotations

import os

from hypothesis import settings

# A property test in CI must not fail because the machine was slow; the seed is printed on failure.
settings.register_profile("ci", deadline=None, print_blob=True)
settings.register_profile("thorough", settings.get_profile("ci"), max_examples=1_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))
