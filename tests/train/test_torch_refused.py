"""What a script that calls `scavenger.torch` cannot do in a job is refused in one line, with place and fix."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scavenger.domain.script import Script
from scavenger.errors import NotSupportedError, ScavengerError, TrainingCodeError
from scavenger.sdk import loop
from scavenger.sdk import script as sdk

pytestmark = pytest.mark.slow

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'scavenger-ml[compare]'")

BEGIN = """
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader, TensorDataset, IterableDataset
import scavenger.torch as elastic
model = nn.Linear(3, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = TensorDataset(torch.randn(20, 3), torch.zeros(20, dtype=torch.long))
loader = DataLoader(data, 4, shuffle=True)
"""
PREPARED = BEGIN + "model, optimizer, loader = elastic.prepare(model, optimizer, loader)\n"
LOOP = """
for epoch in range(3):
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
"""


class Alone:
    """A job of this worker alone, of so many epochs."""

    worker = "w0"

    def __init__(self, epochs: int = 3, *, begin: int = 0, share: int = 4) -> None:
        self._epochs, self._begin, self._share = epochs, begin, share
        self._step = self._at = 0
        self.metrics: list[dict[str, float]] = []
        self.losses: list[float | None] = []
        self.left = False

    def enter(self, sizes: Any, state: Any, load: Any, evaluate: Any, *, apart: bool) -> loop.Progress:
        assert apart
        [self._samples] = sizes
        self._evaluate = evaluate
        state()
        return loop.Progress(0, self._begin, 1, self._share)

    def seek(self, epoch: int) -> loop.Granted:
        if self._at == self._samples or epoch > self._begin:
            self._begin, self._at = epoch, 0
            self.metrics.append(self._evaluate())
        if epoch >= self._epochs or self.left:
            raise loop.Left
        stop = min(self._at + self._share, self._samples)
        return loop.Granted(0, (0, self._step), self._at, stop, self._share)

    def leave(self) -> None:
        self.left = True

    def allocate(self, like: Mapping[str, Any]) -> dict[str, Any]:
        return {name: np.zeros(array.shape, array.dtype) for name, array in like.items()}

    def holds(self, groups: Any) -> bool:
        return False

    def push(self, part: loop.Granted, tensors: dict[str, Any]) -> loop.Step:
        self._step, self._at = self._step + 1, part.stop
        mean = {name: array.copy() for name, array in tensors.items()}
        over = part.stop == self._samples
        return loop.Step(self._step, over, 1, mean, self._share, samples=part.stop - part.start)

    def boundary(self, epoch: int, samples: int, loss: float | None, *, over: bool) -> None:
        self.losses.append(loss)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Runs the text of a script as a worker does."""
    from scavenger.train.custom_loop.script import run_script

    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    before = dict(os.environ)

    def running(text: str, link: Alone | None = None, processes: int = 1) -> Alone:
        link = link or Alone()
        (tmp_path / "train.py").write_text(text)
        loop.connect(link)
        try:
            of = sdk.ScriptRun(str(tmp_path), str(tmp_path / "train.py"), processes=processes)
            run_script(Script("train.py"), of)
        except loop.Left:
            pass
        finally:
            loop.connect(None)
            sdk.begin(None)
        return link

    yield running
    os.environ.clear()
    os.environ.update(before)


def _line(text: str, of: str) -> str:
    return f"train.py:{next(n for n, line in enumerate(text.splitlines(), 1) if of in line)}: "


PREPARE = [
    (
        "elastic.prepare(lambda x: x, optimizer, loader)",
        "argument 1 of elastic.prepare is a function: it takes a",
    ),
    ("elastic.prepare(model, optimizer, [1, 2])", "is a list: a loader that is none hides its data set"),
    ("elastic.prepare(model, optimizer)", "also needs the DataLoader of training"),
    (
        "elastic.prepare(model, optimizer, loader, loader)",
        "takes one loader, and gets two; that of validation stays",
    ),
    (
        "elastic.prepare(model, torch.optim.LBFGS(model.parameters()), loader)",
        "LBFGS computes the loss several",
    ),
    (
        "elastic.prepare(model, torch.optim.SGD(nn.Linear(2, 2).parameters(), 1), loader)",
        "the optimizer has param",
    ),
    (
        "elastic.prepare(model, optimizer, DataLoader(type('Endless', (IterableDataset,), {'__iter__': None})()))",
        "the data set of the loader, Endless, can only be read from its begin: give a DataLoader of a map-style",
    ),
    (
        "elastic.prepare(model, optimizer, DataLoader(data, batch_sampler=[[1, 2]]))",
        "the loader makes its batches by list, and in a job the batch changes: give batch_size, shuffle or a",
    ),
    ("elastic.prepare(model, optimizer, DataLoader(data, batch_size=None))", "the loader makes no batches"),
    (
        "elastic.prepare(model, optimizer, DataLoader(data, sampler=iter([])))",
        "has no length: give it __len__",
    ),
    ("elastic.prepare(model, optimizer, loader, at_once=0)", "at_once=0): it is a number of samples"),
    (
        "elastic.prepare(model, optimizer, loader, torch.amp.GradScaler('cpu'), at_once=9)",
        "with a GradScaler: leave one of them out",
    ),
    (
        "from accelerate.scheduler import *; elastic.prepare(model, optimizer, AcceleratedScheduler(None, optimizer))",
        "argument 3 of elastic.prepare is Accelerate's AcceleratedScheduler: call elastic.prepare before accelerator.",
    ),
    ("elastic.log(val_accuracy=1.0)", "elastic.log comes after elastic.prepare"),
]


@pytest.mark.parametrize(("call", "words"), PREPARE, ids=range(len(PREPARE)))
def test_what_cannot_be_prepared_is_refused_with_its_line(run: Any, call: str, words: str) -> None:
    text = BEGIN + call + "\n"
    with pytest.raises(ScavengerError) as refused:
        run(text)

    message = str(refused.value)
    assert message.startswith(_line(text, call)), message
    assert words in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (
            "elastic.prepare(model, optimizer, loader)",
            "weight is whole at each of the 2 processes of a worker: have fully_shard divide the model, or leave",
        ),
        (
            "elastic.prepare(model, optimizer, loader, torch.amp.GradScaler('cpu'))",
            "a GradScaler in a worker of 2 processes: leave elastic.processes out of the job file",
        ),
        (
            "elastic.prepare(model, optimizer, DataLoader(data, sampler=DistributedSampler(data, 3, 0)))",
            "the sampler divides the samples among 3 processes: leave num_replicas and rank out",
        ),
    ],
)
def test_what_several_processes_of_a_worker_cannot_train_is_refused(run: Any, call: str, words: str) -> None:
    text = BEGIN + "from torch.utils.data.distributed import DistributedSampler\n" + call + "\n"
    with pytest.raises(NotSupportedError) as refused:
        run(text, processes=2)

    assert str(refused.value).startswith(_line(text, call) + words)


def _loop(inner: str, *, before: str = "", after: str = "", epochs: str = "for epoch in range(3):") -> str:
    inner = inner.replace("\n", "\n        ")
    return f"{PREPARED}{before}\n{epochs}\n    for x, y in loader:\n        {inner}\n    {after}\n"


STEP = "optimizer.zero_grad()\nnn.functional.cross_entropy(model(x), y).backward()\noptimizer.step()"
CYCLE = """
def cycle(loader):
    while True:
        for batch in loader:
            yield batch
batches = cycle(loader)
"""
SCHEDULE = "scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)"
PLATEAU = "scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)"
TRAIN = [
    (_loop("pass"), "for x, y in loader", "no loss.backward() in a batch"),
    (
        _loop(STEP.replace("optimizer.step()", "pass")),
        "for x, y in loader",
        "write elastic.prepare(..., at_once=SAMPLES)",
    ),
    (_loop(STEP.replace("zero_grad()", "param_groups")), ".backward()", "call optimizer.zero_grad()"),
    (_loop(STEP + "\nmodel(x).sum().backward()"), "model(x).sum()", "add the losses, and call backward once"),
    (_loop("optimizer.step()"), "optimizer.step()", "optimizer.step() without a backward()"),
    (
        _loop("raise torch.OutOfMemoryError('CUDA out of memory. Tried to allocate 2.00 GiB.')"),
        "raise",
        "the device's memory does not hold 4 samples at once: write elastic.prepare(..., at_once=2)",
    ),
    (
        _loop(STEP, before="model(torch.ones(1, 3)).sum().backward()"),
        "torch.ones(1, 3)",
        "outside of the loop",
    ),
    (_loop(STEP + "\nbreak"), "for x, y in loader", "left the loop over the loader before its end"),
    (_loop(STEP, before=SCHEDULE), "prepare(model", "give it to elastic.prepare, too"),
    (
        _loop(STEP, before=PLATEAU),
        "prepare(model",
        "a scheduler of the learning rate, which a worker that joins",
    ),
    (
        _loop(STEP, epochs="while True:"),
        "while True:",
        "is a `while`, which a worker that joins could not",
    ),
    (
        PREPARED + "batches = iter(loader)\nfor step in range(9):\n    x, y = next(batches)",
        "= next(",
        "taken by next",
    ),
    (
        PREPARED + CYCLE + "for step in range(9):\n    x, y = next(batches)",
        "= next(",
        "look at a batch before el",
    ),
    (PREPARED + "x, y = next(iter(loader))\n" + LOOP, "next(iter(", "look at a batch before elastic.prepare"),
    (
        _loop(STEP, epochs="for epoch in range(2):"),
        "for epoch in range(2)",
        "has ended after epoch 2, before the goal",
    ),
    (
        _loop(STEP + "\naverage.update_parameters(model)", before="average = AveragedModel(model)"),
        "average.update",
        "give it to elastic.prepare, too",
    ),
    (
        _loop(STEP + "\nother.step()", before="other = torch.optim.SGD(nn.Linear(3, 3).parameters(), 0.1)"),
        "other.step()",
        "another SGD than that of elastic.prepare steps in batch after batch",
    ),
    (_loop(STEP, after="elastic.log(a='good')"), "elastic.log", "elastic.log(a=...) takes a number, not str"),
    (
        PREPARED + "elastic.prepare(model, optimizer, loader)",
        "\nelastic.prepare",
        "called again, after train.py:11",
    ),
    (PREPARED, "", "the script never loops over the loader"),
    (BEGIN, "", "the script has ended without a call of elastic.prepare"),
    ("import sys, scavenger.torch\nsys.exit('usage: --data')", "", "the script ended itself (usage: --data)"),
]


@pytest.mark.parametrize(("text", "at", "words"), TRAIN, ids=range(len(TRAIN)))
def test_what_would_not_be_the_same_at_all_workers_is_refused_with_its_line(
    run: Any, text: str, at: str, words: str
) -> None:
    with pytest.raises(TrainingCodeError) as refused:
        run(text)

    message = str(refused.value)
    place = text.rstrip().count("\n") + 1 if at.startswith("\n") else 0
    assert message.startswith(f"train.py:{place}: " if place else _line(text, at) if at else "train.py: "), (
        message
    )
    assert words in message
    assert "\n" not in message


def test_a_script_that_leaves_its_loop_over_epochs_ends_the_job_there(run: Any) -> None:
    inner = "\nprobe = torch.ones(2, requires_grad=True)\nonce = torch.optim.SGD([probe], 0.1)\nonce.step()"
    link = run(
        _loop(STEP + inner, after="elastic.log(at=epoch)\n    if epoch == 1: break") + "elastic.log(more=1)\n"
    )

    assert link.left
    assert link.metrics == [{"at": 0.0}, {"at": 1.0, "more": 1.0}]


def test_a_process_that_the_script_starts_cannot_prepare(run: Any, tmp_path: Path) -> None:
    text = BEGIN + (
        "import os\npid = os.fork()\n"
        "if not pid:\n"
        "    try:\n        elastic.prepare(model, optimizer, loader)\n"
        "    except Exception as error:\n        open(__file__ + '.told', 'w').write(str(error))\n"
        "    os._exit(0)\n"
        "os.waitpid(pid, 0)\nmodel, optimizer, loader = elastic.prepare(model, optimizer, loader)\n" + LOOP
    )
    run(text)

    assert (
        "call it in the script itself, without torch.multiprocessing"
        in (tmp_path / "train.py.told").read_text()
    )


# ---- what is not refused -----------------------------------------------------------------------------------


def test_a_worker_that_joins_later_skips_the_epochs_before_and_all_that_is_done_in_them(run: Any) -> None:
    text = PREPARED + (
        "seen = []\n"
        "def one_epoch(epoch):\n"
        "    for x, y in loader:\n"
        "        optimizer.zero_grad(); nn.functional.cross_entropy(model(x), y).backward(); optimizer.step()\n"
        "        elastic.log(loss=epoch)\n"
        "for epoch in range(5):\n"
        "    for phase in ('train', 'val'):\n"
        "        if phase == 'train':\n"
        "            one_epoch(epoch)\n"
        "            seen.append(epoch)\n"
        "    elastic.log(epoch=epoch, seen=len(seen))\n"
    )
    link = run(text, Alone(5, begin=3))

    assert link.losses == [3.0] * 5 + [4.0] * 5
    assert link.metrics == [{"epoch": 3.0, "seen": 1.0}, {"epoch": 4.0, "seen": 2.0}]


def test_a_loop_over_epochs_may_be_in_a_module_beside_the_script_or_in_a_decorated_function(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = STEP.replace("nn.functional.cross_entropy", "loss_of").replace("\n", "; ")
    fit = (
        "import functools, scavenger.torch as elastic\n"
        "from torch.nn.functional import cross_entropy as loss_of\n"
        "@functools.lru_cache\n"
        "def fit(model, optimizer, loader, epochs):\n"
        "    for epoch in range(epochs):\n"
        f"        for x, y in loader: {inner}\n"
        "        elastic.log(epoch=epoch)\n"
    )
    (tmp_path / "epochs_of_its_own.py").write_text(fit)
    monkeypatch.delitem(sys.modules, "epochs_of_its_own", raising=False)
    call = "fit(model, optimizer, loader, 5)\n"

    for text in (f"from epochs_of_its_own import fit\n{PREPARED}{call}", f"{fit}{PREPARED}{call}"):
        assert run(text, Alone(5, begin=3)).metrics == [{"epoch": 3.0}, {"epoch": 4.0}]
    assert not (tmp_path / "__pycache__").exists()


def test_metrics_are_those_that_modules_name_too_and_an_epoch_that_is_not_evaluated_has_none(
    run: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from scavenger.train.custom_loop.script import look_at

    (tmp_path / "evaluates_beside.py").write_text(
        "import scavenger.torch\ndef evaluate(epoch):\n    scavenger.torch.log(val_right=epoch)\n"
    )
    text = f"from evaluates_beside import evaluate\n{PREPARED}{LOOP}    if epoch % 2 == 0: evaluate(epoch)\n"

    assert run(text).metrics == [{"val_right": 0.0}, {}, {"val_right": 2.0}]
    (tmp_path / "train.py").write_text(text + "    elastic.log(at=epoch, **{})\n")
    monkeypatch.delitem(sys.modules, "evaluates_beside")
    found = look_at(Script("train.py"), str(tmp_path), 0)
    assert set(found.metrics) == {"at", "val_right"}
    assert found.notes == (
        "elastic.log(**...) names no metric for a target: write the names, as elastic.log(val_accuracy=...)",
    )
    sdk.begin(None)


def test_a_loop_around_prepare_is_none_over_epochs(run: Any, tmp_path: Path) -> None:
    from scavenger.train.custom_loop.script import look_at

    fold = f"{PREPARED.removeprefix(BEGIN)}{LOOP}    elastic.log(at=epoch)\n"
    text = f"{BEGIN}for fold in range(7):\n{textwrap.indent(fold, '    ')}"

    assert run(text).metrics == [{"at": 0.0}, {"at": 1.0}, {"at": 2.0}]
    found = look_at(Script("train.py"), str(tmp_path), 0)
    assert found.epochs == 3
    assert found.notes == (
        "elastic.prepare is called in the loop of line 11: the job trains what its first round does",
    )
    sdk.begin(None)


def test_a_loop_without_gradients_goes_over_the_whole_loader(run: Any) -> None:
    text = PREPARED + (
        "@torch.no_grad()\n"
        "def seen(rows=0):\n"
        "    for x, y in loader: rows += len(x)\n"
        "    return rows\n"
        f"before = seen(), len(loader)\n{LOOP}    elastic.log(seen=seen(), before=before[0], steps=before[1])\n"
    )
    assert run(text, Alone(share=10)).metrics == [{"seen": 20.0, "before": 20.0, "steps": 5.0}] * 3


def test_a_worker_that_joins_and_resumes_by_itself_is_refused(run: Any) -> None:
    with pytest.raises(TrainingCodeError, match=r"the job is in epoch 3: .*leave out what the script itself"):
        run(PREPARED + LOOP.replace("range(3)", "range(2, 3)"), Alone(3, begin=2))


class Joined(Alone):
    """A job that has trained on some samples of its first epoch when this worker joins."""

    def enter(self, sizes: Any, state: Any, load: Any, evaluate: Any, *, apart: bool) -> loop.Progress:
        progress = super().enter(sizes, state, load, evaluate, apart=apart)
        self._at = 8
        load({**state(), "schedule": np.array([0, self._at])})
        return progress._replace(stride=10)


def test_batches_have_the_numbers_of_the_job_also_for_a_worker_that_joins_in_mid_epoch(run: Any) -> None:
    text = PREPARED + (
        "assert len(loader) == 2\n"
        "for epoch, name in enumerate(['a', 'b']):\n"
        "    for number, (x, y) in enumerate(loader, 1):\n"
        "        assert [n for n in range(4)] == [n for n, _ in enumerate(y)]\n"
        "        for n, _ in enumerate(y): last = n\n"
        "        optimizer.zero_grad(); nn.functional.cross_entropy(model(x), y).backward(); optimizer.step()\n"
        "        elastic.log(loss=100 * epoch + 10 * last + number)\n"
    )
    assert run(text, Joined(2)).losses == [33.0, 34.0, 35.0, *(130.0 + n for n in range(1, 6))]


def test_a_schedule_that_is_stepped_to_a_share_of_an_epoch_is_as_far_as_the_job(run: Any) -> None:
    text = BEGIN.replace("loader = DataLoader(data, 4", "loader = DataLoader(data, 1") + (
        "schedule = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 2)\n"
        "model, optimizer, loader, schedule = elastic.prepare(model, optimizer, loader, schedule)\n"
        "first = len(loader)\n"
        "for epoch in range(3):\n"
        "    for i, (x, y) in enumerate(loader):\n"
        "        optimizer.zero_grad(); nn.functional.cross_entropy(model(x), y).backward(); optimizer.step()\n"
        "        schedule.step(epoch + i / ITERATIONS)\n"
        "    elastic.log(lr=schedule.get_last_lr()[0])\n"
    )
    rates = [metrics["lr"] for metrics in run(text.replace("ITERATIONS", "len(loader)")).metrics]
    assert rates == pytest.approx([0.05 * (1 + np.cos(np.pi * at / 2)) for at in (0.8, 1.8, 0.8)])
    with pytest.raises(
        TrainingCodeError, match=r"step\(0.05\), and 0.40 of the epoch are over: the job has chosen"
    ):
        run(text.replace("ITERATIONS", "first"))


def test_a_wrapped_model_becomes_its_module_and_the_loader_keeps_its_attributes(run: Any) -> None:
    text = BEGIN + (
        "import torch.distributed as dist\n"
        "from torch.nn.parallel import DistributedDataParallel\n"
        "from torch.utils.data.distributed import DistributedSampler\n"
        "dist.init_process_group('gloo')\n"
        "loader = DataLoader(data, 4, sampler=DistributedSampler(data))\n"
        "inner = model\n"
        "model, optimizer, loader = elastic.prepare(DistributedDataParallel(model), optimizer, loader)\n"
        "assert model is inner and model.module is inner and list(model.state_dict()) == ['weight', 'bias']\n"
        "assert len(loader) == 5 and len(loader.dataset) == 20 and loader.batch_size == 4\n"
        "dist.destroy_process_group()\n" + LOOP
    )
    assert len(run(text).losses) == 15


def test_a_model_that_is_wrapped_after_it_is_prepared_has_the_mean_of_all_in_its_gradients(run: Any) -> None:
    class Doubled(Alone):
        """A job whose mean is twice what this worker pushes."""

        def push(self, part: loop.Granted, tensors: dict[str, Any]) -> loop.Step:
            return super().push(part, {n: a * (2 if n == "torch.float32" else 1) for n, a in tensors.items()})

    text = PREPARED + (
        "import torch.distributed as dist\n"
        "from torch.nn.parallel import DistributedDataParallel\n"
        "dist.init_process_group('gloo')\n"
        "wrapped = DistributedDataParallel(model, gradient_as_bucket_view=VIEW)\n"
        "for epoch in range(3):\n"
        "    for x, y in loader:\n"
        "        loss = nn.functional.cross_entropy(wrapped(x), y)\n"
        "        expected = torch.autograd.grad(nn.functional.cross_entropy(model(x), y), model.weight)[0]\n"
        "        optimizer.zero_grad()\n"
        "        loss.backward()\n"
        "        torch.testing.assert_close(model.weight.grad, 2 * expected)\n"
        "        optimizer.step()\n"
        "dist.destroy_process_group()\n"
    )
    for view in ("False", "True"):
        with contextlib.suppress(loop.Left):
            assert len(run(text.replace("VIEW", view), Doubled()).losses) == 15
        torch.distributed.destroy_process_group()


def test_every_sampler_gives_each_epoch_the_same_order_at_every_worker_and_leaves_generators_alone() -> None:
    from torch.utils.data import DataLoader, RandomSampler, SubsetRandomSampler, TensorDataset
    from torch.utils.data import WeightedRandomSampler as Weighted

    from scavenger.sdk.torch_loader import BatchLoader

    class Own(torch.utils.data.Sampler):  # type: ignore[misc, name-defined]
        def __iter__(self) -> Iterator[int]:
            return iter(np.random.permutation(12).tolist())

        def __len__(self) -> int:
            return 12

    data = TensorDataset(torch.arange(12))
    own = torch.Generator().manual_seed(3)
    for make in (
        lambda: DataLoader(data, 4, shuffle=True),
        lambda: DataLoader(data, 4, sampler=RandomSampler(data, generator=own)),
        lambda: DataLoader(data, 4, sampler=SubsetRandomSampler(range(6))),
        lambda: DataLoader(data, 4, sampler=Weighted([1.0] * 12, 30)),
        lambda: DataLoader(data, 4, sampler=Own()),
    ):
        before = torch.get_rng_state(), np.random.get_state()[1].copy(), own.get_state()
        orders = [[list(BatchLoader(make(), 5, "").order(epoch)) for epoch in (0, 1, 0)] for _ in range(2)]
        after = torch.get_rng_state(), np.random.get_state()[1], own.get_state()
        assert orders[0] == orders[1]
        assert orders[0][0] == orders[0][2] != orders[0][1]
        assert all(bool((a == b).all()) for a, b in zip(before, after, strict=True))
    assert list(BatchLoader(DataLoader(data, 4), 5, "").order(3)) == list(range(12))


def test_without_a_job_the_calls_do_nothing(tmp_path: Path) -> None:
    import scavenger.torch as elastic

    model = torch.nn.Linear(1, 1)
    assert elastic.prepare(model) is model
    assert elastic.prepare(model, 1, "x") == (model, 1, "x")
    elastic.log(loss=1.0)
    light = "import sys, scavenger.torch; assert not {'torch', 'numpy', 'tensorflow'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", light], check=True, timeout=60)


# ---- trainers of other libraries ---------------------------------------------------------------------------

_TRANSFORMERS = """
import torch
from transformers import Trainer, TrainingArguments
import scavenger.torch as elastic
trainer = Trainer(torch.nn.Linear(2, 2), TrainingArguments("runs", use_cpu=True, report_to="none", {}))
elastic.prepare(trainer)
"""
_LIGHTNING = """
import lightning
import scavenger.torch as elastic
trainer = lightning.Trainer(accelerator="cpu", logger=False, {})
elastic.prepare(trainer)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "setting", "told"),
    [
        (
            _TRANSFORMERS,
            "gradient_accumulation_steps=4",
            "train.py:6: gradient_accumulation_steps=4 of the trainer",
        ),
        (_TRANSFORMERS, "max_steps=100", "write num_train_epochs"),
        (_TRANSFORMERS, "num_train_epochs=2.5", "a job has whole epochs"),
        (
            _TRANSFORMERS,
            "num_train_epochs=2",
            "train.py:6: the script has ended, and the trainer has not trained",
        ),
        (_LIGHTNING, "devices=2, strategy='ddp'", "train.py:5: a trainer of 2 processes"),
        (_LIGHTNING, "max_epochs=2, accumulate_grad_batches=3", "at_once=SAMPLES"),
        (_LIGHTNING, "max_steps=100", "write max_epochs"),
        (_LIGHTNING, "max_epochs=2, val_check_interval=0.5", "a job has whole epochs"),
    ],
)
def test_what_a_trainer_is_set_to_do_and_a_job_does_not_is_refused(
    run: Any, script: str, setting: str, told: str
) -> None:
    pytest.importorskip("transformers" if script is _TRANSFORMERS else "lightning")
    with pytest.raises(ScavengerError) as refused:
        run(script.format(setting))

    assert told in str(refused.value)
