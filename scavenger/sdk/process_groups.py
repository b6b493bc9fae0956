"""What forms the mean of a loop's gradients between the workers of a machine; `torch_groups` has that of PyTorch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

__all__ = ["Groups", "Reduction"]


@dataclass(frozen=True, slots=True)
class Reduction:
    """What has come of a mean of gradients.

    Attributes:
        own_sqnorm, sqnorm: Squared norms of this worker's gradient, and of the mean.
        own_bad, bad: Name of an array of this worker's gradient, and of the mean, that is not finite; empty if all are.
        failure: Why there is none; else empty.
    """

    own_sqnorm: float = 0.0
    sqnorm: float = 0.0
    own_bad: str = ""
    bad: str = ""
    failure: str = ""


class Groups(Protocol):
    """The process groups of a worker, of which it has one at a time. One thread calls the methods.

    Attributes:
        made: Number of the newest group that is made, or could not be; 0 for none.
        failure: Why it could not; else empty.
        exchange_s: How long the last exchange took by any way, as the training code has seen it.
    """

    made: int
    failure: str
    exchange_s: float

    @property
    def device(self) -> str:
        """What the gradients are on, `cpu` or `cuda ` and which one; empty if there can be no group."""
        ...

    def make(self, number: int, rank: int, size: int, file: str, limit_s: float) -> None:
        """Begin to make a group in place of the one before; `made` or `failure` tells when it is done."""
        ...

    def reduce(self, share: float) -> int:
        """Begin to form the sum of all gradients, each times its share; returns a descriptor that tells the end."""
        ...

    def reduced(self) -> Reduction:
        """What has come of it."""
        ...

    def drop(self) -> None:
        """Give up the group, and what is being formed in it."""
        ...

    def give(self) -> None:
        """Put the gradients where they are pushed from."""
        ...
