"""Adapter for JAX loops: pytrees as the named arrays of `scavenger.sdk.loop`, and back.

Parameters, gradients and the optimizer's state (of Optax, say) are pytrees::

    job = loop.init(shards, state=lambda: named((params, opt_state)), load=load)
    ...
        loss, gradient = value_and_grad(params, batch)
        gradient = restored(gradient, job.push_pull(named(gradient)))

Importing this module imports JAX, which is in the extra `jax`.
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
        "scavenger.sdk.jax needs JAX, which is not installed: pip install 'scavenger-ml[jax]'"
    ) from error

__all__ = ["named", "restored"]

Array = npt.NDArray[Any]


def named(tree: Any) -> dict[str, Array]:
    """The leaves of a pytree as arrays, by their paths, as `params/dense/kernel`; on a processor, without copies.

    Leaves of types that NumPy lacks, as bfloat16, become float32, which holds each of their values; a key of
    `jax.random.key` becomes its numbers.

    Raises:
        ConfigurationError: If a leaf is no array of numbers, or two have one path.
    """
    found: dict[str, Array] = {}
    for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
        array = np.asarray(jax.random.key_data(leaf) if _is_key(leaf) else leaf)
        if array.dtype.kind == "V":
            array = array.astype(np.float32)
        if (name := _name(path)) in found or array.dtype.kind not in "fiub":
            raise ConfigurationError(
                f"the pytree has two leaves at {name}"
                if name in found
                else f"the pytree's leaf at {name} is {type(leaf).__name__}, not an array of numbers"
            )
        found[name] = array
    return found


def restored(like: Any, arrays: Mapping[str, Array]) -> Any:
    """A pytree of the same structure whose leaves are these arrays, with the types of the leaves of `like`.

    Raises:
        ConfigurationError: If an array is missing, or has another shape.
    """
    leaves, structure = jax.tree_util.tree_flatten_with_path(like)
    found = []
    for path, leaf in leaves:
        array, keys = arrays.get(_name(path)), _is_key(leaf)
        if array is None or array.shape != np.shape(jax.random.key_data(leaf) if keys else leaf):
            raise ConfigurationError(f"the arrays do not fit the pytree at {_name(path)}")
        if keys:
            found.append(jax.random.wrap_key_data(jax.numpy.array(array), impl=jax.random.key_impl(leaf)))
        elif isinstance(leaf, (bool, int, float)):
            found.append(type(leaf)(array))
        elif isinstance(leaf, (np.ndarray, np.generic)):
            found.append(np.array(array, dtype=leaf.dtype))
        else:
            found.append(jax.numpy.array(array, dtype=leaf.dtype))
    return jax.tree_util.tree_unflatten(structure, found)


def _is_key(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _name(path: Any) -> str:
    return str(jax.tree_util.keystr(path, simple=True, separator="/")) or "leaf"
