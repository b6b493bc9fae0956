"""Pytrees of JAX as named arrays, and back. Needs JAX."""

from __future__ import annotations

import numpy as np
import pytest

from scavenger.errors import ConfigurationError

pytestmark = pytest.mark.slow

jax = pytest.importorskip("jax", reason="JAX is not installed: pip install jax")


def test_a_pytree_comes_back_from_its_named_arrays() -> None:
    from scavenger.sdk.jax import named, restored

    tree = {"layers": [(jax.numpy.ones((2, 3)), jax.numpy.zeros(3))], "count": jax.numpy.int32(4)}
    arrays = named(tree)

    assert sorted(arrays) == ["count", "layers/0/0", "layers/0/1"]
    doubled = restored(tree, {name: 2 * array for name, array in arrays.items()})
    assert jax.tree.structure(doubled) == jax.tree.structure(tree)
    np.testing.assert_array_equal(doubled["layers"][0][0], 2 * np.ones((2, 3)))
    assert (int(doubled["count"]), doubled["count"].dtype) == (8, np.int32)
    with pytest.raises(ConfigurationError, match="do not fit the pytree"):
        restored(tree, {**arrays, "count": np.zeros(2)})
