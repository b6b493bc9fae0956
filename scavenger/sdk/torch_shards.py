"""Parameters that PyTorch divides over processes, as `fully_shard` does: their parts here, and the whole."""

from __future__ import annotations

import sys
from typing import Any

from scavenger.errors import NotSupportedError

__all__ = ["around", "is_divided", "like", "local", "refuse_otherwise", "whole"]

_MODULE = "torch.distributed.tensor"
"""Where PyTorch has divided tensors: there are none as long as nobody has imported it, which takes a while."""


def is_divided(tensor: Any) -> bool:
    """Whether a tensor is divided over processes."""
    module = sys.modules.get(_MODULE)
    return module is not None and isinstance(tensor, module.DTensor)


def local(tensor: Any) -> Any:
    """The part of a divided tensor that this process has, in the memory where it is; any other tensor as it is."""
    return tensor._local_tensor.detach() if is_divided(tensor) else tensor


def around(part: Any, tensor: Any) -> Any:
    """What has a part as `local`, and else is as a tensor: divided alike, or the part itself if that is not divided."""
    if not is_divided(tensor):
        return part
    return sys.modules[_MODULE].DTensor.from_local(
        part,
        tensor.device_mesh,
        tensor.placements,
        run_check=False,
        shape=tensor.shape,
        stride=tensor.stride(),
    )


def whole(tensor: Any) -> Any:
    """A divided tensor in one piece, at the first process; empty at the others. All of them have to ask for it."""
    if not is_divided(tensor):
        return tensor
    found = tensor.full_tensor()
    return found if tensor.device_mesh.get_local_rank() == 0 else found[:0]


def like(present: Any, value: Any) -> Any:
    """A whole value that every process has, divided as a present tensor of its shape is."""
    if not is_divided(present) or value.shape != present.shape:
        return value
    return sys.modules[_MODULE].distribute_tensor(
        value, present.device_mesh, present.placements, src_data_rank=None
    )


def refuse_otherwise(name: str, tensor: Any, processes: int) -> None:
    """Raise if a parameter is divided otherwise than `fully_shard` divides it over so many processes of a worker.

    Raises:
        NotSupportedError: Says how it is divided.
    """
    if not is_divided(tensor):
        if processes > 1:
            raise NotSupportedError(
                f"{name} is whole at each of the {processes} processes of a worker: have fully_shard divide the "
                "model, or leave elastic.processes out of the job file"
            )
        return
    mesh, placements = tensor.device_mesh, tensor.placements
    if mesh.ndim != 1 or not placements[0].is_shard():
        raise NotSupportedError(
            f"{name} is divided by {', '.join(map(str, placements))}: a job's worker divides a model in one way, by "
            "fully_shard over a mesh of one dimension"
        )
    if mesh.size() != processes:
        raise NotSupportedError(
            f"{name} is divided over {mesh.size()} processes, and a worker has {processes}: write elastic: "
            f"{{processes: {mesh.size()}}} in the job file, or divide it over get_world_size() processes"
        )
