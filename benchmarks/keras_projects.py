"""`python -m benchmarks.keras_projects`: ordinary Keras projects, by `fit` and by the code of workers and aggregators.

Each project is a small model of a kind that Keras's guides and examples show, with data drawn at random. Plain `fit`
trains it with all samples in one batch; workers train it in two unequal pieces with two aggregators. The table of what
came out goes into docs/keras.md.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import keras
import numpy as np
import tensorflow as tf

from benchmarks import keras_models as models
from benchmarks import keras_own_models as own
from benchmarks.figures import replace_section
from benchmarks.keras_data import CLASSES, IMAGES, PADDED, SAMPLES, SERIES, TABLE, TOKENS, integers, numbers
from benchmarks.keras_support import DOCUMENT, Verdict, document_lines
from benchmarks.keras_training import SEED, STEPS, by_fit, by_job, furthest, made
from scavenger.errors import NotSupportedError
from scavenger.sdk import KerasJob
from scavenger.train.failure import DataError
from scavenger.train.worker.program import Program

SECTION = "keras_projects"

_TOLERANCE = 1e-5
_L = keras.layers


@dataclass(frozen=True, slots=True)
class Project:
    """One project.

    Attributes:
        build: Makes the compiled model.
        data: What `fit` gets as `(x, y)`, `(x, y, sample_weight)` or a data set.
        arguments: More arguments of `fit`, which `KerasJob` takes by the same names; a function makes its value.
        tolerance: Largest difference of a weight, relative to the largest of its tensor.
        floatx: Keras's default float type. In double precision, rounding is not enlarged by Adam, which divides small
            gradients by their size.
    """

    build: Callable[[], Any]
    data: Any
    arguments: Mapping[str, Any] = field(default_factory=dict)
    tolerance: float = _TOLERANCE
    floatx: str = "float64"


# ---- both ways ---------------------------------------------------------------------------------------------


def _with_same_draws(project: Project, steps: int) -> Any:
    """Train with Keras's own steps, in which each random layer begins where it does in a job; returns the model."""
    keras.utils.set_random_seed(SEED)
    program = Program(KerasJob(project.build(), project.data, **made(project.arguments)))
    samples = len(program.train)
    for step in range(steps):
        program.draw_from(SEED, step * samples)
        program.model.train_on_batch(*program.train.batch(np.arange(samples)))
    program.model.optimizer.finalize_variable_values(program.model.trainable_variables)
    return program.model


def _with_dense_gradients(project: Project, steps: int) -> Any:
    """Train with Keras's own optimizer, which gets the gradients of embeddings as whole tensors; returns the model."""
    keras.utils.set_random_seed(SEED)
    program = Program(KerasJob(project.build(), project.data, **made(project.arguments)))
    model, samples = program.model, len(program.train)
    batch = program.train.batch(np.arange(samples))
    for step in range(steps):
        result = program.gradient(
            [v.numpy() for v in program.variables], batch, seed=SEED, position=step * samples
        )
        model.optimizer.apply([tf.convert_to_tensor(g) for g in result.gradients], model.trainable_variables)
    model.optimizer.finalize_variable_values(model.trainable_variables)
    return model


def _answer(project: Project) -> str:
    """Train a project in both ways; returns how they compare, as in `Verdict`."""
    arguments = project.arguments

    def equal(got: Any, expected: Any) -> bool:
        return furthest(got, expected) <= project.tolerance

    program, got = by_job(project.build, project.data, **arguments)
    plain = by_fit(project.build, project.data, **arguments).get_weights()
    layers = list(program.model._flatten_layers())
    if any(isinstance(layer, _L.BatchNormalization) and layer.trainable for layer in layers):
        _, got = by_job(project.build, project.data, pieces=1, **arguments)
        return "each worker's part" if equal(got, plain) else "different"
    if equal(got, plain):
        return "equal"
    if program.draws:
        _, got = by_job(project.build, project.data, pieces=1, **arguments)
        if equal(got, _with_same_draws(project, STEPS).get_weights()):
            return "equal for the same draws"
    if any(isinstance(layer, _L.Embedding) for layer in layers) and equal(
        got, _with_dense_gradients(project, STEPS).get_weights()
    ):
        return "equal with dense gradients"
    return "different"


def project_verdict(name: str) -> Verdict:
    """Train a project in both ways and compare."""
    project, before = PROJECTS[name], keras.config.floatx()
    keras.config.set_floatx(project.floatx)
    keras.config.set_dtype_policy(project.floatx)  # layers made earlier may have fixed another default
    try:
        answer = _answer(project)
    except (NotSupportedError, DataError) as error:
        return Verdict(name, "refused", str(error))
    finally:
        keras.config.set_floatx(before)
        keras.config.set_dtype_policy(before)
        keras.utils.clear_session(free_memory=False)
    return Verdict(name, answer)


# ---- the projects ------------------------------------------------------------------------------------------

_COLOURS = tf.constant(np.array(["red", "green", "blue"])[CLASSES][:, None])
_TEXTS = tf.constant(np.array(["good film", "bad story", "a film of good story"])[CLASSES][:, None])
_HELD_OUT = (0.5 * TABLE, integers(3))
_TICKETS = {"title": TOKENS, "body": integers(20, 9), "tags": numbers(4)}
_ROUTES = {"priority": integers(2, 1), "department": CLASSES}
_PEOPLE = {"kind": integers(4, 1), "age": numbers(1)}

PROJECTS: dict[str, Project] = {
    "regression on a table, Normalization.adapt": Project(models.house_prices, (TABLE, numbers(1))),
    "image classification, convolutions and dropout": Project(models.convnet, (IMAGES, CLASSES)),
    "images with augmentation and residuals": Project(models.augmented, (IMAGES, CLASSES), floatx="float32"),
    "image segmentation, U-Net with BatchNormalization": Project(
        models.segmentation, (IMAGES, integers(3, 8, 8))
    ),
    "convolutional autoencoder": Project(models.autoencoder, (IMAGES, 1 / (1 + np.exp(-IMAGES)))),
    "variational autoencoder, add_loss": Project(own.variational, (TABLE, TABLE)),
    "volumes, Conv3D, a staircase of rates": Project(models.volumes, (numbers(4, 4, 4, 1), integers(2, 1))),
    "clouds of points, a regulariser of one's own": Project(own.points, (SERIES, CLASSES)),
    "transfer learning, frozen base": Project(models.transfer, (IMAGES, CLASSES)),
    "fine-tuning after a first fit": Project(models.fine_tuning, (IMAGES, CLASSES)),
    "LoRA and frozen layers": Project(models.lora, (TABLE, CLASSES)),
    "mixed_float16": Project(models.mixed, (IMAGES, CLASSES), tolerance=5e-3, floatx="float32"),
    "text classification, bidirectional LSTM": Project(models.bidirectional, (TOKENS, integers(2, 1))),
    "padded text, Embedding(mask_zero=True) and LSTM": Project(models.padded_classifier, (PADDED, CLASSES)),
    "tags for padded text, masked output": Project(models.tagger, (PADDED, integers(3, 7))),
    "language model, transformer block": Project(own.transformer, (TOKENS, integers(20, 7))),
    "sequence to sequence, LSTM states": Project(
        models.translation, ((SERIES, numbers(5, 3)), integers(5, 5))
    ),
    "forecast of a series, Conv1D and GRU": Project(models.forecast, (SERIES, numbers(7, 2))),
    "several inputs and outputs, loss_weights": Project(models.tickets, (_TICKETS, _ROUTES)),
    "pairs, shared layers, a loss of one's own": Project(own.siamese, ((TABLE, numbers(6)), integers(2, 1))),
    "recommendations, subclassed model of embeddings": Project(
        own.recommender, (np.stack([integers(9), integers(20)], axis=1), integers(2, 1))
    ),
    "categories, IntegerLookup and Discretization": Project(models.structured, (_PEOPLE, integers(2, 1))),
    "rare classes, class_weight": Project(
        models.imbalanced, (TABLE, integers(2, 1)), {"class_weight": {0: 0.5, 1: 4.0}}
    ),
    "sample weights, a constraint, validation_split": Project(
        models.weighted, (TABLE, numbers(1), np.abs(numbers())), {"validation_split": 0.3}
    ),
    "several labels, label smoothing": Project(models.labels, (TABLE, integers(2, 4).astype("float32"))),
    "quantiles, a loss of one's own": Project(own.quantiles, (TABLE, numbers(1))),
    "averaged weights (EMA), a schedule": Project(models.averaged, (TABLE, CLASSES)),
    "distillation, compute_loss of one's own": Project(own.distillation, (TABLE, CLASSES)),
    "train_step of one's own": Project(own.own_step, (TABLE, numbers(1))),
    "generative adversarial network": Project(own.adversaries, (TABLE, CLASSES)),
    "forecast, LSTM and ReduceLROnPlateau": Project(
        models.demand,
        (SERIES, numbers(1)),
        {
            "callbacks": lambda: keras.callbacks.ReduceLROnPlateau(
                "loss", factor=0.5, patience=1, min_delta=0.5
            )
        },
    ),
    "EarlyStopping that restores the best weights": Project(
        own.distillation,
        (TABLE, CLASSES),
        {
            "validation_data": lambda: _HELD_OUT,
            "callbacks": lambda: keras.callbacks.EarlyStopping(
                patience=1, restore_best_weights=True, min_delta=9
            ),
        },
    ),
    "warm-up by LearningRateScheduler, History": Project(
        models.forecast,
        (SERIES, numbers(7, 2)),
        {
            "callbacks": lambda: [
                keras.callbacks.LearningRateScheduler(lambda epoch, rate: 0.01 * (epoch + 1)),
                keras.callbacks.History(),
            ]
        },
    ),
    "a rate for every batch, hooks of batches": Project(
        models.house_prices, (TABLE, numbers(1)), {"callbacks": own.OneCycle}
    ),
    "text, TextVectorization in the model": Project(models.reviews, (_TEXTS, integers(2, 1))),
    "names and numbers, StringLookup and Normalization": Project(
        models.customers, ({"colour": _COLOURS, "size": TABLE}, CLASSES)
    ),
    "anomalies, x alone and add_loss": Project(models.anomalies, (SERIES,)),
    "boxes and classes, gradient accumulation": Project(
        models.detection, (IMAGES, {"class": CLASSES, "box": numbers(4)})
    ),
    "vision transformer, a layer of one's own": Project(own.vision_transformer, (IMAGES, CLASSES)),
    "images from tf.data": Project(
        models.autoencoder,
        tf.data.Dataset.from_tensor_slices((IMAGES, 1 / (1 + np.exp(-IMAGES)))).batch(SAMPLES).prefetch(1),
    ),
    "a table from a PyDataset": Project(models.imbalanced, own.Batches(TABLE, integers(2, 1))),
    "variational autoencoder, train_step and metrics of one's own": Project(own.own_variational, (TABLE,)),
    "contrastive learning, train_step of one's own": Project(own.contrastive, (TABLE,)),
    "metric learning, samples of a batch compared": Project(own.pairs_of_a_batch, (TABLE, CLASSES)),
}


# ---- the document ------------------------------------------------------------------------------------------


def table(verdicts: Sequence[Verdict]) -> str:
    """The table as it stands in the document."""
    return "\n".join(document_lines("project", verdicts))


def main() -> None:
    """Try every project and put the table into the document.

    Raises:
        SystemExit: If one trains otherwise than in Keras without being refused.
    """
    verdicts = [project_verdict(name) for name in PROJECTS]
    text = table(verdicts)
    print(text, flush=True)
    wrong = [one.name for one in verdicts if one.answer == "different"]
    if wrong:
        raise SystemExit(f"different from Keras, and not refused: {', '.join(wrong)}")
    DOCUMENT.write_text(replace_section(DOCUMENT.read_text(), SECTION, text))


if __name__ == "__main__":
    main()
