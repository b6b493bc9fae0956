"""A PyTorch device that is no processor, for where there is none: `tiny`. Importing this module registers it.

What is computed there, the processor computes, in tensors that nothing else reaches: `.numpy()` of one is refused, and
a tensor of the main memory beside one. What is copied is counted. A copy that need not be waited for is made when
somebody waits, or with what is computed next. As on every device, a thread of its own computes gradients. It must be
registered before a process computes any.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

NAME = "tiny"
aten = torch.ops.aten
_MADE = (
    *(aten.empty.memory_format, aten.empty_strided.default, aten.randperm.default),
    *(aten.arange.default, aten.arange.start, aten.arange.start_step),
)
"""What makes a tensor without another one, and what PyTorch makes by changing the shape of an empty one."""
_MIXED = (aten.index.Tensor, aten.index_put_.default, aten._index_put_impl_.default)
"""Take indices in the main memory on every device."""
_HALF = (aten.linear.default, aten.conv2d.default, aten.matmul.default)
_SINGLE = (aten.cross_entropy_loss.default, aten.mse_loss.default)
"""What autocast computes in half precision, and in single."""


class Copies:
    """What was copied since the last `clear`.

    Attributes:
        out, into: The elements of each copy from the device, and to it.
        read: Numbers that were read one by one, each of which waits for the device.
    """

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.out: list[int] = []
        self.into: list[int] = []
        self.read = 0


copies = Copies()
_late: list[Callable[[], object]] = []
"""Copies that nobody has waited for."""


class DeviceTensor(torch.Tensor):
    """A tensor on the device; its numbers are in a tensor that only this class has."""

    _inner: Any

    @staticmethod
    def __new__(cls, inner: Any) -> Any:
        given = {"strides": inner.stride(), "storage_offset": inner.storage_offset(), "dtype": inner.dtype}
        made = torch.Tensor._make_wrapper_subclass(cls, inner.size(), device=torch.device(NAME, 0), **given)
        made._inner = inner
        return made

    def __repr__(self) -> str:
        return f"{self._inner!r} on {NAME}"

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, operation: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(operation, *args, **(kwargs or {}))


def _run(operation: Any, *args: Any, **kwargs: Any) -> Any:
    """Compute an operation of which an argument or the result is on the device."""
    if operation is aten.copy_.default:
        return _copy(*args, **kwargs)
    tensors = [one for one in tree_flatten((args, kwargs))[0] if isinstance(one, torch.Tensor)]
    beside = [one for one in tensors if not isinstance(one, DeviceTensor) and one.dim()]
    if beside and operation not in _MIXED:
        raise RuntimeError(f"{operation} of tensors on {NAME} and on {beside[0].device}")
    if tensors:
        synchronize()  # what is computed comes after what was copied
    leaves = "device" in kwargs and kwargs["device"] is not None and kwargs["device"].type == "cpu"
    copies.out += [tensors[0].numel()] if leaves else []
    copies.read += operation is aten._local_scalar_dense.default
    given = {name: value for name, value in kwargs.items() if name not in ("device", "pin_memory")}
    found = operation(*tree_map(_inner, args), **tree_map(_inner, given))
    written = _written(operation._schema, args, kwargs)
    if written is not None:
        return written
    return found if leaves else tree_map(_outer, found)


def _copy(target: Any, source: Any, non_blocking: bool = False) -> Any:
    into, out = isinstance(target, DeviceTensor), isinstance(source, DeviceTensor)
    if into and not out:
        copies.into.append(source.numel())
    if out and not into:
        copies.out.append(source.numel())
    _late.append(lambda: _inner(target).copy_(_inner(source)))
    if not non_blocking or into is out:
        synchronize()
    return target


def _written(schema: Any, args: Any, kwargs: Any) -> Any:
    """What an operation returns that returns what it writes to; None if it is no such one."""
    if not schema.returns or not all(one.alias_info and one.alias_info.is_write for one in schema.returns):
        return None
    values = dict(zip([argument.name for argument in schema.arguments], args, strict=False)) | kwargs
    found = [values[one.name] for one in schema.arguments if one.alias_info and one.alias_info.is_write]
    return found[0] if len(schema.returns) == 1 else tuple(found)


def _inner(value: Any) -> Any:
    return value._inner if isinstance(value, DeviceTensor) else value


def _outer(value: Any) -> Any:
    return DeviceTensor(value) if isinstance(value, torch.Tensor) else value


def _casting(operation: Any, half: bool) -> Callable[..., Any]:
    autocast = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)

    def cast(*args: Any, **kwargs: Any) -> Any:
        dtype = torch.get_autocast_dtype(NAME) if half else torch.float32
        with torch._C._ExcludeDispatchKeyGuard(autocast):
            floats = [isinstance(one, torch.Tensor) and one.is_floating_point() for one in args]
            given = [one.to(dtype) if is_float else one for one, is_float in zip(args, floats, strict=True)]
            return operation(*given, **kwargs)

    return cast


def synchronize(device: Any = None) -> None:
    """Make the copies that nobody has waited for."""
    while _late:
        _late.pop(0)()


class _Stream:
    synchronize = staticmethod(synchronize)


class _Module:
    """`torch.tiny`."""

    seeds = 0
    """How often its random numbers were seeded."""

    def is_available(self) -> bool:
        return True

    def is_initialized(self) -> bool:
        return True

    def _is_in_bad_fork(self) -> bool:
        return False

    def device_count(self) -> int:
        return 1

    def current_device(self) -> int:
        return 0

    def manual_seed_all(self, seed: int) -> None:
        self.seeds += 1

    def current_stream(self, device: Any = None) -> _Stream:
        return _Stream()

    def get_amp_supported_dtype(self) -> list[Any]:
        return [torch.bfloat16, torch.float16]


_setup_privateuseone_for_python_backend(NAME, backend_module=_Module())
torch.distributed.Backend.default_device_backend_map[NAME] = "gloo"
_all = torch.library.Library("_", "IMPL")
_all.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
_library = torch.library.Library("aten", "IMPL")
for _one in _MADE:
    _library.impl(_one, lambda *args, _one=_one, **kwargs: _run(_one, *args, **kwargs), "PrivateUse1")
_library.impl(
    aten._copy_from.default, lambda source, target, late=False: _copy(target, source, late), "PrivateUse1"
)
for _one in (*_HALF, *_SINGLE):
    _library.impl(_one, _casting(_one, _one in _HALF), "AutocastPrivateUse1")
