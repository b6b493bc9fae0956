"""How many examples a property is tried on, as the profile of the run says: ordinary, quick or nightly."""

from __future__ import annotations

from typing import Any

from hypothesis import settings

USUAL = 40
"""Of a property that names no number, in an ordinary run."""


def examples(count: int, **more: Any) -> settings:
    """So many in an ordinary run, and in other runs fewer or more by as much as of other properties.

    Args:
        more: Further settings.
    """
    return settings(max_examples=max(1, count * settings.default.max_examples // USUAL), **more)
