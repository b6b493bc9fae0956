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

import gc
import importlib
import inspect
import json
import math
import time
import weakref
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from scavenger.errors import ConfigurationError, NotSupportedError, TrainingCodeError
from scavenger.sdk.loop import STATISTICS, Job, borrows

try:
    import torch
except ModuleNotFoundError as error:
    raise ConfigurationError(
        "scavenger.sdk.torch needs PyTorch, which is not installed: pip install torch"
    ) from error

from scavenger.sdk.torch_devices import PinnedMemory, flat_names, in_main_memory, put_back, wait_for
from scavenger.sdk.torch_groups import ProcessGroups
from scavenger.sdk.torch_shards import around, is_divided, like, local, whole

__all__ = ["ONLY_READING", "Elastic", "array_of"]

Array = npt.NDArray[Any]
_optimizers = importlib.import_module("torch.optim.optimizer")  # an attribute of `torch.optim` it is not
_DTYPES = (torch.float32, torch.float64)
_USED, _SETTINGS, _OVERFLOW, _ITEMS = (
    STATISTICS + name for name in ("elastic/used", "elastic/settings", "elastic/overflow", "elastic/items")
)
_scalers: weakref.WeakSet[Any] = weakref.WeakSet()
"""Those that were given to `Elastic`."""
_PROBES, _PROBED = 16, 64
"""Gradients that are watched by some of their elements, and about how many of each."""
_ALIKE = 1e-9
"""Relative difference up to which a number counts as that of all workers: their mean is rounded."""

ONLY_READING = frozenset(
    getattr(torch.optim, name)
    for name in ("SGD", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "Adagrad", "Adadelta", "RMSprop")
)
"""Optimizers that do not write to gradients, by any of their implementations; `Rprop` has one that does."""


class Elastic:
    """The replica of one worker: a module, its optimizer, and what belongs to them.

    The gradients of all parameters that are trained lie in one flat array per data type, which `push_pull` sends as it
    is: each is put there as soon as the backward pass has it. The optimizer reads the mean where it was formed, in
    memory that all workers share, unless it might write to it. Buffers, such as BatchNorm's statistics, are averaged
    over the workers, too, so that all replicas stay the same. Nothing else may change the replica but `step`.

    On an accelerator, all of this stays where the module is. Its flat array, one for each device, is copied to the main
    memory at once, and the mean back; so are buffers, and the whole state where a worker joins.

    With each step the workers compare what they train and all numbers of `optimizer.param_groups`.

    Args:
        module: A module with all its parameters made, where they are to be. Layers may be frozen and unfrozen later.
        optimizer: Its optimizer. What it keeps of each parameter is part of the replica, and its `param_groups`.
        scheduler: A scheduler of the optimizer, whose state a worker that joins gets. The loop calls its `step`.
        scaler: A `GradScaler`, likewise; `step` calls its `step` and `update`.

    Raises:
        NotSupportedError: For parameters of half precision, or without values on the device `meta`, and optimizers that
            need a closure or sparse gradients.
        ConfigurationError: If the optimizer has parameters that the module lacks.
    """

    _INIT = "loop.init"
    _TO_DIFFER = ", before job.notify_batch_end, and give a scheduler to Elastic(model, optimizer, scheduler=scheduler)"
    _TO_SCALE = (
        "give it to Elastic(model, optimizer, scaler=scaler), and call neither its step nor its update"
    )
    """What to do, in refusals."""

    def __init__(self, module: Any, optimizer: Any, *, scheduler: Any = None, scaler: Any = None) -> None:
        _refuse_unsupported(module, optimizer, self._refuse_divided)
        self.module, self.optimizer, self.scheduler = module, optimizer, scheduler
        self.scaler = scaler if scaler is not None and scaler.is_enabled() else None
        self._parameters: list[Any] = []
        self._which: list[bool] = []
        """For each parameter of the module, whether it is trained."""
        self._trained: list[Any] = []
        self._frozen: list[Any] = []
        self._names = 0.0
        """Tells which parameters are trained, by their names."""
        if self.scaler is not None:
            _scalers.add(self.scaler)
        self._flat: dict[str, Any] = {}
        """The gradients of all parameters of a data type on one device; see `flat_names`."""
        self._host: dict[str, Any] = {}
        """Of those on accelerators, what `push_pull` sends; of others, that is the flat array itself."""
        self._pinned = PinnedMemory()
        self._groups = ProcessGroups(lambda: self._flat, self._give)
        self._own: list[Any] = []
        """For each parameter that is trained, its part of the flat array."""
        self._grads: list[Any] = []
        """The same as its gradient: if the parameter is divided over processes, so is this."""
        self._in: list[str] = []
        """For each parameter that is trained, the name of the flat array with its gradient."""
        self._places: dict[int, int] = {}
        """By the `id` of a parameter, which is quicker than its hash, its place among those that are trained."""
        self._seen: dict[str, int] = {}
        """Versions of the flat arrays after the last backward pass: whatever else writes to them makes another."""
        self._computed: set[int] = set()
        """Places of parameters whose gradients a backward pass has computed since the last step."""
        self._probes: dict[int, Array] = {}
        """By place, some elements of the largest gradients: a change by `.grad.data` makes no version. Of those on
        accelerators there are none, since to read them is to wait for the device."""
        self._probed: dict[int, bytes] = {}
        """What they were after the last backward pass."""
        self._changed = self._averaged = False
        self._hooked: set[int] = set()
        self._mean: tuple[tuple[int, ...], list[Any], dict[str, Any]] = ((), [], {})
        """Where the mean is in the shared memory; for each parameter its part of it, or of the flat array on its
        accelerator; and the mean by name."""
        self._summed: tuple[Mapping[str, Any], list[Any]] = ({}, [])
        """What a process group forms, and for each parameter its part of it."""
        self._devices: Mapping[Any, None] = {}
        """The accelerators that have a flat array."""
        self._arrays: dict[str, Array] = {}
        self._statistics: dict[str, Array] = {}
        self._items: float | None = None
        """Of this worker's gradients, items per sample; None where they are means over its samples."""
        self._arrange(None, len(self._settings()))

    def _refuse_divided(self, name: str, tensor: Any) -> None:
        """Raise if a parameter or buffer is divided over processes."""
        if is_divided(tensor):
            raise NotSupportedError(
                f"{name} is divided over processes: each worker of a loop has the whole model; leave it out, or write "
                "a script that calls elastic.prepare"
            )

    def zero_grad(self) -> None:
        """Forget all gradients; to be called before each `backward`, instead of the optimizer's `zero_grad`."""
        for parameter in self._parameters:
            parameter.grad = None
        self._forget()

    def average(self, job: Job) -> None:
        """Exchange the gradients with the other workers, and put their mean over all samples into `parameter.grad`.

        There it may be read and changed, as by `clip_grad_norm_`, alike at every worker; then `step` applies it.

        Raises:
            TrainingCodeError: If the gradients were changed before, or the workers differ; see also `Job.push_pull`.
                Changes by `.grad.data` are not seen on an accelerator.
        """
        means = self._exchange(job, private=True)
        for parameter, mean in zip(self._trained, means, strict=True):
            parameter.grad = mean
        self._averaged = True

    def step(self, job: Job) -> None:
        """Apply the mean of the workers' gradients with the optimizer, at its learning rates times `job.lr_scale`.

        Without `average` before, it exchanges the gradients, and the parameters have this worker's own ones again
        afterwards; on an accelerator, the mean. A parameter that no worker has a gradient for is left as it is.

        Raises:
            TrainingCodeError: See `average`.
        """
        if self._averaged:
            self._apply(job)
            self._forget()
            return
        private = self.scaler is not None or not _only_reads(self.optimizer)
        means = self._exchange(job, private=private)
        for parameter, mean in zip(self._trained, means, strict=True):
            parameter.grad = mean
        self._apply(job)
        for parameter, placed, mean in zip(self._trained, self._grads, means, strict=True):
            parameter.grad = None if mean is None else placed
        self._forget()

    def _forget(self) -> None:
        """Begin to watch for changes of the gradients anew."""
        self._changed = self._averaged = False
        self._computed.clear()
        self._probed.clear()
        self._seen = {name: flat._version for name, flat in self._flat.items()}

    def _receive(self, parameter: Any) -> None:
        """Put a gradient into the flat array; what a second `backward` adds is added there."""
        place, gradient = self._places.get(id(parameter)), parameter.grad
        if self._averaged:
            self._forget()
        if place is None:  # it joins the flat array with the next step
            return
        own, name, adds = self._own[place], self._in[place], gradient is self._grads[place]
        version = own._version  # that of the whole flat array, as of every part
        if version != self._seen[name] + adds:
            self._changed = True
        if not adds:
            self._place(parameter, place)
            version += 1
        self._seen[name] = version
        self._computed.add(place)
        if place in self._probes:
            self._probed[place] = self._probes[place].tobytes()

    def _place(self, parameter: Any, place: int) -> None:
        """Put a gradient into the flat array."""
        self._own[place].copy_(_dense(parameter.grad))
        parameter.grad = self._grads[place]

    def follow(self) -> None:
        """Have the flat arrays be where the module is, and of its data types, if it was moved since they were made."""
        pairs = ((p, self._flat[name]) for p, name in zip(self._trained, self._in, strict=True))
        if any(p.device != flat.device or p.dtype != flat.dtype for p, flat in pairs):
            self._arrays = {}  # the next exchange makes others
            self._which.clear()
            self._arrange(None, 0)
            # what it keeps of each parameter follows that
            self.optimizer.load_state_dict(self.optimizer.state_dict())

    def weigh(self, items: float) -> None:
        """Have the gradients count as means over items, such as labels that are no padding, so many per sample.

        The workers' mean weighs them by samples: `sum_w s_w (i_w / s_w) g_w / sum_w s_w (i_w / s_w)` is the mean over
        all items of the step.
        """
        self._items = items

    @property
    def frozen(self) -> list[Any]:
        """Parameters that were not trained in the last step."""
        return self._frozen

    def _exchange(self, job: Job, *, private: bool) -> list[Any]:
        """For each parameter that is trained, its part of the mean; None if no worker has a gradient of it.

        If `private`, the parts are in this worker's own memory, and may be written to.
        """
        self._refuse_changed()
        settings = self._settings()
        self._arrange(job, len(settings))
        wait_for(self._devices)  # what is still computed is no part of the exchange
        began = time.monotonic()
        arrays = self._arrays
        gradients = [parameter.grad for parameter in self._trained]
        for own, placed, gradient in zip(self._own, self._grads, gradients, strict=True):
            if gradient is None:  # the loss does not depend on it
                own.zero_()
            elif gradient is not placed:
                own.copy_(_dense(gradient))
        arrays[_USED][:] = [gradient is not None for gradient in gradients]
        arrays[_ITEMS][:] = 1.0 if self._items is None else self._items
        if self._items is not None:
            for flat in self._flat.values():
                flat.mul_(self._items)
        arrays[_SETTINGS][:] = [self._names, *(value for _, value in settings)]
        if self.scaler is not None:
            overflow = not all(bool(torch.isfinite(flat).all()) for flat in self._flat.values())
            arrays[_OVERFLOW][:] = overflow
            if overflow:  # no mean would be formed of it
                for flat in self._flat.values():
                    flat.zero_()
        if not job.holds(self._groups):
            self._begin_to_give()
        buffers = dict(self.module.named_buffers())
        own = [array_of(value) for value in in_main_memory(list(buffers.values()))]
        for name, array in zip(buffers, own, strict=True):
            # counters of batches are averaged as well: a worker without samples has not counted
            np.copyto(arrays[STATISTICS + name], array)
        wait_for(self._devices)
        found = job.push_pull(arrays, borrow=True)
        self._refuse_different(settings, found[_SETTINGS])
        values = []
        for name, array in zip(buffers, own, strict=True):
            mean = found[STATISTICS + name]
            mean = np.array(mean if array.dtype.kind == "f" else np.rint(mean), array.dtype)
            values.append(torch.from_numpy(mean))
            # the next forward pass changes it, before the step that it belongs to is applied
            self._statistics[f"model/{name}"] = mean
        put_back(list(buffers.values()), values)
        used = (found[_USED] > 0.0).tolist()
        means = self._means(found, private=private)
        self._groups.exchange_s = time.monotonic() - began
        if self._items is not None:
            for flat in self._flat.values():  # where the parts of the mean are, if they are private
                flat.div_(float(found[_ITEMS][0]))
        if self.scaler is not None and found[_OVERFLOW][0] > 0.0:
            for part in means:  # so that every worker's scaler leaves the step out
                part.fill_(torch.inf)
        return [part if given else None for part, given in zip(means, used, strict=True)]

    def _begin_to_give(self) -> None:
        for name, host in self._host.items():
            host.copy_(self._flat[name], non_blocking=True)

    def _give(self) -> None:
        """Copy the gradients to where they are pushed from."""
        self._begin_to_give()
        wait_for(self._devices)

    def _apply(self, job: Job) -> None:
        for parameter in self.frozen:  # they may have a gradient of this worker alone
            parameter.grad = None
        groups = self.optimizer.param_groups
        rates = [group["lr"] for group in groups]
        for group, rate in zip(groups, rates, strict=True):
            group["lr"] = rate * job.lr_scale
        if self.scaler is None:
            self.optimizer.step()
        else:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        for group, rate in zip(groups, rates, strict=True):
            group["lr"] = rate

    def _refuse_changed(self) -> None:
        """Raise if somebody has changed a gradient since the backward pass."""
        written = any(flat._version != self._seen[name] for name, flat in self._flat.items())
        now = ((self._trained[place].grad, self._grads[place]) for place in self._computed)
        replaced = any(gradient is not None and gradient is not own for gradient, own in now)
        hidden = any(self._probes[place].tobytes() != before for place, before in self._probed.items())
        if self._changed or written or replaced or hidden:
            raise TrainingCodeError(
                "gradients were changed after backward(), when they were this worker's alone: call "
                "elastic.average(job) first, then clip or change them, then elastic.step(job) (and "
                "elastic.zero_grad() before backward())"
            )

    def _settings(self) -> list[tuple[str, float]]:
        """The numbers of the optimizer's groups, by name."""
        return [
            (f"param_groups[{number}][{key!r}]", value)
            for number, group in enumerate(self.optimizer.param_groups)
            for key in sorted(group)
            if key != "params"
            for value in _numbers(group[key])
        ]

    def _refuse_different(self, settings: list[tuple[str, float]], mean: Array) -> None:
        """Raise if the mean of the workers' settings is not what each of them has."""
        own = self._arrays[_SETTINGS]
        if mean.shape == own.shape:
            differ = np.abs(mean - own) > _ALIKE * np.abs(own)
            if not differ.any():
                return
            at = int(np.argmax(differ))
            name, value = ("the parameters that are trained", 0.0) if at == 0 else settings[at - 1]
            told = f" ({value:g} here)" if at else ""
        else:
            name, told = "the number of param_groups, or of their values", ""
        raise TrainingCodeError(
            f"the workers differ in {name}{told}: change it in the same step at all of them{self._TO_DIFFER}"
        )

    def _arrange(self, job: Job | None, settings: int) -> None:
        """Make the flat arrays of the parameters that are trained now, unless they are made.

        With a job, they are where `push_pull` sends them without a copy, together with so many settings.
        """
        made = self._arrays[_SETTINGS].size == 1 + settings if self._arrays else job is None
        if made and self._which and [p.requires_grad for p in self._parameters] == self._which:
            return
        named = list(self.module.named_parameters())
        self._parameters = [parameter for _, parameter in named]
        self._which = [parameter.requires_grad for parameter in self._parameters]
        trained = [parameter for parameter in self._parameters if parameter.requires_grad]
        self._frozen = [parameter for parameter in self._parameters if not parameter.requires_grad]
        _refuse_parameters(trained)
        _refuse_foreign(self._parameters, self.optimizer)
        self._names = float(zlib.crc32(" ".join(name for name, p in named if p.requires_grad).encode()))
        gradients = [None if p.grad is None else _dense(p.grad).clone() for p in trained]
        self._in = flat_names(trained)
        devices = dict(zip(self._in, (parameter.device for parameter in trained), strict=True))
        flats = _flat_gradients(trained, self._in)
        if job is not None:
            if not self._arrays and self.scaler is None:
                _refuse_unknown_scaler(self._TO_SCALE)
            like = {name: flat.numpy() for name, flat in flats.items()}
            like |= {STATISTICS + n: np.zeros(tuple(b.shape)) for n, b in self.module.named_buffers()}
            like |= {_USED: np.zeros(len(trained)), _ITEMS: np.zeros(1), _SETTINGS: np.zeros(1 + settings)}
            like |= {} if self.scaler is None else {_OVERFLOW: np.zeros(1)}
            self._pinned.release()
            self._arrays = job.allocate(like)
            self._pinned.pin(self._arrays.values(), devices.values())
            flats = {name: torch.from_numpy(self._arrays[name]) for name in flats}
        self._host = {name: flat for name, flat in flats.items() if devices[name].type != "cpu"}
        flats |= {name: torch.zeros_like(flat, device=devices[name]) for name, flat in self._host.items()}
        self._devices = dict.fromkeys(devices[name] for name in self._host)
        self._flat, self._mean, self._summed, self._trained = flats, ((), [], {}), ({}, []), trained
        self._own = _parts(trained, self._in, flats)
        self._grads = [around(own, parameter) for own, parameter in zip(self._own, trained, strict=True)]
        largest = sorted(range(len(trained)), key=lambda place: trained[place].numel())[-_PROBES:]
        self._probes = {
            place: own.numpy().reshape(-1)[:: max(1, own.numel() // _PROBED)]
            for place, own in enumerate(self._own)
            if place in largest and own.device.type == "cpu"
        }
        self._places = {id(parameter): place for place, parameter in enumerate(trained)}
        for place, (parameter, gradient) in enumerate(zip(trained, gradients, strict=True)):
            if gradient is not None:
                self._own[place].copy_(gradient)
                parameter.grad = self._grads[place]
            if id(parameter) not in self._hooked:
                parameter.register_post_accumulate_grad_hook(self._receive)
                self._hooked.add(id(parameter))
        self._forget()

    def _means(self, found: Mapping[str, Array], *, private: bool) -> list[Any]:
        """For each parameter, its part of the mean: as it lies in the shared memory, or in this worker's own."""
        if not found.keys() >= self._flat.keys():
            return self._sums(private=private)
        mean = {name: found[name] for name in self._flat}
        borrowed = all(array.flags.writeable for array in mean.values())
        for name, array in mean.items():
            own = self._arrays[name]
            if array.ctypes.data != own.ctypes.data and (
                not borrowed or (private and name not in self._host)
            ):
                np.copyto(own, array)
        where = tuple(array.ctypes.data for array in mean.values())
        if borrowed and self._mean[0] != where:
            tensors = {name: torch.from_numpy(array) for name, array in mean.items()}
            there = tensors | {name: self._flat[name] for name in self._host}
            self._mean = where, _parts(self._trained, self._in, there), tensors
        for name, host in self._host.items():
            there = self._mean[2][name] if borrowed else host
            if not borrowed or there.data_ptr() != host.data_ptr():  # else the device has it: it is its own
                self._flat[name].copy_(there, non_blocking=True)
        wait_for(self._devices)  # the others write there when this step has ended
        return self._grads if private or not borrowed else self._mean[1]

    def _sums(self, *, private: bool) -> list[Any]:
        """The same, where a process group has formed the mean."""
        sums = self._groups.sums
        if not private:
            if self._summed[0] is not sums:
                self._summed = sums, _parts(self._trained, self._in, sums)
            return self._summed[1]
        for name, flat in self._flat.items():
            flat.copy_(sums[name])
        wait_for(self._devices)
        return self._grads

    def state(self) -> dict[str, Array]:
        """The whole replica as named arrays.

        These are parameters, buffers, what the optimizer keeps of each parameter, and as the JSON of `settings` its
        groups, which parameters are trained, and the states of scheduler and scaler.
        """
        found = {f"model/{name}": array_of(tensor) for name, tensor in self.module.state_dict().items()}
        found |= {name: array for name, array in self._statistics.items() if name in found}
        for name, value in self._slots():
            found[f"optimizer/{name}"] = array_of(value)
        settings = {
            "groups": [
                {key: value for key, value in group.items() if key != "params"}
                for group in self.optimizer.state_dict()["param_groups"]
            ],
            "trained": [name for name, p in self.module.named_parameters() if p.requires_grad],
            **{name: part.state_dict() for name, part in self._others()},
        }
        found["settings"] = np.frombuffer(json.dumps(_encoded(settings)).encode(), np.uint8)
        return found

    @borrows
    def load(self, state: Mapping[str, Array]) -> None:
        """Restore what `state` returned.

        Raises:
            TrainingCodeError: If this worker's optimizer has other groups than the state.
        """
        model = {
            name.removeprefix("model/"): torch.from_numpy(array if array.flags.writeable else np.array(array))
            for name, array in state.items()
            if name.startswith("model/")
        }
        present = self.module.state_dict()
        self.module.load_state_dict({name: like(present.get(name), tensor) for name, tensor in model.items()})
        self._statistics.clear()
        kept: dict[int, dict[str, Any]] = {}
        for name, array in state.items():
            if name.startswith("optimizer/"):
                _, index, slot = name.split("/", 2)
                kept.setdefault(int(index), {})[slot] = torch.from_numpy(np.array(array))
        settings = _decoded(json.loads(np.asarray(state["settings"]).tobytes()))
        document = self.optimizer.state_dict()
        of = dict(enumerate(p for group in self.optimizer.param_groups for p in group["params"]))
        document["state"] = {
            index: {slot: like(of.get(index), value) for slot, value in slots.items()}
            for index, slots in kept.items()
        }
        groups, saved = document["param_groups"], settings["groups"]
        if len(groups) != len(saved):
            raise TrainingCodeError(
                f"the job's optimizer has {len(saved)} param_groups, and that of a worker that joins "
                f"{len(groups)}: make all groups before {self._INIT}, those of frozen layers, too"
            )
        for group, values in zip(groups, saved, strict=True):
            group.update({key: _beside(group.get(key), value) for key, value in values.items()})
        self.optimizer.load_state_dict(document)
        for name, parameter in self.module.named_parameters():
            parameter.requires_grad_(name in settings["trained"])
        for name, part in self._others():
            if name in settings:
                part.load_state_dict(settings[name])

    def _others(self) -> list[tuple[str, Any]]:
        found = [("scheduler", self.scheduler), ("scaler", self.scaler)]
        return [(name, part) for name, part in found if part is not None]

    def _slots(self) -> Iterator[tuple[str, Any]]:
        for index, slots in self.optimizer.state_dict()["state"].items():
            for slot, value in slots.items():
                if value is not None:  # SGD without momentum has an empty slot
                    yield f"{index}/{slot}", value


def _refuse_unsupported(module: Any, optimizer: Any, refuse_divided: Callable[[str, Any], None]) -> None:
    if isinstance(module, torch.nn.parallel.DistributedDataParallel):
        raise NotSupportedError(
            "Elastic averages gradients itself: give it the module without DistributedDataParallel"
        )
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise NotSupportedError(
            f"{type(optimizer).__name__} computes the loss several times in a step, by a closure: use an optimizer "
            "that takes one gradient, such as SGD or AdamW"
        )
    if isinstance(optimizer, torch.optim.SparseAdam):
        raise NotSupportedError("SparseAdam needs sparse gradients, and means are dense: use Adam")
    divided = any(type(one).__name__ == "FullyShardedDataParallel" for one in module.modules())
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        if divided:
            raise NotSupportedError(
                f"{name} is divided by FullyShardedDataParallel: have fully_shard divide it, in a script that calls "
                "elastic.prepare"
            )
        refuse_divided(name, tensor)
        if torch.nn.parameter.is_lazy(tensor):
            raise NotSupportedError(
                f"{name} has no shape yet: call the module with a batch before Elastic(...)"
            )
        if tensor.is_meta:
            raise NotSupportedError(f"{name} is on meta, so it has no values: load the module before")
        if tensor.is_complex():
            raise NotSupportedError(
                f"scavenger.sdk.torch has no complex numbers, and {name} is {tensor.dtype}"
            )
    for layer in module.modules():
        if isinstance(layer, torch.nn.SyncBatchNorm):
            raise NotSupportedError("SyncBatchNorm needs a process group of all workers: use BatchNorm")
        if isinstance(layer, torch.nn.modules.batchnorm._BatchNorm):
            layer.register_forward_pre_hook(_refuse_one_sample)


def _refuse_unknown_scaler(what_to_do: str) -> None:
    """Raise if a scaler of this process scales losses: gradients do not tell that they are scaled."""

    def unknown() -> bool:
        made = torch.amp.GradScaler, torch.cuda.amp.GradScaler
        scalers = (one for one in gc.get_objects() if type(one) in made)
        return any(one.is_enabled() and one._scale is not None and one not in _scalers for one in scalers)

    found = unknown()
    if found:  # it may be one that nobody uses any more
        gc.collect()
        found = unknown()
    if found:
        raise TrainingCodeError(f"a GradScaler scales the loss, which is not known: {what_to_do}")


def _refuse_one_sample(layer: Any, given: tuple[Any, ...]) -> None:
    samples = given[0]
    if layer.training and samples.dim() > 1 and samples.numel() == samples.size(1):
        raise TrainingCodeError(
            "BatchNorm cannot train on a batch of one sample: choose sizes of shards that leave no rest of one, or "
            "GroupNorm or LayerNorm"
        )


def _refuse_parameters(trained: Iterable[Any]) -> None:
    for parameter in trained:
        if parameter.dtype not in _DTYPES:
            raise NotSupportedError(
                f"scavenger.sdk.torch trains parameters in single or double precision, not {parameter.dtype}: keep "
                "them in float32, and compute in torch.autocast"
            )


def _refuse_foreign(parameters: Iterable[Any], optimizer: Any) -> None:
    known = set(parameters)
    if any(parameter not in known for group in optimizer.param_groups for parameter in group["params"]):
        raise ConfigurationError(
            "the optimizer has parameters that the module of Elastic lacks: put all of them into one module, such as "
            "a torch.nn.ModuleList"
        )


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


def _flat_gradients(parameters: Sequence[Any], names: Sequence[str]) -> dict[str, Any]:
    """A flat tensor of zeros in the main memory for the gradients of all parameters of each name."""
    sizes = dict.fromkeys(names, 0)
    for parameter, name in zip(parameters, names, strict=True):
        sizes[name] += local(parameter).numel()
    dtypes = {name: parameter.dtype for parameter, name in zip(parameters, names, strict=True)}
    return {name: torch.zeros(size, dtype=dtypes[name], device="cpu") for name, size in sizes.items()}


def _parts(parameters: Iterable[Any], names: Iterable[str], flat: Mapping[str, Any]) -> list[Any]:
    """For each parameter, a view of its part of the flat tensor of its name."""
    at, found = dict.fromkeys(flat, 0), []
    for parameter, name in zip(parameters, names, strict=True):
        part = local(parameter)
        begin, at[name] = at[name], at[name] + part.numel()
        found.append(flat[name][begin : at[name]].view(part.shape))
    return found


def _dense(gradient: Any) -> Any:
    gradient = local(gradient)
    if gradient.is_sparse:
        gradient = gradient.to_dense()
    return gradient.detach() if gradient.requires_grad else gradient


def array_of(value: Any) -> Array:
    """A tensor or number as an array in the main memory."""
    tensor = whole(value) if isinstance(value, torch.Tensor) else torch.as_tensor(value)
    if tensor.dtype == torch.bfloat16:  # NumPy has none; single precision holds it exactly
        tensor = tensor.float()
    found: Array = tensor.detach().cpu().numpy()
    return found


def _beside(present: Any, value: Any) -> Any:
    """A value of a setting; a tensor on the device of the present one."""
    tensors = isinstance(present, torch.Tensor) and isinstance(value, torch.Tensor)
    return value.to(present.device) if tensors else value


def _numbers(value: Any) -> list[float]:
    """The finite numbers of a setting of the optimizer."""
    if type(value) is float:  # most of them
        return [value] if math.isfinite(value) else []
    if isinstance(value, list | tuple):
        return [number for one in value for number in _numbers(one)]
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        value = value.item()
    return [float(value)] if isinstance(value, int | float) and math.isfinite(value) else []


def _encoded(value: Any) -> Any:
    """A setting as JSON that keeps tuples, keys that are no text, and tensors, with the same text at every worker.

    Raises:
        TrainingCodeError: If it is none of these, nor a list, a number, a text or None.
    """
    match value:
        case None | bool() | int() | float() | str():
            return value.item() if isinstance(value, np.generic) else value
        case list():
            return [_encoded(one) for one in value]
        case tuple():
            return {"tuple": [_encoded(one) for one in value]}
        case Mapping():
            pairs = [[_encoded(key), _encoded(one)] for key, one in value.items()]
            return {"mapping": sorted(pairs, key=lambda pair: json.dumps(pair[0]))}
        case torch.Tensor():
            return {"tensor": value.tolist(), "dtype": str(value.dtype).removeprefix("torch.")}
        case _:
            raise TrainingCodeError(
                f"a worker that joins cannot get {value!r:.60} from optimizer, scheduler or scaler: keep numbers, "
                "texts, lists and mappings in their state_dict"
            )


def _decoded(value: Any) -> Any:
    match value:
        case list():
            return [_decoded(one) for one in value]
        case {"tuple": items}:
            return tuple(_decoded(one) for one in items)
        case {"mapping": pairs}:
            return {_decoded(key): _decoded(one) for key, one in pairs}
        case {"tensor": numbers, "dtype": dtype}:
            return torch.tensor(numbers, dtype=getattr(torch, dtype), device="cpu")
        case _:
            return value
