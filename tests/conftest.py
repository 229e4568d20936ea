"""Fixtures of all tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import hypothesis
import pytest

from tests.site import Site

# No time is asserted: the machines that run this may be shared.
hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.load_profile("untimed")


@pytest.fixture
def site() -> Iterator[Callable[..., Site]]:
    """A factory: ``site({"default": {...}})`` starts a site that ends with the test.

    The profile may also be given as the keywords of the default rule:
    ``site(latency=0.05, max_at_once=10)``.
    """
    with ExitStack() as running:

        def start(profile: dict[str, Any] | None = None, **rule: Any) -> Site:
            return running.enter_context(
                Site(profile if profile is not None else {"default": rule})
            )

        yield start
