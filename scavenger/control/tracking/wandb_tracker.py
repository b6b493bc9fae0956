"""Weights & Biases: a run per job, with the study as its group."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from scavenger.control.tracking.base import TrackedRun


class WandbTracker:
    """A run of Weights & Biases; offline, `wandb sync` sends it later."""

    def __init__(self, mode: Literal["online", "offline"]) -> None:
        self._mode = mode
        self._run: Any = None

    def begin(self, run: TrackedRun) -> None:
        import wandb

        self._run = wandb.init(
            project=run.experiment,
            group=run.group,
            name=run.name,
            id=run.job_id,
            resume="allow" if self._mode == "online" else None,
            config=dict(run.params),
            mode=self._mode,
            dir=str(run.folder),
            reinit="create_new",
            settings=wandb.Settings(console="off", silent=True),
        )
        self._run.define_metric("*", step_metric="step")

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log({**values, "step": step})

    def event(self, step: int, name: str, text: str) -> None:
        self._run.summary[f"{name}/{step}"] = text

    def end(self, *, succeeded: bool, state: str) -> None:
        self._run.summary.update({"state": state})
        self._run.finish(exit_code=0 if succeeded else 1)
