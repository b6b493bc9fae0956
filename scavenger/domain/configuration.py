"""What a job may run on: configurations and offers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class Configuration:
    """A VM type, a number of workers K and a global batch size B (samples per step over all workers)."""

    vm: str
    workers: int
    global_batch_size: int

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise ValueError(f"a configuration needs at least one worker, not {self.workers}")
        if self.global_batch_size < self.workers:
            raise ValueError(
                f"a global batch of {self.global_batch_size} leaves some of {self.workers} workers without samples"
            )

    @property
    def local_batch_size(self) -> int:
        """The largest local batch, in samples. Local batches differ by at most one; the largest takes longest."""
        return -(-self.global_batch_size // self.workers)

    def __str__(self) -> str:
        return f"{self.workers} x {self.vm}, batch {self.global_batch_size}"


@dataclass(frozen=True, slots=True)
class Offer:
    """A VM type in a region, with its price.

    Attributes:
        provider: `local`, `gcp`, `aws` or `kubernetes`.
        region: The provider's region; empty for the local machine.
        price_usd_per_hour: Price of one VM. An unknown price is an error, never 0; 0 means free.
        price_source: Where the price comes from, for the report.
        cpus: Processors of one VM that training threads may use.
        memory_bytes: Memory of one VM.
        shared_cpus: The processors that *all* workers of this offer share, where the VMs are not machines of
            their own (the local cloud); None where each worker has its own machine.
        workers_per_vm: Largest number of workers on one VM, one per accelerator.
    """

    provider: str
    region: str
    vm: str
    price_usd_per_hour: float
    price_source: str
    cpus: int
    memory_bytes: int
    shared_cpus: int | None = None
    spot: bool = False
    workers_per_vm: int = 1

    def __post_init__(self) -> None:
        if self.workers_per_vm < 1:
            raise ValueError(f"a VM holds at least one worker, not {self.workers_per_vm}")

    def contention(self, workers: int) -> float:
        """Ratio of the processors that the workers ask for to those of the machine; 1 if each has its own machine.

        K workers of c threads each on N shared processors each run at `min(1, N / (K c))` of their speed.
        """
        if self.shared_cpus is None:
            return 1.0
        return max(1.0, workers * self.cpus / self.shared_cpus)


@dataclass(frozen=True, slots=True)
class SearchSpace:
    """Every configuration that the user allows: all combinations of offer, K and B, except those with B < K."""

    offers: tuple[Offer, ...]
    workers: tuple[int, ...]
    global_batch_sizes: tuple[int, ...]

    def __post_init__(self) -> None:
        if not (self.offers and self.workers and self.global_batch_sizes):
            raise ValueError("a search space needs at least one offer, one cluster size and one batch size")
        if list(self.workers) != sorted(set(self.workers)) or self.workers[0] < 1:
            raise ValueError(f"cluster sizes must be positive and strictly increasing, not {self.workers}")
        sizes = self.global_batch_sizes
        if list(sizes) != sorted(set(sizes)) or sizes[0] < 1:
            raise ValueError(f"batch sizes must be positive and strictly increasing, not {sizes}")

    def configurations(self) -> tuple[Configuration, ...]:
        """All configurations, ordered by offer, then K, then B."""
        return tuple(
            Configuration(offer.vm, workers, batch)
            for offer in self.offers
            for workers in self.workers
            for batch in self.global_batch_sizes
            if batch >= workers
        )

    def offer(self, vm: str) -> Offer:
        """The offer of a VM type; `KeyError` if the space has none."""
        for offer in self.offers:
            if offer.vm == vm:
                return offer
        raise KeyError(vm)
