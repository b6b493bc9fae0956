"""What every cloud offers to the rest: priced VM types, and what their processors are."""

from __future__ import annotations

from typing import Protocol

from scavenger.domain.configuration import Offer

__all__ = ["Cloud"]


class Cloud(Protocol):
    """A provider in one place."""

    def offers(self, *, workers_max: int) -> tuple[Offer, ...]:
        """Every VM type that may be had, cheapest first.

        Args:
            workers_max: The most workers that the job may have at once, who share what cannot be multiplied.

        Raises:
            ConfigurationError: If a price is unknown or absurd; never 0 in its place.
        """

    def hardware(self) -> str:
        """What a VM type's speed stands on beyond its name, so that a model learned elsewhere is told apart."""
