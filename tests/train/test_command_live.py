"""A command whose batch size changes while it trains, without a new start. Needs PyTorch (`[torch]`)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from waiting import wait_for

from scavenger.domain.command import RunSpec
from scavenger.sdk.report import Report
from scavenger.train.command.job_supervisor import CommandJobSupervisor
from scavenger.train.command.source import CommandSource
from scavenger.train.job_source import JobSource, Timeouts
from scavenger.train.supervisor.events import Event
from scavenger.train.transport import messages as m
from scavenger.train.transport.messages.values import CheckpointPlan

torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'scavenger-ml[torch]'")

SAMPLES, EPOCHS, WORKERS = 96, 1000, 2
MODEL = """
import torch

def trained():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1)).double()
    x = torch.randn(96, 6, dtype=torch.float64)
    return model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9), x, x.prod(1, keepdim=True)
"""
PROGRAM = """
import json, os, sys, time
import torch
import torch.distributed as dist
from model import trained
from scavenger.sdk.report import scavenger_report

model, optimizer, x, y = trained()
dist.init_process_group("gloo")
ddp, path = torch.nn.parallel.DistributedDataParallel(model), os.path.join(sys.argv[1], "state.pt")
told = open(f"told-{dist.get_rank()}.jsonl", "a", buffering=1)

def save():
    torch.save(model.state_dict(), path)
    return path

with scavenger_report(save=save, samples_per_epoch=96) as report:
    while report.epochs < 1000:
        order = torch.randperm(96, generator=torch.Generator().manual_seed(report.epochs))
        for share in report.batches(order, 16, at_once=5):
            with ddp.no_sync() if not share.last else torch.enable_grad():
                (share.weight * torch.nn.functional.mse_loss(ddp(x[share.rows]), y[share.rows])).backward()
            rows = share.rows.tolist() * (share.weight > 0)
            told.write(json.dumps([os.getpid(), report.epochs, report.steps, report.lr_scale, rows]) + "\\n")
            if share.last:
                time.sleep(0.01)
                optimizer.param_groups[0]["lr"] = 0.05 * report.lr_scale
                optimizer.step()
                optimizer.zero_grad()
                report.step()
        report.epoch(val_error=0.0)
"""


def _open(folder: Path) -> CommandJobSupervisor:
    (folder / "model.py").write_text(MODEL)
    (folder / "train.py").write_text(PROGRAM)
    source = CommandSource(
        RunSpec(command="python train.py {checkpoint_dir}"), JobSource("", folder, 0, 1), EPOCHS
    )
    return CommandJobSupervisor.open(
        source,
        work_dir=folder / "work",
        timeouts=Timeouts(120.0, 60.0),
        checkpoint=CheckpointPlan(str(folder / "kept"), 0.0, 0),
        first_batch=16,
    )


def _run(supervisor: CommandJobSupervisor, folder: Path) -> list[Event]:
    """Train at three batch sizes, one after the other, the last one at another rate; then end with an epoch."""
    events: list[Event] = []
    ends = [0]

    def look() -> bool:
        found = supervisor.poll(0.05)
        for event in found:
            if isinstance(event, m.EpochReport):
                supervisor.verdict(event.epoch, stop=len(ends) > 3, keep_best=False)
        events.extend(found)
        return False

    def steps() -> int:
        return max((event.step for event in events if isinstance(event, m.StepReport)), default=0)

    supervisor.start(WORKERS)
    for batch, scale in ((16, 1.0), (30, 1.0), (7, 0.5)):
        supervisor.resize(WORKERS, batch, f"B = {batch}, x {scale}", lr_scale=scale)
        until = ends[-1]
        wait_for(lambda until=until: look() or (supervisor.settled and steps() > until))
        ends.append(steps())
    wait_for(lambda: look() or not supervisor.workers("training"))
    supervisor.finish(folder / "model", best=False)
    return events


@pytest.mark.slow
def test_the_batch_changes_between_two_steps_of_the_same_processes(tmp_path: Path) -> None:
    supervisor = _open(tmp_path)
    try:
        events = _run(supervisor, tmp_path)
    finally:
        supervisor.close()

    views = [event.view for event in events if isinstance(event, m.ViewInstalled)]
    assert [(view.global_batch_size, view.lr_scale) for view in views] == [(16, 1.0), (30, 1.0), (7, 0.5)]
    told = [
        [json.loads(line) for line in (tmp_path / f"told-{rank}.jsonl").read_text().splitlines()]
        for rank in range(WORKERS)
    ]
    assert all(len({pid for pid, *_ in of_one}) == 1 for of_one in told)  # nothing was started again
    batches: dict[int, list[int]] = {}
    rates: dict[int, set[float]] = {}
    epochs: dict[int, list[int]] = {}
    for of_one in told:
        for _, epoch, step, rate, rows in of_one:
            batches.setdefault(step, []).extend(rows)
            rates.setdefault(step, set()).add(rate)
            epochs.setdefault(epoch, []).extend(rows)
    assert all(sorted(rows) == list(range(SAMPLES)) for rows in epochs.values())
    reports = [event for event in events if isinstance(event, m.StepReport)]
    assert [one.samples for one in reports] == [len(batches[one.step - 1]) for one in reports]
    ends = [*(view.first_step for view in views[1:]), reports[-1].step + 1]
    for view, end in zip(views, ends, strict=True):
        of_view = [one for one in reports if one.view == view.number]
        assert [one.step for one in of_view] == list(range(view.first_step, end))
        assert {one.global_batch_size for one in of_view} == {view.global_batch_size}
        assert {rate for one in of_view for rate in rates[one.step - 1]} == {view.lr_scale}

    namespace: dict[str, Any] = {}
    exec(MODEL, namespace)
    model, optimizer, x, y = namespace["trained"]()
    for step in sorted(batches):
        (rate,) = rates[step]
        optimizer.param_groups[0]["lr"] = 0.05 * rate
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(x[batches[step]]), y[batches[step]]).backward()
        optimizer.step()
    for name, kept in torch.load(tmp_path / "model").items():
        torch.testing.assert_close(kept, model.state_dict()[name], rtol=1e-12, atol=1e-12)


def test_a_process_that_learns_too_late_of_another_batch_ends(tmp_path: Path) -> None:
    """The others have computed with it; what this one did is not what they expect."""
    environ = {
        "SCAVENGER_REPORT": str(tmp_path),
        "RANK": "1",
        "WORLD_SIZE": "2",
        "SCAVENGER_GLOBAL_BATCH_SIZE": "8",
    }
    request = {"view": 2, "view_at": 2, "global_batch_size": 16, "lr_scale": 2.0}
    seen, late = Report(environ), Report(environ)
    shares = [next(one.batches(range(100), 1)) for one in (seen, late)]
    late.step()
    late.step()
    for _ in range(2):
        (tmp_path / "request").write_text(json.dumps(request))
        seen.step()

    assert [list(share.rows) for share in shares] == [[4, 5, 6, 7]] * 2
    assert seen.lr_scale == 2.0
    assert list(next(seen.batches(range(100), 1)).rows) == list(range(16, 24))
    with pytest.raises(
        RuntimeError, match="told only after step 3 that from step 3 on another batch size holds"
    ):
        late.step()


def test_an_epoch_goes_on_at_its_sample_whatever_the_batch_was(tmp_path: Path) -> None:
    kept = {"SCAVENGER_REPORT": str(tmp_path), "SCAVENGER_CHECKPOINT_DIR": str(tmp_path)}
    first = Report(kept | {"SCAVENGER_GLOBAL_BATCH_SIZE": "8"})
    rows = []
    for share in first.batches(list(range(20)), 1):
        rows += share.rows
        first.step()
        if first.steps == 2:
            break
    first.checkpoint()
    again = Report(kept | {"SCAVENGER_GLOBAL_BATCH_SIZE": "3"})
    shares = []
    for share in again.batches(list(range(20)), 1):
        shares.append(share)
        again.step()

    assert rows + [row for share in shares for row in share.rows] == list(range(20))
    assert [len(share.rows) for share in shares] == [3, 1]
    with pytest.raises(RuntimeError, match=r"followed by one report\.step"):
        list(Report({}).batches(range(4), 2))


def test_a_process_without_samples_computes_one_that_counts_for_nothing() -> None:
    of_ranks = [
        list(Report({"RANK": str(rank), "WORLD_SIZE": "3"})._shares(list(range(9)), 7, 9, None))
        for rank in range(3)
    ]
    parts = list(Report({})._shares(list(range(9)), 0, 9, 4))

    assert [(share.rows, share.weight) for (share,) in of_ranks] == [([7], 0.0), ([7], 1.5), ([8], 1.5)]
    assert [(share.rows, share.last) for share in parts] == [
        ([0, 1, 2], False),
        ([3, 4, 5], False),
        ([6, 7, 8], True),
    ]
    assert sum(share.weight for share in parts) == pytest.approx(1.0)
