"""PyTorch loops: the adapter, and the same weights as DDP on the same order of data. Needs PyTorch (`[compare]`)."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scavenger import run_loop
from scavenger.sdk.loop import STATISTICS
from scavenger.train.custom_loop.run import LoopRun
from scavenger.train.supervisor.events import Event
from scavenger.train.transport.messages import StepReport

pytestmark = pytest.mark.slow

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'scavenger-ml[compare]'")

JOBS = Path(__file__).with_name("jobs")
SHARD = 32


class Alone:
    """A job of this worker alone, whose mean is what it pushes."""

    lr_scale = 1.0

    def allocate(self, like: dict[str, Any]) -> dict[str, Any]:
        return {name: np.zeros(array.shape, array.dtype) for name, array in like.items()}

    def holds(self, groups: Any) -> bool:
        return False

    def push_pull(self, arrays: dict[str, Any], *, borrow: bool) -> dict[str, Any]:
        assert borrow
        self.pushed = {name: array.copy() for name, array in arrays.items()}
        return self.pushed


def _network() -> Any:
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 2))


def _step(elastic: Any, job: Alone, x: Any) -> None:
    elastic.zero_grad()
    elastic.module(x).square().mean().backward()
    elastic.step(job)


@pytest.mark.parametrize("make", ["SGD", "Adam", "AdamW"])
def test_a_replica_that_loads_the_state_of_another_goes_on_as_it(make: str) -> None:
    from scavenger.sdk.torch import Elastic

    x, job = torch.randn(8, 3), Alone()
    options: dict[str, Any] = {"lr": 0.05} | ({"momentum": 0.9} if make == "SGD" else {})
    replicas = []
    for _ in range(2):
        model = _network()
        replicas.append(Elastic(model, getattr(torch.optim, make)(model.parameters(), **options)))
    first, second = replicas
    for _ in range(3):
        _step(first, job, x)
    first.optimizer.param_groups[0]["lr"] = 0.01

    second.load({name: array.copy() for name, array in first.state().items()})
    for replica in replicas:
        _step(replica, Alone(), x)

    states = [replica.state() for replica in replicas]
    assert states[0].keys() == states[1].keys()
    for name in states[0]:
        np.testing.assert_array_equal(states[0][name], states[1][name], err_msg=name)
    assert second.optimizer.param_groups[0]["lr"] == 0.01


def test_the_state_is_that_of_the_last_step_though_a_forward_pass_has_changed_the_statistics() -> None:
    from scavenger.sdk.torch import Elastic

    model = _network()
    elastic = Elastic(model, torch.optim.SGD(model.parameters(), lr=0.1))
    _step(elastic, Alone(), torch.randn(8, 3))
    before = {name: array.copy() for name, array in elastic.state().items()}

    model(torch.randn(8, 3) + 5.0)

    for name, array in elastic.state().items():
        np.testing.assert_array_equal(array, before[name], err_msg=name)


def test_gradients_are_one_array_which_the_parameters_share_and_statistics_are_apart() -> None:
    from scavenger.sdk.torch import Elastic

    model, job = _network(), Alone()
    elastic = Elastic(model, torch.optim.SGD(model.parameters(), lr=0.0))
    _step(elastic, job, torch.randn(8, 3))
    expected = torch.cat([p.grad.flatten() for p in model.parameters()]).numpy()

    assert {name for name in job.pushed if not name.startswith(STATISTICS)} == {"torch.float32"}
    np.testing.assert_array_equal(job.pushed["torch.float32"], expected)
    assert STATISTICS + "1.running_mean" in job.pushed
    begin = elastic._arrays["torch.float32"].__array_interface__["data"][0]
    assert next(iter(model.parameters())).grad.data_ptr() == begin


_WAYS: list[dict[str, Any]] = [
    {"foreach": False},
    {"foreach": True},
    {"fused": True},
    {"maximize": True, "foreach": True},
    {"weight_decay": 0.1, "foreach": True},
    {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
    {"decoupled_weight_decay": True, "weight_decay": 0.1},
    {"centered": True, "momentum": 0.9},
    {"amsgrad": True, "maximize": True},
]


def test_optimizers_that_read_the_mean_where_all_workers_do_leave_it_as_it_is() -> None:
    from scavenger.sdk.torch import ONLY_READING

    tried = set()
    for make in ONLY_READING:
        for way in _WAYS:
            parameter = torch.nn.Parameter(torch.ones(64))
            try:
                optimizer = make([parameter], lr=0.1, **way)
            except (TypeError, ValueError):  # it has no such way
                continue
            before = torch.linspace(-1.0, 1.0, 64)
            parameter.grad = before.clone()
            for _ in range(3):
                optimizer.step()
            assert torch.equal(parameter.grad, before), (make, way)
            assert parameter.grad._version == 0, (make, way)
            assert not torch.equal(parameter.detach(), torch.ones(64))
            tried.add(make)
    assert tried == ONLY_READING


def _clip(optimizer: Any) -> None:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            parameter.grad.clamp_(-1e-3, 1e-3)


class Clipping(torch.optim.SGD):  # type: ignore[misc]
    """An optimizer of the user's, which writes to the gradients."""

    def step(self, closure: Any = None) -> None:
        _clip(self)
        super().step(closure)


@pytest.mark.parametrize("hook", [False, True])
def test_what_an_optimizer_writes_to_gradients_no_other_worker_sees(hook: bool) -> None:
    from scavenger.sdk.torch import Elastic

    model, job = _network(), Alone()
    optimizer = (torch.optim.SGD if hook else Clipping)(model.parameters(), lr=0.1)
    if hook:
        optimizer.register_step_pre_hook(lambda optimizer, *_: _clip(optimizer))
    elastic = Elastic(model, optimizer)
    before = [p.detach().clone() for p in model.parameters()]
    _step(elastic, job, 10.0 * torch.randn(8, 3))
    moved = [(p.detach() - old).abs().max() for p, old in zip(model.parameters(), before, strict=True)]

    assert max(moved) <= 1.01e-4
    assert np.abs(job.pushed["torch.float32"]).max() > 1e-2, "the shared mean is as it was"


def test_a_module_that_is_converted_before_it_is_trained_takes_what_belongs_to_it_along() -> None:
    """As Accelerate moves a module to its device after it was prepared."""
    from scavenger.sdk.torch import Elastic

    x, replicas = torch.randn(8, 3).double(), []
    for converted in (False, True):
        model = _network().double()
        first = Elastic(model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9))
        _step(first, Alone(), x)
        if converted:
            model.float()
            x = x.float()
            first.follow()
        _step(first, Alone(), x)
        replicas.append(first)

    assert {name for name in replicas[1]._arrays if not name.startswith(STATISTICS)} == {"torch.float32"}
    for name, array in replicas[0].state().items():
        if array.dtype == np.float64:
            np.testing.assert_allclose(replicas[1].state()[name], array, rtol=1e-4, atol=1e-4, err_msg=name)


def test_gradients_of_several_backward_passes_add_up_and_missing_ones_are_zero() -> None:
    from scavenger.sdk.torch import Elastic

    job, model = (
        Alone(),
        torch.nn.ModuleDict({"used": torch.nn.Linear(3, 2), "unused": torch.nn.Linear(2, 2)}),
    )
    model["table"] = torch.nn.Embedding(5, 2, sparse=True)
    elastic = Elastic(model, torch.optim.SGD(model.parameters(), lr=0.1))
    pushed = []
    for _ in range(2):  # nothing of a step is left in the next
        elastic.zero_grad()
        x = torch.ones(1, 3)
        for _ in range(2):
            (model["used"](x).sum() + model["table"](torch.tensor([1, 1])).sum()).backward()
        elastic.step(job)
        pushed.append(job.pushed["torch.float32"])

    expected = {"used.weight": 2.0, "used.bias": 2.0, "unused.weight": 0.0, "unused.bias": 0.0}
    table = np.zeros((5, 2))
    table[1] = 4.0
    for given in pushed:
        at = 0
        for name, parameter in model.named_parameters():
            found = given[at : at + parameter.numel()].reshape(tuple(parameter.shape))
            np.testing.assert_array_equal(
                found, table if name == "table.weight" else expected[name], err_msg=name
            )
            at += parameter.numel()


@pytest.mark.long
@pytest.mark.slow
def test_a_loop_on_two_workers_reaches_the_weights_of_ddp_on_the_same_order_of_data(tmp_path: Path) -> None:
    steps: list[list[tuple[int, int]]] = []

    def on_event(run: LoopRun, event: Event) -> None:
        if isinstance(event, StepReport):
            rows = [(start, stop) for _, start, stop in event.pieces]
            assert len({stop - start for start, stop in rows}) == 1
            steps.append(rows)

    report = run_loop(
        "torch_small:train", workers=2, work_dir=tmp_path / "work", job_dir=JOBS, on_event=on_event
    )
    both = [rows for rows in steps if len(rows) == 2]
    assert report.replicas_equal
    assert len(both) == len(steps) == 3 * 8
    weights = _with_ddp(both, tmp_path)

    assert weights
    for name, expected in weights.items():
        np.testing.assert_allclose(report.state[f"model/{name}"], expected, rtol=1e-6, atol=1e-6)


def test_a_loop_with_clipping_a_schedule_and_a_frozen_layer_is_exact(
    tmp_path: Path,
) -> None:
    steps: list[list[Any]] = []

    def on_event(run: LoopRun, event: Event) -> None:
        if isinstance(event, StepReport):
            steps.append(list(event.pieces))

    report = run_loop(
        "torch_small:train_wide", workers=3, work_dir=tmp_path / "work", job_dir=JOBS, on_event=on_event
    )
    assert report.replicas_equal
    sys.path.insert(0, str(JOBS))
    try:
        from torch_small import SHARD, SHARDS, build_wide, compute_wide
    finally:
        sys.path.remove(str(JOBS))
    model, optimizer, scheduler = build_wide()
    seen = 0
    for pieces in steps:
        rows = [row for _, start, stop in pieces for row in range(start, stop)]
        optimizer.zero_grad()
        compute_wide(model, seen // (SHARD * SHARDS), rows)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.3)
        optimizer.step()
        scheduler.step()
        seen += len(rows)

    for name, tensor in model.state_dict().items():
        np.testing.assert_allclose(report.state[f"model/{name}"], tensor, rtol=0, atol=1e-10, err_msg=name)


def _with_ddp(steps: list[list[tuple[int, int]]], folder: Path) -> dict[str, Any]:
    order, weights = folder / "order.json", folder / "weights.npz"
    order.write_text(json.dumps(steps))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ranks = [
        subprocess.Popen(
            [
                sys.executable,
                str(JOBS / "torch_small.py"),
                str(rank),
                "2",
                str(port),
                str(order),
                str(weights),
            ],
            env={**os.environ, "GLOO_SOCKET_IFNAME": "lo"},
        )
        for rank in range(2)
    ]
    try:
        assert [rank.wait(timeout=120) for rank in ranks] == [0, 0]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    return dict(np.load(weights))
