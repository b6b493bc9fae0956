"""`LoopJob`: a training loop of the user's own that a job file names."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

__all__ = ["LoopJob"]


@dataclass(frozen=True, slots=True, init=False)
class LoopJob:
    """A training function that makes a job with `scavenger.sdk.loop`: the object that `train: module:object` names.

    It is to be bound to that name at the top of the module, since the job file's job looks there for it without
    importing the module::

        job = LoopJob(train, metrics=["val_accuracy"])

    Attributes:
        function: Called in every worker, with `params` of the job file as arguments; it calls `loop.init`, and then
            trains until it is ended.
        metrics: Names of the metrics that `loop.init(evaluate=...)` returns; `loss` is known without.
    """

    function: Callable[..., object]
    metrics: tuple[str, ...]

    def __init__(self, function: Callable[..., object], *, metrics: Sequence[str] = ()) -> None:
        """See the attributes.

        Raises:
            TypeError: If `function` cannot be called, or `metrics` are not names.
        """
        if not callable(function):
            raise TypeError(f"LoopJob takes a function, not {type(function).__name__}")
        if isinstance(metrics, str) or not all(isinstance(name, str) for name in metrics):
            raise TypeError("LoopJob(metrics=...) takes names, such as ['val_accuracy']")
        object.__setattr__(self, "function", function)  # frozen
        object.__setattr__(self, "metrics", tuple(metrics))
