"""Whether the replicas of a loop's workers are alike: each tells sum and norm of its arrays, and these are compared."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

Sums = dict[str, tuple[float, float]]
"""Sum and Euclidean norm of each array of a replica."""

COMPARED_AFTER = 3
"""So many steps after a change of view, and at each epoch's end, replicas are compared.

What a worker that joined lacks has changed its replica by then.
"""

ALIKE = 1e-4
_NO_SUMS = (math.inf, math.inf)


def sums_of(state: Mapping[str, Any]) -> Sums:
    """Sum and Euclidean norm of each array of a replica."""
    found = {}
    for name, array in state.items():
        flat = np.asarray(array).ravel()
        if flat.dtype.kind != "f":
            flat = flat.astype(np.float64)
        found[name] = float(flat.sum(dtype=np.float64)), float(np.linalg.norm(flat))
    return found


def differing(sums: Mapping[str, Sums]) -> tuple[str, str, str] | None:
    """Two workers, and the array in which their replicas differ, by the sums of each; None if all are alike.

    Processors of different types may round differently, so sums that differ by `ALIKE` of the norm are alike.
    """
    (first, own), *others = sums.items() if sums else [("", {})]
    for worker, its in others:
        for name in own.keys() | its.keys():
            (a, norm), (b, norm_b) = own.get(name, _NO_SUMS), its.get(name, _NO_SUMS)
            close = ALIKE * max(norm, norm_b)
            same = (a == b and norm == norm_b) or (abs(a - b) <= close and abs(norm - norm_b) <= close)
            if not same and not (math.isnan(a) and math.isnan(b)):
                return first, worker, name
    return None
