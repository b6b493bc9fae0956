"""The worked example of docs/costs.md: `python -m tests.control.example_plan FOLDER`, where FOLDER holds measurements.

The job is CIFAR-10 on T4 GPUs, its step times and epochs measured by others (step_times.csv and convergence.csv, of
Pollux, OSDI 2021); prices and interruptions are those of `spot_prices`. Everything between is what a job does.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from scavenger.control.places.offers import CatalogCloud
from scavenger.control.search.imported import ImportOptions, fit_to_rows
from scavenger.control.search.tables import read_placements, read_runs
from scavenger.domain.configuration import SearchSpace
from scavenger.domain.curve import Choice
from scavenger.domain.job import ResourcesSpec
from scavenger.models.cost import estimate_of
from scavenger.search.choose import choose
from scavenger.search.curve import build_curve

sys.path.insert(0, str(Path(__file__).parent))

import spot_prices

WORKERS = (1, 2, 4, 8, 16)
VMS = ["c5.large", "c5.xlarge", "m5.xlarge", "g4dn.xlarge"]


def lines(folder: Path) -> Iterator[str]:
    """What the documentation shows."""
    cloud = CatalogCloud("aws", spot_prices.REGION, spot="auto", catalog=spot_prices.catalog())
    span = WORKERS[0], WORKERS[-1]
    yield from cloud.offers_for(ResourcesSpec.model_validate({"any_of": VMS, "disk": 20}), workers=span).notes
    offered = cloud.offers_for(ResourcesSpec(vm="g4dn.xlarge", disk=20), workers=span)
    terms = cloud.terms(offered, setup_s=180.0)
    rows = [
        r
        for r in read_placements(folder / "step_times.csv")
        if r.workers_per_node == 1 and r.workload == "cifar10"
    ]
    runs = read_runs(folder / "convergence.csv")
    imported = fit_to_rows(rows, runs, ImportOptions(1.0, "cifar10"))
    spot = offered.offers[0]
    on_demand = replace(spot, spot=False, price_usd_per_hour=cloud.price_usd_per_hour(spot.vm, spot=False))
    (measured,) = imported.model.vms
    model = replace(imported.model, vms=(replace(measured, vm=spot.vm),))
    yield ""
    for offer in (on_demand, spot):
        space = SearchSpace((offer,), WORKERS, imported.space.global_batch_sizes)
        curve = build_curve(model, space, costs=terms)
        choice = choose(curve, "knee")
        assert isinstance(choice, Choice)
        point = choice.point
        made = estimate_of(point, offer, terms)
        kind = "spot" if offer.spot else "on demand"
        yield f"{kind}: {point.configuration}: {made.time_s:.0f} s, ${made.total_usd:.4f}"
        yield from (f"  {item.name:<14}${item.usd:.5f}  {item.how}" for item in made.items)


if __name__ == "__main__":
    print("\n".join(lines(Path(sys.argv[1]))))
