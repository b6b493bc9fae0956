"""Where a job is tracked: MLflow, TensorBoard, Weights & Biases."""

from __future__ import annotations

from typing import Literal

from pydantic import ConfigDict, Field, model_validator

from scavenger.domain.forms import FrozenModel, JobName, Path, fault


class TrackersSpec(FrozenModel):
    """Where parameters, metrics, costs and view changes are told, beside the store."""

    model_config = ConfigDict(
        json_schema_extra={"anyOf": [{"required": [key]} for key in ("mlflow", "tensorboard", "wandb")]}
    )

    mlflow: Path | None = Field(
        default=None,
        description="Tracking URI of MLflow, such as http://HOST:PORT or sqlite:///mlflow.db; relative files are in "
        "the job file's folder.",
        examples=["sqlite:///mlflow.db"],
    )
    tensorboard: Path | None = Field(
        default=None,
        description="Folder for TensorBoard's event files, relative to the job file.",
        examples=["./runs"],
    )
    wandb: Literal["online", "offline"] | None = Field(
        default=None, description="Weights & Biases: online, or offline in the folder wandb of the job file."
    )
    experiment: Path | None = Field(
        default=None,
        description="Experiment of MLflow, project of W&B; without it, the job's name.",
    )
    group: JobName | None = Field(
        default=None,
        description="Run under which this one is nested; a study sets its own name.",
    )

    @model_validator(mode="after")
    def _check(self) -> TrackersSpec:
        if self.mlflow is None and self.tensorboard is None and self.wandb is None:
            raise fault("must have one of mlflow, tensorboard and wandb")
        return self
