"""Checks that a stored or imported model can predict, before it is used."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol

import numpy as np

from scavenger.domain.configuration import Offer
from scavenger.domain.curve import IntArray
from scavenger.models.parallel import ParallelModel
from scavenger.models.step_laws import StepTimes
from scavenger.models.transfer import transfer

WORKERS = (1, 2, 1000)
BATCH_SIZES = (1, 64, 10**9)
"""Batch sizes far outside of real jobs: predictions there need not be accurate, but must be numbers."""

STEP_S = (1e-3, 1e3)
"""Measured step times that a model is corrected by where it serves another job or machine."""


class _VmModel(Protocol):
    @property
    def vm(self) -> str: ...

    @property
    def parallel(self) -> ParallelModel: ...


class _Model(Protocol):
    """The parts of a `JobModel` that are tried; that module reads models, and imports this one."""

    @property
    def vms(self) -> Sequence[_VmModel]: ...

    def local_batch_max(self, offer: Offer) -> int | None: ...

    def predict(self, offer: Offer, workers: IntArray, global_batch_size: IntArray, /) -> object: ...


def try_out(model: _Model) -> None:
    """Predict extreme configurations on every VM type of the model and on others, and transfer its step times.

    Raises:
        ValueError: If that fails, or a prediction is not a positive number.
    """
    try:
        with np.errstate(all="ignore"):
            for offer in _offers(model):
                _predict(model, offer)
            for vm in model.vms:
                for step_s in STEP_S:
                    transfer(vm.parallel, [StepTimes(1, 64, 64, 1.0, step_s, step_s, 0.0, 0.0, 20)])
    except (ArithmeticError, IndexError, TypeError) as error:
        raise ValueError(f"the model cannot predict: {type(error).__name__}: {error}") from error


def _offers(model: _Model) -> list[Offer]:
    """One of each VM type, and one that the model knows nothing of, to which step times are carried over."""
    names = (*(vm.vm for vm in model.vms), "another")
    return [
        Offer("trial", "", vm, 1.0, "trial", 1024, 2**50, shared_cpus=2, workers_per_vm=8) for vm in names
    ]


def _predict(model: _Model, offer: Offer) -> None:
    for memory_bytes in (2**20, offer.memory_bytes):
        model.local_batch_max(replace(offer, memory_bytes=memory_bytes))
    pairs = [(workers, batch) for workers in WORKERS for batch in BATCH_SIZES if batch >= workers]
    workers, batch = np.array(pairs, dtype=np.int64).T
    predicted = model.predict(offer, workers, batch)
    for name in ("time_low_s", "time_high_s", "cost_low_usd", "cost_high_usd", "step_time_s", "epochs"):
        figures = getattr(predicted, name)
        if not np.all(np.isfinite(figures) & (figures > 0.0)):
            raise ValueError(f"the model cannot predict: its {name} at {offer.vm} is no positive number")
