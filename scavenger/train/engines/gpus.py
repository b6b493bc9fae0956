"""Which worker computes on which GPU of its host, and the environment variables that hold its process to it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

VISIBLE = "CUDA_VISIBLE_DEVICES"

HIDDEN: Mapping[str, str] = {VISIBLE: "-1"}
"""Environment of a process that is to see no GPU: CUDA takes the list up to the first index that does not exist."""


def gpus_for(gpus: Sequence[str], held: Iterable[str], processes: int = 1) -> str:
    """Choose the GPUs of the next worker, one for each of its processes: the first of those that fewest workers hold.

    There are never more workers than GPUs for long, but while a worker is replaced, its successor starts beside it.

    Args:
        gpus: The host's GPUs; at least one.
        held: The GPUs of each of its running workers.
        processes: Of the worker.

    Returns:
        Their names, with commas.
    """
    holders = Counter(gpu for one in held for gpu in one.split(","))
    return ",".join(sorted(gpus, key=lambda gpu: holders[gpu])[:processes])


def only(gpus: str) -> dict[str, str]:
    """Return the environment of a worker that computes on some GPUs, and takes of their memory only what it uses.

    Args:
        gpus: As CUDA names them, by index or UUID, with commas.
    """
    return {VISIBLE: gpus, "TF_FORCE_GPU_ALLOW_GROWTH": "true"}


def gpu_names(count: int, environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names by which a process of this environment reaches its `count` GPUs.

    They are those that `CUDA_VISIBLE_DEVICES` lists, if it does.
    """
    return visible_in(environment)[:count] or tuple(str(index) for index in range(count))


def visible_in(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the GPUs that `CUDA_VISIBLE_DEVICES` lists; empty if it lists none."""
    return tuple(name for one in environment.get(VISIBLE, "").split(",") if (name := one.strip()))


def hidden_in(environment: Mapping[str, str]) -> bool:
    """Whether `CUDA_VISIBLE_DEVICES` hides all GPUs, as its empty list does."""
    return environment.get(VISIBLE, "0").strip() in ("", HIDDEN[VISIBLE])
