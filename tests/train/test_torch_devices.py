"""PyTorch modules on a device that is no processor: the numbers of a processor, few copies, refusals with their line.

The first test runs the others, and those of `test_torch_equals_ddp.py`, in a process that has such a device from its
begin. Where there is a GPU, `TORCH_DEVICE=cuda python -m pytest tests/train/test_torch_equals_ddp.py` has it instead.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from waiting import PATIENCE_S

from scavenger.errors import TrainingCodeError

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'scavenger-ml[compare]'")

pytestmark = pytest.mark.slow

DEVICE = os.environ.get("TORCH_DEVICE", "cpu")
there = pytest.mark.skipif(DEVICE != "tiny", reason="runs in a process that has the device")
if DEVICE == "tiny":
    from test_torch_equals_ddp import Meeting, Member, Way, X, Y, torch_device
    from test_torch_refused import BEGIN, LOOP, Alone, run

    __all__ = ["run"]


@pytest.mark.skipif(DEVICE != "cpu", reason="is in that process already")
def test_what_holds_on_a_processor_holds_on_a_device() -> None:
    files = [
        str(Path(__file__).with_name(name)) for name in ("test_torch_equals_ddp.py", Path(__file__).name)
    ]
    wanted = "equals or reach_the_weights or changed_before or between_two or that_differ or device"
    command = [
        sys.executable,
        "-m",
        "pytest",
        *files,
        "-x",
        "-k",
        wanted,
        "-p",
        "no:xdist",
        "-p",
        "no:randomly",
    ]
    done = subprocess.run(
        command,
        env={**os.environ, "TORCH_DEVICE": "tiny"},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )

    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None
    assert int(passed[1]) >= 40, "most of them ran nowhere"


def test_the_memory_that_workers_share_is_pinned_for_cuda_as_one_block_and_separate_arrays_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from scavenger.sdk.torch_devices import PinnedMemory
    from scavenger.train.custom_loop.gradient_memory import GradientMemory
    from scavenger.train.custom_loop.messages import headers_of

    held: dict[int, int] = {}

    class Runtime:
        cudaError = SimpleNamespace(success=0)  # noqa: N815 - as CUDA has it

        def cudaHostRegister(self, begin: int, size: int, flags: int) -> int:
            held[begin] = size
            return 0

        def cudaHostUnregister(self, begin: int) -> None:
            del held[begin]

    monkeypatch.setattr(torch.cuda, "cudart", Runtime)
    like = {"a": np.zeros(1000, np.float32), "b": np.zeros(3), "c": np.zeros((7, 9))}
    descriptor = os.memfd_create("gradients")
    shared = GradientMemory(descriptor).arrays(1, headers_of(like)).values()
    pinned, cuda = PinnedMemory(), [torch.device("cuda", 0)]

    pinned.pin(shared, [torch.device("cpu")])
    pinned.pin([array.copy() for array in (*shared, np.zeros(1 << 20))], cuda)
    assert not held
    pinned.pin(shared, cuda)
    [(begin, size)] = held.items()
    assert all(begin <= one.ctypes.data and one.ctypes.data + one.nbytes <= begin + size for one in shared)
    pinned.release()
    assert not held
    os.close(descriptor)


@there
def test_the_memory_of_the_device_is_not_the_main_memory() -> None:
    one = torch.ones(3, device=DEVICE)

    assert (one.device.type, one.sum().item()) == (DEVICE, 3.0)
    with pytest.raises(RuntimeError, match="not supported"):
        one.numpy()
    with pytest.raises(RuntimeError, match="tensors on tiny and on cpu"):
        one + torch.ones(3)
    late = torch.zeros(3)
    late.copy_(one, non_blocking=True)
    assert late.tolist() == [0.0, 0.0, 0.0]
    torch.tiny.current_stream().synchronize()
    assert late.tolist() == [1.0, 1.0, 1.0]


class Convolutions(Way if DEVICE == "tiny" else object):  # type: ignore[misc]
    """Images, with BatchNorm's statistics and counters, classes, and an optimizer that keeps two averages."""

    def before(self) -> None:
        nn, layers = torch.nn, list[Any]()
        for before, after in ((1, 3), (3, 4)):
            layers += [nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU()]
        self.model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(4 * 2 * 2, 2)).double()

    def after(self) -> None:
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)

    def loss(self, step: int, rows: slice) -> Any:
        x, y = X[step, rows].view(-1, 1, 2, 2), Y[step, rows].argmax(1)
        return torch.nn.functional.cross_entropy(self.model(x.to(self.device)), y.to(self.device))


@there
def test_a_step_on_a_device_copies_all_gradients_at_once_and_buffers_by_their_types() -> None:
    plain, way = Convolutions("cpu"), Convolutions()
    elastic, job, copies = way.elastic(), Member(Meeting(1), 0, 8), torch_device.copies
    steps = range(3)
    plain.alone(steps)
    for step in steps:
        elastic.zero_grad()
        way.loss(step, slice(None)).backward()
        copies.clear()
        elastic.step(job)

        gradients = sum(parameter.numel() for parameter in way.model.parameters())
        statistics, counters = 2 * (3 + 4), 2
        assert sorted(copies.out) == sorted(copies.into) == [counters, statistics, gradients]
        assert copies.read == 0

    for name, tensor in plain.model.state_dict().items():
        np.testing.assert_allclose(
            way.model.state_dict()[name].cpu(), tensor, rtol=0, atol=1e-12, err_msg=name
        )


@there
def test_a_worker_that_joins_has_its_whole_replica_on_its_device() -> None:
    first, second = Convolutions(), Convolutions("cpu")
    elastic, joining = first.elastic(), second.elastic()
    first.worker(elastic, Member(Meeting(1), 0, 8), slice(None), range(3))

    joining.load({name: array.copy() for name, array in elastic.state().items()})
    back = Convolutions()
    back.elastic().load(joining.state())
    for way in (first, second, back):
        way.worker(way.elastic(), Member(Meeting(1), 0, 8), slice(None), range(3, 6))

    for name, tensor in first.model.state_dict().items():
        for way in (second, back):
            found = way.model.state_dict()[name]
            assert found.device.type == torch.device(way.device).type
            np.testing.assert_allclose(found.cpu(), tensor.cpu(), rtol=0, atol=1e-12, err_msg=name)


class Apart(Way if DEVICE == "tiny" else object):  # type: ignore[misc]
    """A module whose first layer is on the processor, and whose last one is on the device."""

    def before(self) -> None:
        layers = {"first": torch.nn.Linear(4, 6), "last": torch.nn.Linear(6, 2)}
        self.model = torch.nn.ModuleDict(layers).double()

    def place(self) -> None:
        self.model["last"].to(self.device)

    def errors(self, step: int, rows: slice) -> Any:
        found = self.model["last"](self.model["first"](X[step, rows]).tanh().to(self.device))
        return (found - Y[step, rows].to(self.device)).square()


@there
@pytest.mark.parametrize("averages", [False, True])
def test_a_module_on_two_devices_has_a_flat_array_on_each(averages: bool) -> None:
    plain, way = Apart("cpu"), Apart()
    elastic, job = way.elastic(), Member(Meeting(1), 0, 8)
    plain.alone(range(4))
    for step in range(4):
        elastic.zero_grad()
        way.loss(step, slice(None)).backward()
        if averages:
            elastic.average(job)
        elastic.step(job)

    assert {name: flat.device.type for name, flat in elastic._flat.items()} == {
        "torch.float64": "cpu",
        "torch.float64/1": DEVICE,
    }
    for name, tensor in plain.model.state_dict().items():
        np.testing.assert_allclose(
            way.model.state_dict()[name].cpu(), tensor, rtol=0, atol=1e-12, err_msg=name
        )


@there
def test_autocast_computes_on_the_device_in_half_precision_and_the_weights_stay_as_they_are() -> None:
    from scavenger.sdk.torch import Elastic

    models = []
    for elastic in (False, True):
        torch.manual_seed(2)
        layers = torch.nn.Linear(4, 6), torch.nn.Tanh(), torch.nn.Linear(6, 2)
        model = torch.nn.Sequential(*layers).to(DEVICE)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        replica = Elastic(model, optimizer) if elastic else None
        for step in range(4):
            x, y = X[step].float().to(DEVICE), Y[step].float().to(DEVICE)
            model.zero_grad()
            if replica is not None:
                replica.zero_grad()
            with torch.autocast(DEVICE, dtype=torch.bfloat16):
                found = model(x)
                assert found.dtype == torch.bfloat16
                loss = torch.nn.functional.mse_loss(found, y)
            loss.backward()
            if replica is None:
                optimizer.step()
            else:
                replica.step(Member(Meeting(1), 0, 8))
        models.append(model)

    for one, other in zip(*(model.state_dict().values() for model in models), strict=True):
        assert one.dtype == torch.float32
        assert torch.equal(one.cpu(), other.cpu())


@there
def test_the_order_of_the_samples_leaves_the_random_numbers_of_the_device_alone() -> None:
    from scavenger.sdk.torch_loader import BatchLoader

    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.arange(12)), 4, shuffle=True)
    before = torch.tiny.seeds
    BatchLoader(loader, 5, "").order(0)

    assert torch.tiny.seeds == before


@there
@pytest.mark.parametrize(
    ("within", "words"),
    [
        ("optimizer.step()", None),
        ("optimizer.step(); model(x.to('tiny')).sum().backward()", "add the losses, and call backward once"),
    ],
)
def test_what_a_script_does_on_the_device_is_refused_with_its_line(
    run: Any, within: str, words: str | None
) -> None:
    text = BEGIN.replace("nn.Linear(3, 2)", "nn.Linear(3, 2).to('tiny')") + (
        "model, optimizer, loader = elastic.prepare(model, optimizer, loader)\n"
        + LOOP.replace("model(x), y", "model(x.to('tiny')), y.to('tiny')").replace("optimizer.step()", within)
    )
    if words is None:
        assert len(run(text, Alone()).losses) == 15
        return
    with pytest.raises(TrainingCodeError) as refused:
        run(text, Alone())

    line = next(number for number, one in enumerate(text.splitlines(), 1) if "sum().backward()" in one)
    assert str(refused.value).startswith(f"train.py:{line}: ")
    assert words in str(refused.value)


@there
def test_a_script_of_accelerate_finds_its_batches_on_the_device_as_without_a_job(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("accelerate")
    monkeypatch.setenv("ACCELERATE_TORCH_DEVICE", DEVICE)
    text = BEGIN.replace("nn.Linear(3, 2)", "nn.Linear(3, 2).to('tiny')") + (
        "from accelerate import Accelerator\n"
        "model, optimizer, loader = elastic.prepare(model, optimizer, loader)\n"
        "accelerator = Accelerator()\n"
        "model, optimizer, loader = accelerator.prepare(model, optimizer, loader)\n"
        "assert accelerator.device.type == 'tiny'\n" + LOOP
    )

    assert len(run(text, Alone()).losses) == 15
