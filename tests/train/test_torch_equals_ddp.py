"""What a PyTorch loop does between `backward` and the step equals one process with the global batch, or is refused."""

from __future__ import annotations

import itertools
import os
import select
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from waiting import eventually

from scavenger.errors import ConfigurationError, NotSupportedError, TrainingCodeError
from scavenger.sdk.loop import STATISTICS
from scavenger.train.custom_loop.mean import weighted_mean

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'scavenger-ml[compare]'")

pytestmark = pytest.mark.slow

DEVICE = os.environ.get("TORCH_DEVICE", "cpu")
"""Where the workers train; `test_torch_devices.py` has another one, and a machine with a GPU has `cuda`."""
if DEVICE == "tiny":
    sys.path.insert(0, str(Path(__file__).with_name("jobs")))
    import torch_device  # noqa: F401 - registers it

SAMPLES, STEPS = (5, 3), 6
"""Samples of each worker's batch, so that an unweighted mean would be another."""
X = torch.from_numpy(np.random.default_rng(1).normal(size=(STEPS, sum(SAMPLES), 4)))
Y = torch.from_numpy(np.random.default_rng(2).normal(size=(STEPS, sum(SAMPLES), 2)))


class Meeting:
    """Where the workers of a step, which are threads, leave what they push, and get the mean of it."""

    numbers = itertools.count(1)

    def __init__(self, workers: int) -> None:
        self.number = next(self.numbers)
        self._folder = tempfile.TemporaryDirectory()
        self.file = str(Path(self._folder.name, "group"))
        self._barrier = threading.Barrier(workers, self._average, timeout=60)
        self._pushed: dict[int, tuple[str, int, dict[str, Any]]] = {}
        self._mean: dict[str, Any] = {}

    def _average(self) -> None:
        self._mean = weighted_mean(list(self._pushed.values()), step=1).arrays

    def meet(self, worker: int, samples: int, arrays: dict[str, Any]) -> dict[str, Any]:
        self._pushed[worker] = (f"worker-{worker}", samples, {k: v.copy() for k, v in arrays.items()})
        self._barrier.wait()
        return {name: array.copy() for name, array in self._mean.items()}

    def abort(self) -> None:
        self._barrier.abort()


class Member:
    """A worker's job among others, which takes what the mean of all is from a `Meeting`."""

    lr_scale = 1.0

    def __init__(self, meeting: Meeting, worker: int, samples: int) -> None:
        self._meeting, self._worker, self._samples = meeting, worker, samples

    def allocate(self, like: dict[str, Any]) -> dict[str, Any]:
        return {name: np.zeros(array.shape, array.dtype) for name, array in like.items()}

    def holds(self, groups: Any) -> bool:
        return False

    def push_pull(self, arrays: dict[str, Any], *, borrow: bool) -> dict[str, Any]:
        return self._meeting.meet(self._worker, self._samples, arrays)


class InGroup(Member):
    """A worker's job whose gradients are averaged by a process group, and only what else there is by the meeting."""

    _groups: Any = None

    def holds(self, groups: Any) -> bool:
        if self._groups is None:
            self._groups = groups
            groups.make(self._meeting.number, self._worker, len(SAMPLES), self._meeting.file, 60.0)
            assert eventually(lambda: groups.made == self._meeting.number)
            assert not groups.failure
        return True

    def push_pull(self, arrays: dict[str, Any], *, borrow: bool) -> dict[str, Any]:
        done = self._groups.reduce(self._samples / sum(SAMPLES))
        select.select([done], [], [])
        told = self._groups.reduced()
        assert not told.failure
        assert 0.0 < told.sqnorm < np.inf
        assert not told.bad
        rest = {name: array for name, array in arrays.items() if name.startswith(STATISTICS)}
        return self._meeting.meet(self._worker, self._samples, rest)


class Way:
    """A training as a user writes it, for one process with plain PyTorch, and for a worker."""

    options: ClassVar[dict[str, Any]] = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}
    scale = 1.0
    """The factor for the learning rate, `job.lr_scale`."""

    def __init__(self, device: str = DEVICE) -> None:
        torch.manual_seed(1)
        layers = [torch.nn.Linear(4, 6), torch.nn.Tanh(), torch.nn.Linear(6, 2)]
        self.device = device
        self.model = torch.nn.Sequential(*layers).double()
        self.before()
        self.place()
        self.optimizer = torch.optim.SGD(self.model.parameters(), **self.options)
        self.scheduler: Any = None
        self.scaler: Any = None
        self.after()

    def before(self) -> None:
        """What is done before the optimizer is made."""

    def place(self) -> None:
        """Put the module where it is trained."""
        self.model.to(self.device)

    def after(self) -> None:
        """What is done before `Elastic` is made."""

    def at(self, step: int) -> None:
        """What is done before a step."""

    def loss(self, step: int, rows: slice) -> Any:
        return self.errors(step, rows).mean()

    def errors(self, step: int, rows: slice) -> Any:
        return (self.model(X[step, rows].to(self.device)) - Y[step, rows].to(self.device)).square()

    def change(self) -> bool:
        """What is done with the gradients of the global batch; returns whether anything is."""
        return False

    def then(self, step: int) -> None:
        if self.scheduler is not None:
            self.scheduler.step()

    def alone(self, steps: range) -> None:
        """Train with plain PyTorch on the global batch."""
        for step in steps:
            self.at(step)
            self.optimizer.zero_grad()
            self.loss(step, slice(None)).backward()
            self.change()
            for group in self.optimizer.param_groups:
                group["lr"] *= self.scale
            if self.scaler is None:
                self.optimizer.step()
            else:
                self.scaler.step(self.optimizer)
                self.scaler.update()
            for group in self.optimizer.param_groups:
                group["lr"] /= self.scale
            self.then(step)

    def elastic(self) -> Any:
        from scavenger.sdk.torch import Elastic

        return Elastic(self.model, self.optimizer, scheduler=self.scheduler, scaler=self.scaler)

    def worker(self, elastic: Any, job: Any, rows: slice, steps: range) -> None:
        """Train as a worker on its rows of each batch."""
        job.lr_scale = self.scale
        changes = type(self).change is not Way.change
        for step in steps:
            self.at(step)
            elastic.zero_grad()
            self.loss(step, rows).backward()
            if changes:
                elastic.average(job)
                self.change()
            elastic.step(job)
            self.then(step)


class Clipped(Way):
    def change(self) -> bool:
        return bool(torch.nn.utils.clip_grad_norm_(self.model.parameters(), 0.05) > 0.05)


class Replaced(Way):
    """Gradients that are put there anew, and one that is left out."""

    def change(self) -> bool:
        for parameter in self.model.parameters():
            parameter.grad = parameter.grad.sign()
        self.model[0].bias.grad = None
        return True


class Unfrozen(Way):
    def before(self) -> None:
        self.model[0].requires_grad_(False)

    def at(self, step: int) -> None:
        if step == 2:
            self.model[0].requires_grad_(True)


class Frozen(Way):
    """A layer that is trained, then frozen, then trained again, while another is frozen."""

    def at(self, step: int) -> None:
        self.model[0].requires_grad_(step not in (1, 2))
        self.model[2].requires_grad_(step != 4)


class Unused(Way):
    """A layer that no loss depends on has no decay."""

    def before(self) -> None:
        self.model.add_module("unused", torch.nn.Identity())
        self.model.unused.weight = torch.nn.Parameter(torch.ones(3, dtype=torch.float64))


class Scheduled(Way):
    def after(self) -> None:
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 2, gamma=0.5)


class OneCycle(Way):
    """It changes the momentum, too."""

    def after(self) -> None:
        self.scheduler = torch.optim.lr_scheduler.OneCycleLR(self.optimizer, 0.3, STEPS + 1)


class Milestones(Way):
    def after(self) -> None:
        self.scheduler = torch.optim.lr_scheduler.SequentialLR(
            self.optimizer,
            [
                torch.optim.lr_scheduler.LinearLR(self.optimizer, 0.1, total_iters=2),
                torch.optim.lr_scheduler.MultiStepLR(self.optimizer, [1, 2]),
            ],
            [2],
        )


class Decaying(Way):
    """Weight decay that is changed by hand, once."""

    def at(self, step: int) -> None:
        if step == 2:
            self.optimizer.param_groups[0].update(weight_decay=0.2, momentum=0.5)


class Scaled(Way):
    """As at a learning rate that the job scales."""

    scale = 2.0


class Scaler(Way):
    """A scaler whose factor is too large for a sample of one worker, so that all leave the step out."""

    def after(self) -> None:
        self.scaler = torch.amp.GradScaler(self.device, init_scale=2.0**100, growth_interval=2)

    def loss(self, step: int, rows: slice) -> Any:
        factors = torch.ones(X.shape[1], 1, dtype=torch.float64)
        factors[0] = 1e300 if step == 1 else 1.0
        return self.scaler.scale((factors[rows].to(self.device) * self.errors(step, rows)).mean())


class ScalerClipped(Scaler):
    def change(self) -> bool:
        self.scaler.unscale_(self.optimizer)
        return bool(torch.nn.utils.clip_grad_norm_(self.model.parameters(), 0.05) > 0.05)


WAYS: list[type[Way]] = [
    Way, Clipped, Replaced, Unfrozen, Frozen, Unused, Scheduled, OneCycle, Milestones, Decaying, Scaled, Scaler,
    ScalerClipped,
]  # fmt: skip


def _rows() -> Iterator[slice]:
    at = 0
    for samples in SAMPLES:
        yield slice(at, at + samples)
        at += samples


def together(*work: Callable[[Meeting], None]) -> list[Exception]:
    """Run the workers in threads; returns what they raised, except that others had."""
    meeting, raised = Meeting(len(work)), list[Exception]()

    def run(one: Callable[[Meeting], None]) -> None:
        try:
            one(meeting)
        except threading.BrokenBarrierError:
            pass
        except Exception as error:  # noqa: BLE001
            raised.append(error)
            meeting.abort()

    threads = [threading.Thread(target=run, args=(one,)) for one in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return raised


def _train(
    ways: Sequence[Way], replicas: list[Any], steps: range, member: type[Member] = Member
) -> list[Exception]:
    def as_worker(number: int, rows: slice) -> Callable[[Meeting], None]:
        return lambda meeting: ways[number].worker(
            replicas[number], member(meeting, number, SAMPLES[number]), rows, steps
        )

    return together(*(as_worker(number, rows) for number, rows in enumerate(_rows())))


@pytest.mark.parametrize("make", WAYS)
@pytest.mark.parametrize(
    ("joins", "member"),
    [
        pytest.param(False, Member, marks=pytest.mark.long),
        (True, Member),
        *([(True, InGroup)] if DEVICE == "cpu" else []),
    ],
)
def test_workers_reach_the_weights_of_one_process_with_the_global_batch(
    make: type[Way], joins: bool, member: type[Member]
) -> None:
    plain = make("cpu")
    start = {name: tensor.clone() for name, tensor in plain.model.state_dict().items()}
    plain.alone(range(STEPS))
    ways = [make() for _ in SAMPLES]
    replicas = [way.elastic() for way in ways]

    half = STEPS // 2
    assert not _train(ways, replicas, range(half), member)
    if joins:  # a new worker takes the place of the second
        ways[1] = make()
        with torch.no_grad():
            for parameter in ways[1].model.parameters():
                parameter.fill_(7.0)
        replicas[1] = ways[1].elastic()
        replicas[1].load({name: array.copy() for name, array in replicas[0].state().items()})
    assert not _train(ways, replicas, range(half, STEPS), member)

    assert any(not torch.equal(tensor, start[name]) for name, tensor in plain.model.state_dict().items())
    for way in ways:
        for name, tensor in plain.model.state_dict().items():
            found = way.model.state_dict()[name]
            assert found.device.type == torch.device(DEVICE).type
            np.testing.assert_allclose(found.cpu(), tensor, rtol=0, atol=1e-12, err_msg=name)
    states = [replica.state() for replica in replicas]
    assert states[0].keys() == states[1].keys()
    for name, array in states[0].items():
        assert array.tobytes() == states[1][name].tobytes(), name


def _clip(model: Any) -> None:
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.05)


def _replace(model: Any) -> None:
    model[2].weight.grad = model[2].weight.grad * 0.5


def _multiply_data(model: Any) -> None:
    for parameter in model.parameters():
        parameter.grad.data.mul_(0.5)


@pytest.mark.parametrize("change", [_clip, _replace, *([_multiply_data] if DEVICE == "cpu" else [])])
def test_gradients_that_are_changed_before_they_are_averaged_are_refused(
    change: Callable[[Any], None],
) -> None:
    way = Way()
    elastic, job = way.elastic(), Member(Meeting(1), 0, 8)
    for step in (0, 1):
        elastic.zero_grad()
        way.loss(step, slice(None)).backward()
        if step == 0:
            elastic.step(job)
    change(way.model)

    with pytest.raises(TrainingCodeError, match=r"call elastic\.average\(job\) first, then clip"):
        elastic.step(job)


def test_a_change_between_two_backward_passes_is_refused() -> None:
    way = Way()
    elastic = way.elastic()
    elastic.zero_grad()
    way.loss(0, slice(None)).backward()
    _clip(way.model)
    way.loss(1, slice(None)).backward()

    with pytest.raises(TrainingCodeError, match=r"elastic\.average\(job\)"):
        elastic.step(Member(Meeting(1), 0, 8))


class AtOne(Way):
    """Something is done at the second worker alone."""

    worker_number = 0

    def at(self, step: int) -> None:
        if self.worker_number == 1 and step == 1:
            self.differ()

    def differ(self) -> None:
        self.optimizer.param_groups[0]["lr"] = 0.05


class DecayAtOne(AtOne):
    def differ(self) -> None:
        self.optimizer.param_groups[0]["weight_decay"] = 0.0


class FrozenAtOne(AtOne):
    """Both layers have as many parameters, so that the arrays have the same sizes."""

    def before(self) -> None:
        self.model = torch.nn.Sequential(
            *(torch.nn.Linear(4, 4) for _ in range(2)), torch.nn.Linear(4, 2)
        ).double()

    def at(self, step: int) -> None:
        self.model[self.worker_number].requires_grad_(step != 1)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (AtOne, r"the workers differ in param_groups\[0\]\['lr'\] \(0\.\d+ here\): .*scheduler=scheduler"),
        (DecayAtOne, r"the workers differ in param_groups\[0\]\['weight_decay'\]"),
        (FrozenAtOne, r"the workers differ in the parameters that are trained: change it in the same step"),
    ],
)
def test_workers_that_differ_are_refused_before_a_step_is_applied(make: type[AtOne], words: str) -> None:
    ways = [make() for _ in SAMPLES]
    ways[1].worker_number = 1
    replicas = [way.elastic() for way in ways]
    assert not _train(ways, replicas, range(1))
    before = [tensor.clone() for tensor in ways[0].model.state_dict().values()]

    raised = _train(ways, replicas, range(1, 2))

    assert raised
    for error in raised:
        with pytest.raises(TrainingCodeError, match=words):
            raise error
    assert all(torch.equal(a, b) for a, b in zip(before, ways[0].model.state_dict().values(), strict=True))


class Kept(Scheduled):
    """The scheduler is not given to `Elastic`."""

    def elastic(self) -> Any:
        from scavenger.sdk.torch import Elastic

        return Elastic(self.model, self.optimizer)


def test_a_scheduler_that_a_worker_that_joins_has_not_got_is_refused() -> None:
    ways = [Kept() for _ in SAMPLES]
    replicas = [way.elastic() for way in ways]
    assert not _train(ways, replicas, range(1))
    ways[1] = Kept()
    replicas[1] = ways[1].elastic()
    replicas[1].load(replicas[0].state())

    raised = _train(ways, replicas, range(1, STEPS))

    assert raised
    assert "scheduler=scheduler" in str(raised[0])


def test_groups_that_a_worker_that_joins_lacks_are_refused() -> None:
    way, other = Way(), Way()
    way.model.append(torch.nn.Linear(2, 2).double())
    other.model.append(torch.nn.Linear(2, 2).double())
    way.optimizer.add_param_group({"params": list(way.model[3].parameters())})

    with pytest.raises(
        TrainingCodeError, match=r"has 2 param_groups, and that of a worker that joins 1: make all"
    ):
        other.elastic().load(way.elastic().state())


def _lazy() -> Any:
    return torch.nn.LazyLinear(2)


def _divided() -> Any:
    """As `fully_shard` leaves a module in a process alone."""
    if torch.distributed.is_initialized():  # as trainers of other tests leave one
        torch.distributed.destroy_process_group()
    with tempfile.TemporaryDirectory() as folder:
        torch.distributed.init_process_group(
            "gloo", store=torch.distributed.FileStore(f"{folder}/group", 1), rank=0, world_size=1
        )
        try:
            mesh = torch.distributed.init_device_mesh("cpu", (1,))
            return torch.distributed.fsdp.fully_shard(torch.nn.Linear(2, 2), mesh=mesh)
        finally:
            torch.distributed.destroy_process_group()


def _optimizer(name: str, **options: Any) -> Callable[[Any], Any]:
    return lambda model: getattr(torch.optim, name)(model.parameters(), **options)


@pytest.mark.parametrize(
    ("model", "optimizer", "words"),
    [
        (
            lambda: torch.nn.Linear(2, 2),
            _optimizer("LBFGS"),
            "LBFGS computes the loss several times in a step",
        ),
        (lambda: torch.nn.Linear(2, 2), _optimizer("SparseAdam"), "means are dense: use Adam"),
        (lambda: torch.nn.Linear(2, 2).bfloat16(), _optimizer("SGD"), "keep them in float32, and compute in"),
        (lambda: torch.nn.Linear(2, 2, device="meta"), _optimizer("SGD"), "weight is on meta"),
        (lambda: torch.nn.Linear(2, 2, dtype=torch.complex64), _optimizer("SGD"), "no complex numbers"),
        (_lazy, _optimizer("SGD"), "weight has no shape yet: call the module with a batch before"),
        (lambda: torch.nn.SyncBatchNorm(2), _optimizer("SGD"), "use BatchNorm"),
        (
            _divided,
            _optimizer("SGD"),
            r"weight is divided over processes: each worker of a loop has the whole",
        ),
    ],
)
def test_what_cannot_be_trained_is_refused_when_it_is_given(
    model: Callable[[], Any], optimizer: Callable[[Any], Any], words: str
) -> None:
    from scavenger.sdk.torch import Elastic

    made = model()
    with pytest.raises(NotSupportedError, match=words) as raised:
        Elastic(made, optimizer(made))
    assert "\n" not in str(raised.value)


def test_parameters_of_the_optimizer_that_the_module_lacks_are_refused() -> None:
    from scavenger.sdk.torch import Elastic

    one, other = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    with pytest.raises(ConfigurationError, match="put all of them into one module"):
        Elastic(one, torch.optim.SGD([*one.parameters(), *other.parameters()]))


def test_batch_norm_with_one_sample_says_what_to_do() -> None:
    from scavenger.sdk.torch import Elastic

    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    Elastic(model, torch.optim.SGD(model.parameters()))
    model(torch.ones(2, 3))
    with pytest.raises(TrainingCodeError, match="choose sizes of shards that leave no rest of one"):
        model(torch.ones(1, 3))
    model.eval()
    model(torch.ones(1, 3))


def test_a_scaler_that_elastic_does_not_know_is_refused_since_its_factor_would_be_applied() -> None:
    way = Scaler()
    scaler, way.scaler = way.scaler, None
    elastic = way.elastic()
    elastic.zero_grad()
    scaler.scale(Way.loss(way, 0, slice(None))).backward()

    with pytest.raises(TrainingCodeError, match=r"give it to Elastic\(model, optimizer, scaler=scaler\)"):
        elastic.step(Member(Meeting(1), 0, 8))


def test_buffers_and_frozen_parameters_in_bfloat16_are_part_of_the_state() -> None:
    from scavenger.sdk.torch import Elastic

    def build(value: float) -> Any:
        model = torch.nn.Sequential(torch.nn.Linear(3, 4).bfloat16(), torch.nn.Linear(4, 2))
        model[0].requires_grad_(False).weight.data.fill_(value)
        model.register_buffer("mask", torch.full((3,), value, dtype=torch.bfloat16))
        return model, Elastic(model, torch.optim.SGD(model.parameters(), lr=0.1))

    (model, elastic), (other, joining) = build(0.3), build(0.0)
    elastic.zero_grad()
    model[1](model[0](torch.ones(2, 3).bfloat16()).float()).sum().backward()
    elastic.step(Member(Meeting(1), 0, 2))
    joining.load(elastic.state())

    for name, tensor in model.state_dict().items():
        assert torch.equal(other.state_dict()[name], tensor)
        assert other.state_dict()[name].dtype == tensor.dtype


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("scale", [1.0, 1e25, 1e-25, 0.0])
def test_norms_are_right_out_of_the_range_of_their_squares_and_tell_what_is_not_finite(
    dtype: str, scale: float
) -> None:
    from scavenger.sdk.torch_groups import _sqnorm

    one = torch.randn(9001, dtype=getattr(torch, dtype)) * scale
    arrays = {"a": one, "b": torch.ones(3, dtype=one.dtype) * scale, "c": torch.zeros(0)}

    found, bad = _sqnorm(arrays)

    assert found == pytest.approx(float(one.double().square().sum()) + 3.0 * scale**2, rel=1e-6)
    assert not bad
    one[5] = torch.nan
    assert _sqnorm(arrays)[1] == "a"
