"""Ordinary Keras projects train as with plain `fit`, or are refused in one line, as the document says."""

from __future__ import annotations

import pytest

from benchmarks.keras_projects import PROJECTS, project_verdict
from benchmarks.keras_support import DOCUMENT, Verdict, documented

pytestmark = pytest.mark.slow

QUICK = (
    "regression on a table, Normalization.adapt",
    "fine-tuning after a first fit",
    "recommendations, subclassed model of embeddings",
    "rare classes, class_weight",
    "sample weights, a constraint, validation_split",
    "averaged weights (EMA), a schedule",
    "distillation, compute_loss of one's own",
    "train_step of one's own",
    "generative adversarial network",
    "metric learning, samples of a batch compared",
)
"""Projects that are trained in ordinary runs as well; `make proofs` trains all."""


def rows() -> dict[str, Verdict]:
    """What the document says."""
    return documented(DOCUMENT.read_text())


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.long) for name in PROJECTS]
)
def test_a_project_gives_the_weights_of_plain_fit_or_is_refused(name: str) -> None:
    verdict = project_verdict(name)

    assert verdict.answer != "different"
    assert (verdict.answer == "refused") == bool(verdict.reason)
    assert "\n" not in verdict.reason
    assert rows()[name] == verdict, "python -m benchmarks.keras_projects"


def test_the_document_names_every_project() -> None:
    assert set(PROJECTS) <= set(rows())
