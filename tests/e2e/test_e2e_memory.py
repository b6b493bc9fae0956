"""A job whose larger batches TensorFlow refuses for want of memory: it is trained at those that fit."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from real_jobs import Job

pytestmark = pytest.mark.slow

HUNGRY = """
import tensorflow as tf

def take(samples):
    if samples > 48:
        raise MemoryError("no room")  # for TensorFlow, its ResourceExhaustedError
    return np.float32(0.0)

class Hungry(keras.layers.Layer):
    def call(self, inputs):
        none = tf.numpy_function(take, [tf.shape(inputs)[0]], tf.float32)
        none.set_shape(())
        return inputs + none

def hungry_job():
    plain = job()
    model = keras.Sequential([keras.Input((16,)), Hungry(), *plain.model.layers])
    model.compile(optimizer=keras.optimizers.SGD(0.01), loss="mse")
    return KerasJob(model, plain.train, plain.validation)
"""


def test_what_memory_does_not_hold_bounds_the_search_and_the_job_reaches_its_target(
    make_job: Callable[..., Job],
) -> None:
    search = {"workers": 1, "batch_size": [32, 64, 128], "strategy": "full"}
    job = make_job(train="train:hungry_job", search=search)
    module = job.folder / "train.py"
    module.write_text(module.read_text() + HUNGRY)

    outcome = job.run()

    assert outcome.code == 0, outcome.stderr
    report = outcome.report
    assert (report["job"]["state"], report["choice"]["global_batch_size"]) == ("succeeded", 32)
    assert [point["global_batch_size"] for point in report["search"]["profiled"]] == [32]
    left_out = {p["global_batch_size"]: p["excluded"] for p in report["curve"]}
    assert left_out.pop(32) in ("", None)
    assert set(left_out.values()) == {"local batch too large for a worker's memory"}
    assert any("64 samples at once do not fit" in words for words in report["warnings"])
