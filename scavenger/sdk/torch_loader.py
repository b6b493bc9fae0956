"""The loader of a PyTorch script in a job: its data set, workers and collation, in the job's batches."""

from __future__ import annotations

import contextlib
import hashlib
import random
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset
from torch.utils.data._utils.pin_memory import pin_memory
from torch.utils.data.distributed import DistributedSampler

from scavenger.errors import NotSupportedError, TrainingCodeError

__all__ = ["BatchLoader"]

_KEPT = (
    "collate_fn",
    "pin_memory",
    "timeout",
    "worker_init_fn",
    "multiprocessing_context",
    "prefetch_factor",
)
_FEW = 2
"""Samples of a batch that counts for nothing; one is too few for some layers."""


class BatchLoader:
    """Reads the batches of one worker.

    The samples of an epoch are in the order that the loader's own sampler gives them, with every random generator
    seeded by the job and the epoch; so every worker has the same order, and each batch is a range of it.

    Args:
        loader: The user's.
        seed: Of the job.
        place: Of the call that gave it, for what is refused.
        processes: Of a worker, among which a `DistributedSampler` divides the samples.

    Attributes:
        samples: Of an epoch.
        batch_size: Of the loader's own batches.
        steps: Of an epoch with these.

    Raises:
        NotSupportedError: If its samples cannot be read in any batch by any worker.
    """

    def __init__(self, loader: Any, seed: int, place: str, processes: int = 1) -> None:
        _refuse(loader, place, processes)
        self.loader, self._seed, self._place = loader, seed, place
        self._sampler, self.batch_size = loader.batch_sampler.sampler, loader.batch_sampler.batch_size
        if getattr(self._sampler, "num_replicas", 1) != 1:
            of = self._sampler
            self._sampler = DistributedSampler(of.dataset, 1, 0, shuffle=of.shuffle, seed=of.seed)
            self.batch_size *= processes
        self.samples, self.steps = len(self._sampler), len(loader)
        self._epoch = -1
        self._order: list[Any] = []
        self._ahead: Iterator[Any] | None = None
        self._feed: _Feed | None = None
        self._reader: Any = None

    def order(self, epoch: int) -> list[Any]:
        """The indices of an epoch's samples; the same at every worker."""
        if epoch != self._epoch:
            digest = hashlib.blake2b(f"{self._seed} {epoch}".encode(), digest_size=8).digest()
            with _seeded(int.from_bytes(digest, "little") >> 1, self._sampler):
                if hasattr(self._sampler, "set_epoch"):
                    self._sampler.set_epoch(epoch)
                indices = list(self._sampler)
            if len(indices) != self.samples:
                raise TrainingCodeError(
                    f"{self._place}: the sampler of the loader gives {len(indices)} samples in epoch {epoch + 1}, and "
                    f"its length is {self.samples}: give each epoch as many"
                )
            self._epoch, self._order = epoch, indices
            self._ahead = None
        return self._order

    def read(self, epoch: int, parts: Sequence[range], number: int, stride: int) -> Any:
        """A part of a batch, of positions of the order; if nothing changes, the next batch begins `stride` later."""
        order, part = self.order(epoch), parts[number]
        if not self.loader.num_workers:
            return self._collated(order[part.start : part.stop])
        if self._feed is None or self._ahead is None or next(self._feed.expected, None) != part:
            self._feed = _Feed(order, parts[number:], parts, stride)
            next(self._feed.expected)
            self._ahead = iter(self._with_workers(self._feed))
        return next(self._ahead)

    def few(self, epoch: int) -> Any:
        """A batch of few samples, for a worker that has none of a step."""
        return self._collated(self.order(epoch)[:_FEW])

    def _collated(self, indices: Any) -> Any:
        data, collate = self.loader.dataset, self.loader.collate_fn
        many = hasattr(data, "__getitems__")
        batch = collate(data.__getitems__(indices) if many else [data[index] for index in indices])
        return pin_memory(batch) if self.loader.pin_memory and torch.cuda.is_available() else batch

    def _with_workers(self, feed: _Feed) -> Any:
        """A loader with the user's processes, which stay from one feed to the next."""
        if self._reader is None:
            given = {name: getattr(self.loader, name) for name in _KEPT}
            self._reader = DataLoader(
                self.loader.dataset,
                batch_sampler=_Feeds(),
                num_workers=self.loader.num_workers,
                persistent_workers=True,
                **given,
            )
        self._reader.batch_sampler.feed = feed
        return self._reader


class _Feed:
    """What one worker reads from some parts of a batch on, as long as nothing changes.

    Attributes:
        expected: The parts, as they are expected to be asked for.
    """

    def __init__(
        self, order: Sequence[Any], first: Sequence[range], parts: Sequence[range], stride: int
    ) -> None:
        self._order, self._first, self._parts, self._stride = order, first, parts, stride
        self.expected = self._ranges()

    def _ranges(self) -> Iterator[range]:
        yield from self._first
        stop, samples = self._parts[-1].stop, len(self._order)
        ahead = range(self._stride, samples - stop + 1, self._stride) if self._stride else ()
        for shift in ahead:
            yield from (range(part.start + shift, part.stop + shift) for part in self._parts)

    def __iter__(self) -> Iterator[Any]:
        return (self._order[part.start : part.stop] for part in self._ranges())


class _Feeds:
    """The sampler of batches of a loader whose processes stay."""

    feed: _Feed

    def __iter__(self) -> Iterator[Any]:
        return iter(self.feed)


def _refuse(loader: Any, place: str, processes: int) -> None:
    what, whole = "", "give a DataLoader of a map-style data set"
    if isinstance(loader.dataset, IterableDataset):
        what = f"the data set of the loader, {type(loader.dataset).__name__}, can only be read from its begin"
    elif loader.batch_sampler is None:
        what = "the loader makes no batches (batch_size=None)"
    elif type(loader.batch_sampler) is not BatchSampler:
        what = f"the loader makes its batches by {type(loader.batch_sampler).__name__}, and in a job the batch changes"
        whole = "give batch_size, shuffle or a sampler of single samples instead"
    else:
        sampler = loader.batch_sampler.sampler
        try:
            samples = len(sampler)
        except (TypeError, NotImplementedError):
            what = f"the sampler of the loader, {type(sampler).__name__}, has no length"
            whole = "give it __len__, the samples of an epoch"
        else:
            if samples < 1:
                what, whole = "the loader has no sample", "give it some"
            elif (replicas := getattr(sampler, "num_replicas", 1)) != 1 and not (
                replicas == processes and type(sampler) is DistributedSampler
            ):
                what = f"the sampler divides the samples among {sampler.num_replicas} processes"
                whole = "leave num_replicas and rank out: the job divides them"
    if what:
        raise NotSupportedError(f"{place}: {what}: {whole}")


@contextlib.contextmanager
def _seeded(seed: int, sampler: Any) -> Iterator[None]:
    """Have every generator that a sampler may draw from begin with the seed; they go on afterwards as before.

    Those of accelerators are left alone: samplers draw in the main memory.
    """
    own = getattr(sampler, "generator", None)
    before = random.getstate(), np.random.get_state(), None if own is None else own.get_state()
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        random.seed(seed)
        np.random.seed(seed % (1 << 32))
        if own is not None:
            own.manual_seed(seed)
        try:
            yield
        finally:
            random.setstate(before[0])
            np.random.set_state(before[1])
            if own is not None:
                own.set_state(before[2])
