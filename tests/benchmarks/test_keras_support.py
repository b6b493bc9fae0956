"""Every optimizer and every layer with state that Keras exports trains as in Keras, or is refused by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import keras
import pytest

from benchmarks.keras_support import (
    DOCUMENT,
    SECTION,
    Case,
    Verdict,
    documented,
    layer_case,
    optimizer_cases,
    stateful_layers,
    tables,
    verdict_of,
)
from scavenger.train.aggregation.keras_state import OptimizerState
from scavenger.train.transport.messages.data import ApplyPart

pytestmark = pytest.mark.slow
QUICK = {
    "Adafactor",
    "Adam",
    "Lamb",
    "LossScaleOptimizer",
    "MultiOptimizer",
    "Muon",
    "ScheduleFreeAdamW",
    "ScheduleFreeAdamW, built by the user",
    "a schedule",
    "clipnorm",
    "global_clipnorm",
    "gradient_accumulation_steps",
    "use_ema",
    "BatchNormalization",
    "BatchNormalization(synchronized=True)",
    "Dropout",
    "GRU(stateful=True)",
    "SpectralNormalization",
}
"""What is trained in ordinary runs as well: one of each kind, for which the code of workers or aggregators has a branch
of its own. `make proofs` trains all."""
_OPTIMIZERS = {case.name: case for case in optimizer_cases()}
_LAYERS = {found[0]: found for found in stateful_layers()}


def rows() -> dict[str, Verdict]:
    """What the document says."""
    _, _, text = DOCUMENT.read_text().partition(f"<!-- begin {SECTION} -->")
    text, _, _ = text.partition(f"<!-- end {SECTION} -->")
    return documented(text)


def quick(names: Iterable[str]) -> list[Any]:
    return [name if name in QUICK else pytest.param(name, marks=pytest.mark.long) for name in names]


def check(case: Case) -> None:
    verdict = verdict_of(case)

    assert verdict.answer != "different"
    assert (verdict.answer == "refused") == bool(verdict.reason)
    assert rows()[case.name].answer == verdict.answer, "python -m benchmarks.keras_support"


@pytest.mark.parametrize("name", quick(_OPTIMIZERS))
def test_an_optimizer_gives_the_weights_of_plain_keras_or_is_refused(name: str) -> None:
    check(_OPTIMIZERS[name])


@pytest.mark.parametrize("name", quick(_LAYERS))
def test_a_layer_with_state_gives_the_weights_of_plain_keras_or_is_refused(name: str) -> None:
    check(layer_case(*_LAYERS[name]))


def test_the_document_names_what_this_version_of_keras_exports() -> None:
    text = DOCUMENT.read_text()

    assert f"Keras {keras.__version__}." in text
    assert {*_OPTIMIZERS, *QUICK} <= set(rows()) <= {*_OPTIMIZERS, *_LAYERS}


@pytest.mark.long
def test_the_document_names_every_layer() -> None:
    assert set(rows()) == {*_OPTIMIZERS, *_LAYERS}, "python -m benchmarks.keras_support"


@pytest.mark.parametrize(
    "optimizer",
    [
        lambda: keras.optimizers.RMSprop(0.01, momentum=0.9, centered=True, use_ema=True),
        pytest.param(lambda: keras.optimizers.Adam(0.01, amsgrad=True), marks=pytest.mark.long),
        pytest.param(lambda: keras.optimizers.SGD(0.01, momentum=0.9, nesterov=True), marks=pytest.mark.long),
    ],
)
def test_every_array_of_an_optimizer_is_saved_under_its_name(optimizer: Callable[[], Any]) -> None:
    build = _OPTIMIZERS["SGD"].build

    def compiled() -> Any:
        model = build()
        model.compile(optimizer(), "mse")
        return model

    assert verdict_of(replace(_OPTIMIZERS["SGD"], build=compiled)).answer == "equal"


def test_a_saved_model_with_another_state_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def forgetful(optimizer: Any, every: Any, weights: Any, state: OptimizerState) -> None:
        optimizer.build(every)

    monkeypatch.setattr("scavenger.train.worker.program.assign_state", forgetful)

    assert verdict_of(_OPTIMIZERS["Adam"]).answer == "different"


def test_what_trains_otherwise_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def a_little_faster(step: int, view: int, lr_scale: float, pieces: Any) -> ApplyPart:
        return ApplyPart(step, view, 1.001 * lr_scale, pieces)

    monkeypatch.setattr("benchmarks.keras_training.ApplyPart", a_little_faster)

    assert verdict_of(_OPTIMIZERS["SGD"]).answer == "different"


def test_the_tables_hold_a_row_for_each() -> None:
    text = tables([Verdict("SGD", "equal")], [Verdict("Dropout", "refused", "as it is")])

    assert "SGD" in text
    assert "as it is" in text
