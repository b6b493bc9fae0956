"""`cost`: the predicted and the actual costs of jobs, item by item."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from rich.text import Text

from scavenger.api.costs import CostAnswer, CostsPage, list_costs, show_cost
from scavenger.api.opening import open_source
from scavenger.control.provisioning.bill import JobCost, VmCost
from scavenger.presentation.formatting import (
    clean,
    difference,
    durations,
    money,
    money_parts,
    money_range,
    moneys,
    when,
)
from scavenger.presentation.picture import FINISHED
from scavenger_cli.commands.status import state_words
from scavenger_cli.options import ListedJobKey, Output, OutputOption, StoreOption
from scavenger_cli.ui import console, render

if TYPE_CHECKING:
    from rich.console import RenderableType

    from scavenger.domain.cost import CostItem

JOBS_SHOWN = 20
VMS_SHOWN = 30
"""VMs of one job shown as text; `-o json` has all."""


def cost(job: ListedJobKey = None, store_url: StoreOption = None, output: OutputOption = Output.TEXT) -> int:
    """Show the predicted and actual cost of one job or of recent jobs."""
    with open_source(store_url) as source:
        found: CostsPage | CostAnswer
        found = list_costs(source, JOBS_SHOWN) if job is None else show_cost(source, job)
    if output.is_json:
        console.emit_answer(found)
    elif isinstance(found, CostAnswer):
        console.emit(*_one(found.job))
    elif not found.jobs:
        console.emit(Text("No jobs yet: `scavenger plan JOB.yaml` starts one."))
    else:
        console.emit(*_all(found.jobs), Text(), *_one(found.jobs[0]))
    return 0


def _all(jobs: Iterable[JobCost]) -> Iterator[RenderableType]:
    grid = render.table(
        ("id", "left"),
        ("name", "left"),
        ("state", "left"),
        ("predicted", "right"),
        ("actual", "right"),
        ("off by", "right"),
        ("began", "left"),
    )
    known = list(jobs)
    guesses = moneys([None if cost.predicted is None else cost.predicted.cost_usd for cost in known])
    bills = moneys([cost.actual_usd for cost in known])
    for cost, guess, bill in zip(known, guesses, bills, strict=True):
        predicted = "-" if cost.predicted is None else guess
        actual = "-" if cost.actual_usd is None else bill
        began = when(cost.created_at)[5:16]
        grid.add_row(cost.job_id[:8], clean(cost.name), _state(cost), predicted, actual, _off(cost), began)
    yield grid


def _state(cost: JobCost) -> str:
    return state_words(cost.state, ended=cost.ended, alive=cost.alive, has_runner=cost.has_runner)


def _off(cost: JobCost) -> str:
    """The error of the prediction, which is for a whole run; `-` for one that has not ended or was cut short."""
    if cost.predicted is None or cost.actual_usd is None or cost.state not in FINISHED:
        return "-"
    return difference(cost.predicted.cost_usd, cost.actual_usd)


def _one(cost: JobCost) -> Iterator[RenderableType]:
    facts = render.table(("Job", "left"), (f"{clean(cost.name)} ({cost.job_id})", "left"))
    facts.add_row("state", _state(cost))
    if cost.predicted is not None:
        low, high = cost.predicted.cost_interval_usd
        facts.add_row("predicted", f"{money(cost.predicted.cost_usd)}, 90 %: {money_range(low, high)}")
    if cost.actual_usd is not None:
        off = _off(cost)
        error = "" if off == "-" else f"; the prediction was off by {off}"
        facts.add_row("actual", f"{money(cost.actual_usd)}{'' if cost.ended else ' so far'}{error}")
    facts.add_row("known", cost.how)
    yield facts
    if cost.estimate is not None:
        total_usd = cost.estimate.total_usd
        yield Text(f"\nThe chosen configuration, for the whole training: {money(total_usd)}", style="bold")
        yield _items(cost.estimate.items, total_usd)
    if cost.items:
        yield Text("\nPaid" if cost.vms else "\nCounted", style="bold")
        yield _items(cost.items, math.fsum(item.usd for item in cost.items))
    if cost.vms:
        yield Text()
        yield from _vms(cost.vms)
    for words in cost.not_counted:
        yield Text(f"not counted: {clean(words)}")


def _items(items: Sequence[CostItem], total_usd: float) -> RenderableType:
    """The items of a sum, with as many places as are shown of it, so that they add up."""
    grid = render.table(("item", "left"), ("cost", "right"), ("", "left"))
    shown = money_parts(total_usd, [item.usd for item in items])
    for item, usd in zip(items, shown, strict=True):
        grid.add_row(clean(item.name), usd, clean(item.how))
    return grid


def _vms(vms: tuple[VmCost, ...]) -> Iterator[RenderableType]:
    grid = render.table(
        ("VM", "left"),
        ("type", "left"),
        ("", "left"),
        ("", "left"),
        ("paid", "right"),
        ("cost", "right"),
        ("", "left"),
    )
    shown = vms[:VMS_SHOWN]
    paid = zip(durations([vm.billed_s for vm in shown]), moneys([vm.usd for vm in shown]), strict=True)
    for vm, figures in zip(shown, paid, strict=True):
        end = vm.ending if vm.ended else "not ended"
        kind = "spot" if vm.spot else "on demand"
        name = clean(vm.instance_id) or "(no answer)"
        grid.add_row(name, clean(vm.vm), clean(vm.role), kind, *figures, clean(end))
    yield grid
    if len(vms) > VMS_SHOWN:
        yield Text(f"and {len(vms) - VMS_SHOWN} more: -o json has them")
