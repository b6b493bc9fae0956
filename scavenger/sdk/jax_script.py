"""What `scavenger.jax.prepare` makes of a script's state and training data in a worker."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import jax
import numpy as np

from scavenger.errors import NotSupportedError
from scavenger.sdk.jax import Array, named, restored
from scavenger.sdk.loop import Batch, Job
from scavenger.sdk.rows import Rows
from scavenger.sdk.script import ScriptRun
from scavenger.sdk.script_loop import Batches, Described, ElasticLoader, ScriptLoop, told_at

__all__ = ["JaxScript"]

_LOADER = "the training data are a DataLoader, or arrays whose rows are the samples"


class JaxScript(ScriptLoop):
    """State and training data of a JAX script in a worker.

    Args:
        run: The script's.
        state: A pytree of all that training changes.
        data: A loader of PyTorch, or arrays.
        batch_size: Of arrays.
    """

    def __init__(self, run: ScriptRun, state: Any, data: Any, batch_size: int | None) -> None:
        run.refuse_several("a JAX script")
        with told_at(run.place):
            named(state)
            super().__init__(run, _batches(run, data, batch_size))
        self._tree = state
        self._scale_read = self._stepped = False
        self._join()
        self.objects = (self._tree, ElasticLoader(self, data))

    def _state(self) -> Mapping[str, Array]:
        return named(self._tree)

    def _load(self, state: dict[str, Array]) -> None:
        self._tree = restored(self._tree, state)

    def described(self) -> Described:
        of = self._tree.get("params") if isinstance(self._tree, dict) else getattr(self._tree, "params", None)
        leaves = jax.tree_util.tree_leaves(self._tree if of is None else of)
        return Described("a pytree", sum(int(np.size(leaf)) for leaf in leaves))

    def _computed(self, job: Job, batch: Batch) -> Iterator[Any]:
        self._stepped = False
        yield self._read(job, [range(batch.start, batch.stop)], 0)
        if not self._stepped:
            self._refuse(
                "no elastic.step() in a batch: each batch of the loader needs one; evaluate on its data"
            )

    def scale(self) -> float:
        """See `scavenger.jax.lr_scale`."""
        self._scale_read = True
        return 1.0 if self.job is None else self.job.lr_scale

    def step(self, update: Callable[[Any, Any], Any], state: Any, gradients: Any) -> Any:
        """See `scavenger.jax.step`."""
        job, batch = self.job, self._batch
        if job is None or batch is None:
            self._refuse("elastic.step() outside of the loop over the loader of elastic.prepare")
        if self._stepped:
            self._refuse("a second elastic.step() in a batch: give it the sum of the gradients")
        self._refuse_other(state)
        if job.lr_scale != 1.0 and not self._scale_read:
            raise NotSupportedError(
                f"{self._run.place()}: the job scales the learning rate with the batch, and the script does not ask "
                "by how much: multiply the rate by elastic.lr_scale(), or write lr_scaling: none in the job file"
            )
        with told_at(self._run.place):
            mean = restored(gradients, job.push_pull(named(gradients)))
        self._stepped, self._tree = True, update(state, mean)
        return self._tree

    def _refuse_other(self, state: Any) -> None:
        """A worker that joins gets what the last step has returned: nothing else may have changed it since."""
        ours, ours_of = jax.tree_util.tree_flatten(self._tree)
        given, given_of = jax.tree_util.tree_flatten(state)
        if ours_of != given_of or any(a is not b for a, b in zip(ours, given, strict=True)):
            self._refuse(
                "elastic.step() gets another state than elastic.prepare or the last step returned: what changes it "
                "belongs into the function that is given to elastic.step"
            )


def _batches(run: ScriptRun, data: Any, batch_size: int | None) -> Batches:
    torch = sys.modules.get("torch.utils.data")
    if torch is not None and isinstance(data, torch.DataLoader):
        from scavenger.sdk.torch_loader import BatchLoader

        return BatchLoader(data, run.seed, run.place())
    if batch_size is None:
        raise NotSupportedError(f"{_LOADER} and a batch_size, not {type(data).__name__} without one")
    return Rows(data, batch_size, run.seed)
