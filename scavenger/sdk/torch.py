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

__all__ = ["Elastic"]

Array = npt.NDArray[Any]
_DTYPES = (torch.float32, torch.float64)


class Elastic:
    """The replica of one worker: a module and its optimizer.

    All gradients of the parameters are views of one flat array per data type, which `push_pull` sends as it is, and
    which gets the mean: nothing is gathered or scattered. Buffers, such as BatchNorm's statistics, are averaged over
    the workers, too, so that all replicas stay the same. Nothing else may change the replica but `step`.

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
        self._arrays: dict[str, Array] = {}
        self._statistics: dict[str, Array] = {}

    def zero_grad(self) -> None:
        """Set all gradients to zero; to be called before each `backward`, instead of the optimizer's `zero_grad`."""
        for flat in self._flat.values():
            flat.zero_()
        self._attach()

    def step(self, job: Job) -> None:
        """Exchange the gradients with the other workers, and apply the mean with the optimizer.

        Raises:
            TrainingCodeError: See `Job.push_pull`.
        """
        self._share(job)
        buffers = {STATISTICS + name: buffer for name, buffer in self.module.named_buffers()}
        for name, buffer in buffers.items():
            # counters of batches are averaged as well: a worker without samples has not counted
            np.copyto(self._arrays[name], _array(buffer))
        job.push_pull(self._arrays, into=self._arrays)
        for name, buffer in buffers.items():
            mean = self._arrays[name]
            value = mean if buffer.dtype.is_floating_point else np.rint(mean)
            buffer.copy_(torch.from_numpy(np.array(value)))
            # the next forward pass changes it, before the step that it belongs to is applied
            self._statistics[f"model/{name.removeprefix(STATISTICS)}"] = _array(buffer).copy()
        rates = [group["lr"] for group in self.optimizer.param_groups]
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            group["lr"] = rate * job.lr_scale
        self.optimizer.step()
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
            moved = torch.from_numpy(self._arrays[name])
            self._flat[name] = moved.copy_(flat)
        self._attach()

    def _attach(self) -> None:
        """Have the parameters' gradients be views of the flat arrays."""
        at = dict.fromkeys(self._flat, 0)
        for parameter in self._parameters:
            name = str(parameter.dtype)
            begin, at[name] = at[name], at[name] + parameter.numel()
            parameter.grad = self._flat[name][begin : at[name]].view(parameter.shape)

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


def _flat_gradients(parameters: list[Any]) -> dict[str, Any]:
    """A flat tensor for the gradients of all parameters of a data type, by its name."""
    sizes: dict[Any, int] = {}
    for parameter in parameters:
        sizes[parameter.dtype] = sizes.get(parameter.dtype, 0) + parameter.numel()
    return {str(dtype): torch.zeros(size, dtype=dtype) for dtype, size in sizes.items()}


def _array(value: Any) -> Array:
    tensor = value if isinstance(value, torch.Tensor) else torch.as_tensor(value)
    return np.asarray(tensor.detach())
