"""Scripts as strangers write them, which call `fit`: each is a job without a change, or refused with its line."""

from __future__ import annotations

import runpy
import shutil
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import keras
import numpy as np
import pytest
from real_jobs import Job

from scavenger.control.job_file.load import load_job
from scavenger.domain.script import Script
from scavenger.errors import NotSupportedError, TrainingCodeError
from scavenger.train.worker.loading import load_fit
from scavenger.train.worker.script import ScriptFit

pytestmark = pytest.mark.slow

SCRIPTS = Path(__file__).with_name("scripts")
TAKEN = {  # line of fit, epochs, samples of a step, of an epoch, for validation, callbacks
    "sequential": (18, 3, 16, 40, 10, 0),
    "functional": (19, 4, 32, 200, 0, 0),
    "pipeline": (32, 2, 20, 100, 20, 0),
    "with_callbacks": (33, 10, 8, 80, 16, 4),
    "two_fits": (12, 2, 32, 64, 0, 0),
    "notebook": (43, 5, 32, 1347, 450, 0),
    "arguments": (30, 6, 12, 96, 0, 0),
    "own_step": (46, 3, 16, 70, 0, 0),
    "transfer": (23, 1, 8, 24, 0, 0),
}


@pytest.fixture(autouse=True)
def _as_in_a_process_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "argv", ["process.py"])
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    monkeypatch.setenv("MPLBACKEND", "Agg")
    monkeypatch.chdir(tmp_path)
    yield
    keras.utils.clear_session()


def houses(folder: Path) -> None:
    rng = np.random.default_rng(0)
    np.savetxt(folder / "houses.csv", rng.normal(size=(50, 4)), delimiter=",")


def fit_of(text: str, *arguments: str) -> ScriptFit:
    """The fit of a script with this text, in the present folder."""
    Path("script.py").write_text(text)
    return load_fit(Script("script.py", arguments), str(Path.cwd()), 0)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.long) if name == "transfer" else name for name in TAKEN]
)
def test_a_script_becomes_a_job_as_it_is(name: str, tmp_path: Path) -> None:
    houses(tmp_path)
    line, *expected = TAKEN[name]

    fit = load_fit(Script(f"{name}.py"), str(SCRIPTS), 0)
    manifest = fit.program().manifest

    assert fit.place == f"{name}.py:{line}"
    found = (manifest.dataset_size, manifest.validation_size, len(manifest.callbacks))
    assert [fit.epochs, fit.batch_size, *found] == expected


def test_the_tenth_is_refused_with_its_line() -> None:
    fit = load_fit(Script("generator.py"), str(SCRIPTS), 0)

    with pytest.raises(
        NotSupportedError, match=r"^generator.py:13: the data of fit: a generator can be read only"
    ):
        fit.program()


def test_arguments_of_the_script_are_its_own() -> None:
    fit = load_fit(Script("arguments.py", ("--epochs", "9", "--fast")), str(SCRIPTS), 0)

    assert (fit.epochs, fit.program().manifest.dataset_size) == (9, 48)
    with pytest.raises(TrainingCodeError, match=r"^arguments.py:16: the script ended itself \(2\) before it"):
        load_fit(Script("arguments.py", ("--eposch", "9")), str(SCRIPTS), 0)


MODEL = """
import keras, numpy as np
x, y = np.ones((64, 2), "float32"), np.ones((64, 1), "float32")
model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")
"""


@pytest.mark.parametrize(
    ("call", "complaint"),
    [
        ("model.fit(x, y, initial_epoch=3, epochs=5)", r"fit\(initial_epoch=...\): epochs count from 0"),
        ("model.fit(x, y, validation_data=(x, y), validation_freq=2)", r"fit\(validation_freq=...\)"),
        ("model.fit(x, y, validation_data=(x, y), validation_steps=1)", r"fit\(validation_steps=...\)"),
        ("model.fit(x, y, shuffle='batch')", r"fit\(shuffle='batch'\)"),
        (
            "model.fit(x, y, steps_per_epoch=3, batch_size=8)",
            r"fit\(steps_per_epoch=3, batch_size=8\): epochs",
        ),
        ("model.fit(x, y, callbacks=[keras.callbacks.SwapEMAWeights()])", "callbacks: SwapEMAWeights is not"),
        ("model.compile('sgd', keras.losses.MeanSquaredError('sum')); model.fit(x, y)", "reduction 'sum'"),
        ("model.train_on_batch(x, y)", "train_on_batch makes the steps of a loop"),
        (
            "model.optimizer.apply([x[:2, :1], x[0, :1]], model.trainable_variables)",
            "applies gradients in a loop",
        ),
    ],
)
def test_what_a_job_would_do_otherwise_is_refused_with_its_line(call: str, complaint: str) -> None:
    with pytest.raises(NotSupportedError, match=f"^script.py:7: .*{complaint}"):
        fit_of(f"{MODEL}\n{call}\n").program()


def test_a_script_without_fit_is_refused_and_a_fault_in_it_told() -> None:
    with pytest.raises(NotSupportedError, match=r"^script.py: the script never calls fit of a Keras model"):
        fit_of(MODEL)
    with pytest.raises(ZeroDivisionError):
        fit_of("1 / 0")
    with pytest.raises(TrainingCodeError, match=r"^script.py:6: ValueError"):
        fit_of(f"{MODEL}model.fit(x[:, :1], y)").program()


def test_whole_passes_are_told_from_parts_of_them() -> None:
    data = "import tensorflow as tf\ndata = tf.data.Dataset.from_tensor_slices((x, y)).batch(8)\n"

    def epoch(call: str) -> tuple[int, bool]:
        manifest = fit_of(f"{MODEL}{data}{call}").program().manifest
        return manifest.dataset_size, manifest.shuffle

    assert epoch("model.fit(data.repeat(), steps_per_epoch=8)") == (64, False)  # in the order of the data
    assert epoch("model.fit(data.shuffle(4).repeat(), steps_per_epoch=4)") == (32, True)
    assert epoch("model.fit(x, y, steps_per_epoch=8)") == (64, True)
    assert epoch("model.fit(x, y, batch_size=16, steps_per_epoch=2)") == (32, True)
    assert epoch("model.fit(x, y, validation_data=(x, y), validation_steps=2)") == (64, True)


def test_a_library_that_calls_fit_is_refused_and_what_the_script_catches_does_not_hide_its_call() -> None:
    threads = "import concurrent.futures\nwith concurrent.futures.ThreadPoolExecutor() as pool:\n    "
    with pytest.raises(NotSupportedError, match=r"^the script: fit is called by (concurrent|threading)"):
        fit_of(f"{MODEL}{threads}pool.submit(model.fit, x, y)")

    assert fit_of(f"{MODEL}try:\n    model.fit(x, y, epochs=2)\nexcept:\n    pass").epochs == 2


def test_a_script_trains_as_a_job_to_the_weights_that_python_gives_it(
    make_job: Callable[..., Job], tmp_path: Path
) -> None:
    job = make_job()
    shutil.copy(SCRIPTS / "sequential.py", job.folder / "mine.py")
    houses(tmp_path)

    outcome = job.ask("optimize", str(job.folder / "mine.py"), "--yes", "--workers", "1")
    runpy.run_path(str(job.folder / "mine.py"), run_name="__main__")

    assert outcome.code == 0, outcome.stderr
    assert "mine.py:18 fit: Sequential of 81 weights, 40 samples in batches of 16, 10 for" in outcome.stderr
    assert "not run: what follows fit in the script; the trained model will be" in outcome.stderr
    assert load_job(job.folder / "mine.job.yaml").goal.max_epochs == 3
    (trained,) = (job.folder / ".scavenger").glob("*/model.keras")
    by_job, by_python = (keras.models.load_model(path).get_weights() for path in (trained, "houses.keras"))
    for ours, plain in zip(by_job, by_python, strict=True):
        np.testing.assert_allclose(ours, plain, rtol=1e-4, atol=1e-6)
