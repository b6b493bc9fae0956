"""Whether the tensors of a model can be cut, so that several aggregators each update a range of one tensor."""

from __future__ import annotations

import json
from enum import Enum
from typing import Any


class Divisibility(Enum):
    """What has to stay on one aggregator for an optimizer's step."""

    ELEMENTS = "elements"
    """Nothing: the new value of an element depends on that element alone."""
    TENSORS = "tensors"
    """Each tensor."""
    MODEL = "model"
    """All trainable tensors."""


_BY_ELEMENT = frozenset(
    {
        *("Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "Ftrl", "Lion", "Nadam", "RMSprop", "SGD"),
        "ScheduleFreeAdamW",
    }
)
_CONTAINERS = frozenset({"MultiOptimizer", "OptimizerMap"})
_SCHEDULES = "keras.optimizers.schedules"


def divisibility(optimizer: str) -> Divisibility:
    """Read from an optimizer's configuration how far the model can be divided among aggregators.

    | optimizer, or option of it                                        | stays together                       |
    |-------------------------------------------------------------------|--------------------------------------|
    | SGD, with or without momentum; Adam, AdamW, Adamax, Nadam,        | nothing (`ELEMENTS`)                 |
    | ScheduleFreeAdamW; RMSprop, Adagrad, Adadelta; Ftrl, Lion         |                                      |
    | options `weight_decay`, `clipvalue`, `use_ema`,                   | nothing, as they act by element; what|
    | `gradient_accumulation_steps`, `loss_scale_factor`, schedules     | a name excludes, it excludes in parts|
    | option `clipnorm`                                                 | a tensor, for its norm (`TENSORS`)   |
    | Adafactor (row and column means, root mean square of a tensor),   | a tensor (`TENSORS`)                 |
    | Lamb (norms of a tensor), Muon (orthogonal to a matrix)           |                                      |
    | MultiOptimizer                                                    | the most that any of its parts keeps |
    | any other                                                         | a tensor (`TENSORS`)                 |
    | option `global_clipnorm`, LossScaleOptimizer (skips a whole step) | the model (`MODEL`)                  |

    A constraint on a weight also looks at a tensor; it is not part of the optimizer (`Manifest.constraints`).

    Args:
        optimizer: Keras's serialised optimizer, JSON; empty for none.
    """
    if not optimizer:
        return Divisibility.TENSORS
    document = json.loads(optimizer)
    found = {Divisibility.ELEMENTS, *_of(document)}
    if not _is_named(document):
        found.add(Divisibility.TENSORS)
    return max(found, key=list(Divisibility).index)


def _is_named(part: Any) -> bool:
    return isinstance(part, dict) and isinstance(part.get("class_name"), str)


def _of(part: Any) -> set[Divisibility]:
    """Return what an optimizer and all those that it contains need."""
    if isinstance(part, list):
        return set().union(*map(_of, part))
    if not isinstance(part, dict) or part.get("module") == _SCHEDULES:
        return set()
    found: set[Divisibility] = set().union(*map(_of, part.values()))
    if part.get("global_clipnorm") or part.get("class_name") == "LossScaleOptimizer":
        found.add(Divisibility.MODEL)
    if part.get("clipnorm") or (_is_named(part) and part["class_name"] not in _BY_ELEMENT | _CONTAINERS):
        found.add(Divisibility.TENSORS)
    return found
