"""Data sets of the real torch, where it is installed (the extra `compare`)."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from scavenger.train.failure import DataError
from scavenger.train.worker.data.opening import open_source

pytestmark = pytest.mark.slow

torch = pytest.importorskip("torch", reason="torch is not installed")

X = np.arange(24, dtype=np.float32).reshape(8, 3)
Y = np.arange(8, dtype=np.int64)


class Squares(torch.utils.data.Dataset[Any]):
    """A data set as tutorials have it: it transforms a sample when it is read."""

    def __len__(self) -> int:
        return len(X)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return torch.from_numpy(X[index]) ** 2, int(Y[index])


def whole() -> Any:
    return torch.utils.data.TensorDataset(torch.from_numpy(X), torch.from_numpy(Y))


class Stream(torch.utils.data.IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(whole())


@pytest.mark.parametrize(
    ("data", "x", "y"),
    [
        (whole(), X, Y),
        (Squares(), X**2, Y),
        (torch.utils.data.Subset(whole(), [6, 1, 4]), X[[6, 1, 4]], Y[[6, 1, 4]]),
        (torch.utils.data.ConcatDataset([whole(), Squares()]), np.concatenate([X, X**2]), np.tile(Y, 2)),
        ((torch.from_numpy(X), torch.from_numpy(Y)), X, Y),
        (whole().tensors, X, Y),
    ],
    ids=["TensorDataset", "Dataset", "Subset", "ConcatDataset", "tensors", "tuple of tensors"],
)
def test_a_map_style_data_set_gives_its_samples_in_any_order(data: Any, x: Any, y: Any) -> None:
    source = open_source(data, "train")
    order = np.random.default_rng(7).permutation(len(x))

    got = source.batch(order)

    assert len(source) == len(x)
    np.testing.assert_array_equal(got[0], x[order])
    np.testing.assert_array_equal(got[1], y[order])


def test_what_makes_its_own_batches_or_order_is_refused_and_names_what_to_give() -> None:
    with pytest.raises(DataError, match=r"give its data set, loader\.dataset"):
        open_source(torch.utils.data.DataLoader(whole(), batch_size=2), "train")
    with pytest.raises(DataError, match=r"FromGenerator\(lambda: iter\(dataset\), length\)"):
        open_source(Stream(), "train")
    assert len(open_source(torch.utils.data.DataLoader(whole(), batch_size=2).dataset, "train")) == len(X)
