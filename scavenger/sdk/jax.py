"""Adapter for JAX loops: pytrees as the named arrays of `scavenger.sdk.loop`, and back.

Parameters, gradients and the optimizer's state (of Optax, say) are pytrees::

    job = loop.init(shards, state=lambda: named((params, opt_state)), load=load)
    ...
        loss, gradient = value_and_grad(params, batch)
        gradient = restored(gradient, job.push_pull(named(gradient)))

Importing this module imports JAX, which is in none of the project's extras.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from scavenger.errors import ConfigurationError

try:
    import jax
except ModuleNotFoundError as error:
    raise ConfigurationError(
        "scavenger.sdk.jax needs JAX, which is not installed: pip install jax"
    ) from error

__all__ = ["named", "restored"]

Array = npt.NDArray[Any]


def named(tree: Any) -> dict[str, Array]:
    """The leaves of a pytree as arrays, by their paths; on a processor, without copies."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
    return {_name(path): np.asarray(leaf) for path, leaf in leaves}


def restored(like: Any, arrays: Mapping[str, Array]) -> Any:
    """A pytree of the same structure whose leaves are these arrays, with the types of the leaves of `like`.

    Raises:
        ConfigurationError: If an array is missing, or has another shape.
    """
    leaves, structure = jax.tree_util.tree_flatten_with_path(like)
    found = []
    for path, leaf in leaves:
        array = arrays.get(_name(path))
        if array is None or array.shape != np.shape(leaf):
            raise ConfigurationError(f"the arrays do not fit the pytree at {_name(path)}")
        found.append(jax.numpy.array(array, dtype=jax.numpy.asarray(leaf).dtype))
    return jax.tree_util.tree_unflatten(structure, found)


def _name(path: Any) -> str:
    return str(jax.tree_util.keystr(path)) or "leaf"
