"""Adapter for PyTorch loops: a module's gradients as one flat array, and module and optimizer as a loop's state.

A loop that uses it reads as a loop without it::

    elastic = Elastic(model, optimizer)
    job = loop.init(shards, state=elastic.state, load=elastic.load)
    for epoch in job.epochs():
        for batch in job.batches():
            elastic.zero_grad()
            loss = loss_of(model, batch)
            loss.backward()
            elastic.step(job)
            job.notify_batch_end(loss=loss.item())

Importing this module imports PyTorch, which the extra `compare` installs.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from scavenger.errors import ConfigurationError, NotSupportedError
from scavenger.sdk.loop import STATISTICS, Job

try:
    import torch
except ModuleNotFoundError as error:
    raise ConfigurationError(
        "scavenger.sdk.torch needs PyTorch, which is not installed: pip install torch"
    ) from error

__all__ = ["ONLY_READING", "Elastic"]

Array = npt.NDArray[Any]
_optimizers = importlib.import_module("torch.optim.optimizer")  # an attribute of `torch.optim` it is not
_DTYPES = (torch.float32, torch.float64)

ONLY_READING = frozenset(
    getattr(torch.optim, name)
    for name in ("SGD", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "Adagrad", "Adadelta", "RMSprop")
)
"""Optimizers that do not write to gradients, by any of their implementations; `Rprop` has one that does."""


class Elastic:
    """The replica of one worker: a module and its optimizer.

    All gradients of the parameters lie in one flat array per data type, which `push_pull` sends as it is: each is put
    there as soon as the backward pass has it. The optimizer reads the mean where it was formed, in memory that all
    workers share, unless it might write to it. Buffers, such as BatchNorm's statistics, are averaged over the workers,
    too, so that all replicas stay the same. Nothing else may change the replica but `step`.

    Args:
        module: A module on a processor, with all its parameters made.
        optimizer: Its optimizer. What it keeps of each parameter is part of the replica, and the learning rates.

    Raises:
        NotSupportedError: For parameters on an accelerator, or of half precision.
    """

    def __init__(self, module: Any, optimizer: Any) -> None:
        self.module, self.optimizer = module, optimizer
        self._parameters = [p for p in module.parameters() if p.requires_grad]
        for parameter in self._parameters:
            if parameter.device.type != "cpu" or parameter.dtype not in _DTYPES:
                raise NotSupportedError(
                    f"scavenger.sdk.torch trains on processors, in single or double precision, not {parameter.dtype} "
                    f"on {parameter.device.type}"
                )
        self._flat = _flat_gradients(self._parameters)
        self._own: list[Any] = []
        """For each parameter, its part of the flat array."""
        self._mean: tuple[tuple[int, ...], list[Any]] = ((), [])
        """For each parameter, its part of the mean in the shared memory, and where that is."""
        self._arrays: dict[str, Array] = {}
        self._statistics: dict[str, Array] = {}
        self._own = self._parts(self._flat)
        for index, parameter in enumerate(self._parameters):
            parameter.register_post_accumulate_grad_hook(functools.partial(self._computed, index))

    def zero_grad(self) -> None:
        """Forget all gradients; to be called before each `backward`, instead of the optimizer's `zero_grad`."""
        for parameter in self._parameters:
            parameter.grad = None

    def _computed(self, index: int, parameter: Any) -> None:
        """Put a gradient into the flat array; what a second `backward` adds is added there."""
        own, gradient = self._own[index], parameter.grad
        if gradient is not own:
            parameter.grad = own.copy_(gradient.to_dense() if gradient.is_sparse else gradient)

    def step(self, job: Job) -> None:
        """Exchange the gradients with the other workers, and apply the mean with the optimizer.

        Afterwards the parameters have this worker's own gradients again.

        Raises:
            TrainingCodeError: See `Job.push_pull`.
        """
        self._share(job)
        for index, parameter in enumerate(self._parameters):
            if parameter.grad is None:  # the loss does not depend on it
                parameter.grad = self._own[index].zero_()
            else:
                self._computed(index, parameter)
        buffers = {STATISTICS + name: buffer for name, buffer in self.module.named_buffers()}
        for name, buffer in buffers.items():
            # counters of batches are averaged as well: a worker without samples has not counted
            np.copyto(self._arrays[name], _array(buffer))
        found = job.push_pull(self._arrays, borrow=True)
        for name, buffer in buffers.items():
            mean = found[name]
            value = mean if buffer.dtype.is_floating_point else np.rint(mean)
            buffer.copy_(torch.from_numpy(np.array(value)))
            # the next forward pass changes it, before the step that it belongs to is applied
            self._statistics[f"model/{name.removeprefix(STATISTICS)}"] = _array(buffer).copy()
        rates = [group["lr"] for group in self.optimizer.param_groups]
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            group["lr"] = rate * job.lr_scale
        for parameter, mean in zip(self._parameters, self._means(found), strict=True):
            parameter.grad = mean
        self.optimizer.step()
        for parameter, own in zip(self._parameters, self._own, strict=True):
            parameter.grad = own
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            group["lr"] = rate

    def _share(self, job: Job) -> None:
        """Move the flat gradients, the first time, to where `push_pull` sends them without a copy."""
        if self._arrays:
            return
        like = {name: flat.numpy() for name, flat in self._flat.items()}
        for name, buffer in self.module.named_buffers():
            like[STATISTICS + name] = np.zeros(tuple(buffer.shape))
        self._arrays = job.allocate(like)
        for name, flat in self._flat.items():
            self._flat[name] = torch.from_numpy(self._arrays[name]).copy_(flat)
        before, self._own = self._own, self._parts(self._flat)
        for parameter, old, own in zip(self._parameters, before, self._own, strict=True):
            if parameter.grad is old:
                parameter.grad = own

    def _means(self, found: Mapping[str, Array]) -> list[Any]:
        """For each parameter, its part of the mean: as it lies in the shared memory, if that may be, else in a copy."""
        flat = {name: found[name] for name in self._flat}
        if not (_only_reads(self.optimizer) and all(array.flags.writeable for array in flat.values())):
            for name, array in flat.items():
                np.copyto(self._arrays[name], array)
            return self._own
        where = tuple(array.ctypes.data for array in flat.values())
        if self._mean[0] != where:
            tensors = {name: torch.from_numpy(array) for name, array in flat.items()}
            self._mean = (where, self._parts(tensors))
        return self._mean[1]

    def _parts(self, flat: Mapping[str, Any]) -> list[Any]:
        """For each parameter, a view of its part of the flat tensors."""
        at, found = dict.fromkeys(flat, 0), []
        for parameter in self._parameters:
            name = str(parameter.dtype)
            begin, at[name] = at[name], at[name] + parameter.numel()
            found.append(flat[name][begin : at[name]].view(parameter.shape))
        return found

    def state(self) -> dict[str, Array]:
        """The whole replica as named arrays: parameters, buffers, and what the optimizer keeps of each parameter."""
        found = {f"model/{name}": _array(tensor) for name, tensor in self.module.state_dict().items()}
        found |= {name: array for name, array in self._statistics.items() if name in found}
        for name, value in self._slots():
            found[f"optimizer/{name}"] = _array(value)
        found["rates"] = np.array([group["lr"] for group in self.optimizer.param_groups])
        return found

    def load(self, state: Mapping[str, Array]) -> None:
        """Restore what `state` returned."""
        model = {
            name.removeprefix("model/"): torch.from_numpy(np.array(array))
            for name, array in state.items()
            if name.startswith("model/")
        }
        self.module.load_state_dict(model)
        self._statistics.clear()
        kept: dict[int, dict[str, Any]] = {}
        for name, array in state.items():
            if name.startswith("optimizer/"):
                _, index, slot = name.split("/", 2)
                kept.setdefault(int(index), {})[slot] = torch.from_numpy(np.array(array))
        document = self.optimizer.state_dict()
        document["state"] = kept
        for group, rate in zip(document["param_groups"], state["rates"], strict=True):
            group["lr"] = float(rate)
        self.optimizer.load_state_dict(document)

    def _slots(self) -> Iterator[tuple[str, Any]]:
        for index, slots in self.optimizer.state_dict()["state"].items():
            for slot, value in slots.items():
                if value is not None:  # SGD without momentum has an empty slot
                    yield f"{index}/{slot}", value


def _only_reads(optimizer: Any) -> bool:
    """Whether an optimizer is known to leave the gradients as they are, and nobody is called before or after it."""
    hooks = (
        optimizer._optimizer_step_pre_hooks,
        optimizer._optimizer_step_post_hooks,
        _optimizers._global_optimizer_pre_hooks,
        _optimizers._global_optimizer_post_hooks,
    )
    return (
        type(optimizer) in ONLY_READING and not any(hooks) and getattr(optimizer, "grad_scale", None) is None
    )


def _flat_gradients(parameters: list[Any]) -> dict[str, Any]:
    """A flat tensor for the gradients of all parameters of a data type, by its name."""
    sizes: dict[Any, int] = {}
    for parameter in parameters:
        sizes[parameter.dtype] = sizes.get(parameter.dtype, 0) + parameter.numel()
    return {str(dtype): torch.zeros(size, dtype=dtype) for dtype, size in sizes.items()}


def _array(value: Any) -> Array:
    tensor = value if isinstance(value, torch.Tensor) else torch.as_tensor(value)
    return np.asarray(tensor.detach())
