"""How many aggregator VMs a configuration needs, by memory and by bandwidth.

Notation: K workers, a model of M bytes with o variables of the optimizer per weight, n aggregator VMs that hold equal
shares, each with W bytes of memory and a network of R bytes per second, and a step of τ seconds.

Memory, summed over the VMs: two states of the weights [1]_, one of the optimizer [4]_, the best weights, a copy of
weights, optimizer and best weights while a checkpoint is written, and gradients that wait for their turn to be added
[3]_, which do not grow with K::

    H = (2 + o + 1  +  1 + o + 1  +  G) M          9.25 times the model with Adam (o = 2)

    n >= H / (W - `OWN_BYTES`)

Measured with Adam (`python -m benchmarks aggregator_memory`): 4.30 models, 5.30 with the best weights, and while a
checkpoint is written 7.00 and 9.00.

Bandwidth: in a step each worker pushes its gradients and pulls the weights. The VMs' networks carry both within the
step, as if both directions shared one link, so that the count errs upwards where they do not::

    n >= 2 K M / (R τ)          the least for which their network is not the limit, as in Cynthia [2]_

Where gradients are rounded to 16 bits, a worker pushes half of a model, and 2 K M is (1 + 1/2) K M: at least, as small
tensors, sparse gradients and others are pushed as they are.

Step time τ' with n' VMs instead of those on which a step was measured or predicted. Their network takes
N = 2 K M s / R of it or more, where s is the largest share of the model on one of them. If all of N falls with the
share, and nothing else changes::

    τ' >= τ - N (1 - 1 / (s n'))          a bound, not a prediction: over n nothing was measured

References:
    .. [1] docs/adr/0009-two-states.md.
    .. [2] Zheng et al., "Cynthia", ICPP 2019, which also chooses the number of parameter servers by their load.
    .. [3] docs/adr/0034-sums-on-arrival.md.
    .. [4] docs/adr/0047-optimizer-in-place.md.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass

WAITING_GRADIENTS = 0.25
"""G: gradients of workers of other hosts that aggregators keep at a time, in models."""

_HELD_STATES = 6
"""States that the leader of a loop may hold at once: of the checkpoint, of the best epoch, the last one, the mean, and
two that are being sent or received."""
OWN_BYTES = 2**30
"""Memory of an aggregator VM for its system, the agent and the processes; an assumption, not measured on a cloud."""

ROUNDED = 0.5
"""Bytes of gradients that are rounded to 16 bits, over those of gradients in single precision."""

NETWORK_SHARE = 0.5
"""Share of a step from which on the network of aggregator VMs is worth a note."""

UNKNOWN_COPIES = 2
"""Copies for optimizers that are not in the table: as with Adam, and the most of those in it without an option."""

_COPIES: Mapping[str, int] = {
    "SGD": 0,
    "Adagrad": 1,
    "RMSprop": 1,
    "Lion": 1,
    "Muon": 2,
    "Adadelta": 2,
    "Adam": 2,
    "AdamW": 2,
    "Adamax": 2,
    "Nadam": 2,
    "Ftrl": 2,
    "Adafactor": 1,
}
"""Variables per weight of Keras's optimizers (`build` of each class); Adafactor has fewer for matrices."""

_OPTIONS = ("momentum", "amsgrad", "centered", "use_ema")
"""Options of an optimizer that add a variable per weight."""


def optimizer_copies(optimizer: str) -> int:
    """Variables per weight of an optimizer, o.

    Args:
        optimizer: Keras's serialised optimizer, JSON; an optimizer that wraps another counts as that.
    """
    try:
        found = json.loads(optimizer)
    except ValueError:
        return UNKNOWN_COPIES
    while isinstance(found, dict) and isinstance(
        inner := found.get("config", {}).get("inner_optimizer"), dict
    ):
        found = inner
    if not isinstance(found, dict):
        return UNKNOWN_COPIES
    config = found.get("config") or {}
    copies = _COPIES.get(str(found.get("class_name", "")), UNKNOWN_COPIES)
    return copies + sum(bool(config.get(option)) for option in _OPTIONS)


def held_models(copies: int) -> float:
    """Memory of all aggregators in models at its peak, `H / M`: while a checkpoint is written."""
    kept = 2.0 + copies + 1.0
    copied_for_a_checkpoint = 1.0 + copies + 1.0
    return kept + copied_for_a_checkpoint + WAITING_GRADIENTS


def vms_for_memory(weights_bytes: float, copies: int, *, vm_bytes: float) -> int | None:
    """Least number of aggregator VMs that hold a model, if each holds an equal share.

    Args:
        weights_bytes: M.
        copies: o.
        vm_bytes: W.

    Returns:
        At least 1; None if such VMs have no memory to spare.
    """
    if vm_bytes <= OWN_BYTES:
        return None
    return max(1, math.ceil(held_models(copies) * weights_bytes / (vm_bytes - OWN_BYTES)))


def vms_for_bandwidth(
    workers: int, weights_bytes: float, *, step_time_s: float, vm_bytes_per_s: float | None
) -> int | None:
    """Least number of aggregator VMs whose networks carry a step's gradients and weights within the step.

    Args:
        workers: K.
        weights_bytes: M.
        step_time_s: τ that the step would take without waiting for the network.
        vm_bytes_per_s: R; None if unknown.

    Returns:
        At least 1; None if the bandwidth is unknown.
    """
    if vm_bytes_per_s is None:
        return None
    return max(1, math.ceil(2.0 * workers * weights_bytes / (vm_bytes_per_s * step_time_s)))


@dataclass(frozen=True, slots=True)
class ModelSize:
    """What a model asks of aggregator VMs, as once recorded; it does not depend on where it is trained.

    Attributes:
        weights_bytes: M.
        copies: o.
        shares: Largest share of the model on one of 1, 2, ... VMs, s; it cannot fall below that of a tensor that is not
            divided, and is 1 with an optimizer that needs all gradients at once.
    """

    weights_bytes: float
    copies: int
    shares: tuple[float, ...]

    def __post_init__(self) -> None:
        if not (self.weights_bytes > 0.0 and self.copies >= 0 and self.shares):
            raise ValueError("a model has weights, and shares for one VM at least")
        if not all(0.0 < share <= 1.0 for share in self.shares):
            raise ValueError(f"a share is above 0 and at most 1, not {self.shares}")

    def share(self, vms: int) -> float:
        """s with n VMs; with more than was recorded, the last one."""
        return self.shares[min(vms, len(self.shares)) - 1]

    def vms_for_memory(self, vm_bytes: float) -> int | None:
        """Least number of VMs that hold the model with these shares; None if no recorded number does.

        Args:
            vm_bytes: W.
        """
        held = held_models(self.copies) * self.weights_bytes
        counts = range(1, len(self.shares) + 1)
        return next((n for n in counts if held * self.share(n) <= vm_bytes - OWN_BYTES), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class AggregatorVms:
    """The aggregator VMs of a job whose model is known.

    Attributes:
        vms: n.
        vm: Their type.
        vm_bytes: W.
        weights_bytes: M.
        copies: o.
        largest_share: Largest share of the model on one VM: 1 / n if tensors could be divided at will.
        vm_bytes_per_s: R, or more; None if unknown.
        usd_per_hour: Price of one of them, with its extras.
        pushed: Bytes of a worker's gradients over those of the weights, at least.
    """

    vms: int
    vm: str
    vm_bytes: float
    weights_bytes: float
    copies: int
    largest_share: float
    vm_bytes_per_s: float | None = None
    usd_per_hour: float = 0.0
    pushed: float = 1.0

    def network_s(self, workers: int) -> float | None:
        """Least time of a step in which the network of the fullest VM is busy, N; None if its bandwidth is unknown."""
        if self.vm_bytes_per_s is None:
            return None
        return (1.0 + self.pushed) * workers * self.largest_share * self.weights_bytes / self.vm_bytes_per_s

    def step_time_min_s(self, vms: int, workers: int, step_time_s: float) -> float:
        """Lower bound of the time of a step with another number of VMs that share the model evenly, τ'.

        Args:
            vms: n', at least as many as there are.
            workers: K.
            step_time_s: τ, with as many as there are.
        """
        network_s = self.network_s(workers) or 0.0
        return max(0.0, step_time_s - network_s * max(0.0, 1.0 - 1.0 / (self.largest_share * vms)))

    def network_note(self, workers: int, step_time_s: float) -> str:
        """What the networks of the VMs do to a configuration; empty if nothing, or if their bandwidth is unknown.

        Args:
            workers: K.
            step_time_s: Predicted time of a step.
        """
        least_s = self.network_s(workers)
        if least_s is None or least_s < NETWORK_SHARE * step_time_s:
            return ""
        needed = vms_for_bandwidth(
            workers,
            (1.0 + self.pushed) / 2.0 * self.weights_bytes,
            step_time_s=NETWORK_SHARE * step_time_s,
            vm_bytes_per_s=self.vm_bytes_per_s,
        )
        assert needed is not None
        more_usd = max(0, needed - self.vms) * self.usd_per_hour
        return (
            f"the network of the aggregator VMs takes {least_s:.3g} s or more of a predicted step of "
            f"{step_time_s:.3g} s with {workers} workers; elastic.aggregator_vms: {needed}, if tensors can be divided "
            f"so, would take {NETWORK_SHARE:.0%} of it at most, for ${more_usd:.3g} an hour more, and a step then "
            f"{self.step_time_min_s(needed, workers, step_time_s):.3g} s or longer{self._rounding_note(least_s)}"
        )

    def _rounding_note(self, least_s: float) -> str:
        """What rounded gradients would save, if they are not."""
        if self.pushed < 1.0:
            return ""
        return (
            f"; elastic.gradients: bfloat16 would save up to {(1.0 - ROUNDED) / 2.0 * least_s:.3g} s of these"
        )

    def lack(self) -> str:
        """Why their memory does not hold the model, with any number of workers, and what helps; empty if it does."""
        if held_models(self.copies) * self.largest_share * self.weights_bytes <= self.vm_bytes - OWN_BYTES:
            return ""
        needed = vms_for_memory(self.weights_bytes, self.copies, vm_bytes=self.vm_bytes)
        has = f"{self.vms} aggregator VM{'' if self.vms == 1 else 's'} {self.vm} of {self.vm_bytes / 2**30:.3g} GiB"
        if needed is not None and needed > self.vms:
            helps = f"elastic.aggregator_vms: {needed}, if tensors can be divided so, would hold it"
        else:
            helps = "a larger VM type would hold it"
        return f"the model is too large for the memory of {has}; {helps}"


def loop_leader_lack(state_bytes: float, workers: int, *, memory_bytes: float) -> str:
    """Why the memory of a loop's leader may not do, and for how many workers it does; empty if it does.

    What a worker pushes is taken to be as large as the state of a replica at most, so the leader holds no more than
    `(K + 6) S`.

    Args:
        state_bytes: S, the state of a replica.
        workers: K, the most that may train.
        memory_bytes: Memory of the leader's machine.
    """
    held_bytes = (workers + _HELD_STATES) * state_bytes
    if held_bytes <= memory_bytes - OWN_BYTES:
        return ""
    fit = int((memory_bytes - OWN_BYTES) // state_bytes) - _HELD_STATES
    certain = f"{fit} would fit in any case" if fit >= 1 else "not even one is sure to fit"
    return (
        f"the process that leads it holds what {workers} workers push, and states of {state_bytes / 2**20:.0f} MiB, "
        f"up to {held_bytes / 2**30:.3g} GiB, and its machine has {memory_bytes / 2**30:.3g} GiB; {certain}"
    )
