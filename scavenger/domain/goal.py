"""The goal of a job, and the direction of its metric: whether it is to rise or to fall.

Keras's names and aliases of metrics are listed, and so are usual names of the field; a test compares the list with
Keras. Names whose meaning depends on the user are not listed: `mean` and `sum`, and `dice`, which is a loss in Keras
and a share of overlap elsewhere.
"""

from __future__ import annotations

import re
from typing import Literal

from pydantic import Field, model_validator

from scavenger.domain.forms import FrozenModel, MetricName, fault

EPOCHS_MAX = 10**6
"""Largest accepted number of epochs; no training needs more."""

Direction = Literal["max", "min"]

_RISING = frozenset(
    [
        "acc",
        "accuracy",
        "binary_accuracy",
        "categorical_accuracy",
        "sparse_categorical_accuracy",
        "top_k_categorical_accuracy",
        "sparse_top_k_categorical_accuracy",
        "auc",
        "precision",
        "recall",
        "precision_at_recall",
        "recall_at_precision",
        "sensitivity_at_specificity",
        "specificity_at_sensitivity",
        "f1",
        "f1_score",
        "f_beta_score",
        "fbeta_score",
        "true_positives",
        "true_negatives",
        "iou",
        "io_u",
        "binary_iou",
        "binary_io_u",
        "mean_iou",
        "mean_io_u",
        "one_hot_iou",
        "one_hot_io_u",
        "one_hot_mean_iou",
        "one_hot_mean_io_u",
        "r2_score",
        "cosine_similarity",
        "concordance_correlation",
        "pearson_correlation",
        "bleu",
        "rouge",
    ]
)
_FALLING = frozenset(
    [
        "loss",
        "error",
        "error_rate",
        "mean_squared_error",
        "mse",
        "mean_absolute_error",
        "mae",
        "mean_absolute_percentage_error",
        "mape",
        "mean_squared_logarithmic_error",
        "msle",
        "root_mean_squared_error",
        "rmse",
        "log_cosh",
        "logcosh",
        "log_cosh_error",
        "huber",
        "binary_crossentropy",
        "bce",
        "categorical_crossentropy",
        "sparse_categorical_crossentropy",
        "binary_focal_crossentropy",
        "categorical_focal_crossentropy",
        "crossentropy",
        "cross_entropy",
        "kl_divergence",
        "kld",
        "divergence",
        "poisson",
        "hinge",
        "squared_hinge",
        "categorical_hinge",
        "ctc",
        "false_positives",
        "false_negatives",
        "perplexity",
        "wer",
        "cer",
        "nll",
        "brier",
        "brier_score",
    ]
)
_SHARES = ("accuracy", "acc", "auc", "precision", "recall")
_REVERSING = frozenset(["neg", "negative", "negated", "inverse", "minus"])


class GoalSpec(FrozenModel):
    """The goal of the training: when it ends."""

    metric: MetricName | None = Field(
        default=None, description="Keras's name of the metric to reach; val_ for the validation data's."
    )
    target: float | None = Field(default=None, description="The metric's value at which to stop.")
    mode: Literal["auto", "max", "min"] = Field(
        default="auto",
        description="Whether the metric is to rise (max) or to fall (min); auto: by its name, if that is one of "
        "Keras's, or ends like one.",
    )
    max_epochs: int = Field(
        ge=1,
        le=EPOCHS_MAX,
        description="Epochs after which to stop, target or not; without a target, at the job's own batch.",
        examples=[60],
    )
    epochs_fixed: bool = Field(
        default=False,
        description="Without a target: whether all batch sizes train max_epochs, though a larger one comes less far in "
        "them; else each trains as many as make the progress of max_epochs at the job's own batch.",
    )
    epochs_hint: float | None = Field(
        default=None,
        gt=0,
        le=EPOCHS_MAX,
        description="Epochs that you expect at the smallest batch size, if you know.",
    )

    @model_validator(mode="after")
    def _check(self) -> GoalSpec:
        if self.target is not None:
            if self.metric is None:
                raise fault("needs a metric that is to reach it, such as metric: val_accuracy", "target")
            if _is_share(self.metric) and not 0 <= self.target <= 1:
                hint = (
                    f"; write {self.target / 100:g} for {self.target:g} %" if 1 < self.target <= 100 else ""
                )
                raise fault(f"must be from 0 to 1 for {self.metric}, not {self.target:g}{hint}", "target")
            known = known_direction(self.metric)
            if self.mode != "auto" and known is not None and self.mode != known:
                raise fault(
                    f"must be {known} for {self.metric}, or left out: {self.mode} would call the first epoch that is "
                    f"{'above' if self.mode == 'max' else 'below'} {self.target:g} a success",
                    "mode",
                )
        if self.epochs_fixed and self.target is not None:
            raise fault("is for goals without a target, which says when training ends", "epochs_fixed")
        if self.epochs_hint is not None and self.epochs_hint > self.max_epochs:
            raise fault(
                f"must be at most max_epochs ({self.max_epochs}), not {self.epochs_hint:g}", "epochs_hint"
            )
        return self

    @property
    def direction(self) -> Direction:
        """`mode`, with `auto` resolved by the metric's name; `max` where the name says nothing."""
        if self.mode != "auto":
            return self.mode
        return guessed_direction(self.metric or "") or "max"

    @property
    def direction_guessed(self) -> bool:
        """Whether the direction is that of names which end like the metric's, and nobody has said it."""
        return self.mode == "auto" and self.metric is not None and known_direction(self.metric) is None

    @property
    def direction_unknown(self) -> bool:
        """Whether neither `mode` nor the metric's name tells whether it is to rise or to fall."""
        return self.direction_guessed and guessed_direction(self.metric or "") is None


def known_direction(metric: str) -> Direction | None:
    """The direction of a metric with one of the listed names, as Keras may have written it; None for another.

    Keras puts `val_` before the names of the validation data's metrics, and numbers those with equal names: `auc_1`.
    """
    name = _plain(metric)
    return "max" if name in _RISING else "min" if name in _FALLING else None


def guessed_direction(metric: str) -> Direction | None:
    """The direction of a metric whose name ends in a listed name, as `digit_accuracy`; None for another.

    What stands before may change the meaning, so this is a guess.
    """
    words = _plain(metric).split("_")
    if _REVERSING.intersection(words):
        return None
    endings = ("_".join(words[at:]) for at in range(len(words)))
    return next((known for ending in endings if (known := known_direction(ending)) is not None), None)


def _is_share(metric: str) -> bool:
    """Whether the metric's values are from 0 to 1."""
    return metric.removeprefix("val_").endswith(_SHARES)


def _plain(metric: str) -> str:
    """The name in lower case with single underscores, without `val_` before it and a number after it."""
    name = re.sub(r"[^0-9a-z]+", "_", metric.lower()).strip("_").removeprefix("val_")
    return re.sub(r"_\d+$", "", name)
