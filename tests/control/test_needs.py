"""What jobs need and what their parts lack: the comparison, and the page that is made from its table."""

from __future__ import annotations

import importlib.util
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from scavenger.cloud.adapters import Adapter, adapter_of
from scavenger.control.job_file.load import load_job
from scavenger.control.jobs.prepared import prepare_job
from scavenger.control.places.needs import NEEDS, Kind, Where, check_needs, lacks, parts_of
from scavenger.domain.job import JobSpec
from scavenger.domain.providers import BUILT_IN
from scavenger.errors import NotSupportedError

ROOT = Path(__file__).parents[2]
PLACES: dict[Where, dict[str, Any]] = {
    Where.HERE: {},
    Where.RAY: {"engine": "ray"},
    Where.VMS: {"infra": "aws/us-east-1"},
    Where.PODS: {"infra": "kubernetes"},
    Where.RAY_PODS: {"infra": "kubernetes", "engine": "ray/train"},
    Where.POOL: {"aggregation": "shared"},
}
ASKED: dict[str, dict[str, Any]] = {
    "`LoopJob`": {},
    "`run:`": {},
    "`engine: ray`": {"engine": "ray"},
    "`engine: ray/RAYCLUSTER`": {"engine": "ray/train"},
    "`data:`": {"data": "train:data"},
    "`elastic.lr_scaling` without `{lr_scale}`": {"elastic": {"lr_scaling": "linear"}},
    "`elastic.aggregators` above 1": {"elastic": {"aggregators": 2}},
    "`elastic.aggregator_vms` above 1, or `workers`": {"elastic": {"aggregators": 2, "aggregator_vms": 2}},
    "`elastic.exchange: process_group`": {"elastic": {"exchange": "process_group"}},
    "`elastic.processes` above 1": {"elastic": {"processes": 2}},
    "`elastic.processes` above 1 without a script": {"elastic": {"processes": 2}},
    "`aggregation: shared`": {"aggregation": "shared"},
    "`leader: vm`": {"leader": "vm"},
    "`spot: auto` or `always`": {"spot": "auto"},
    "`resources.disk`": {"resources": {"cpus": 1, "disk": 50}},
    "`resources.accelerators`": {"resources": {"accelerators": "T4"}},
    "`objective: {utility: EXPRESSION}`": {"objective": {"utility": "time * 2"}},
}


def job(kind: Kind = Kind.KERAS, **sections: Any) -> JobSpec:
    trained = {"run": "python train.py"} if kind is Kind.COMMAND else {"train": "train:job"}
    return JobSpec.model_validate(
        {"version": 1, "name": "tiny", "goal": {"max_epochs": 2}, **trained, **sections}
    )


@pytest.mark.parametrize("need", NEEDS, ids=lambda need: need.name.replace("`", ""))
def test_a_job_is_refused_if_and_only_if_a_part_lacks_what_it_asks_for(need: Any) -> None:
    met = refused = 0
    for kind, place in product(Kind, PLACES):
        if need.name in ("`LoopJob`", "`run:`") and not need.asked(job(kind), kind):
            continue
        asking = job(kind, **{**PLACES[place], **ASKED[need.name]})
        assert need.asked(asking, kind)
        lacking = [part for part in parts_of(asking, kind) if part in need.lacked]
        found = [refusal for one, refusal in lacks(asking, kind) if one is need]
        assert len(found) == len(lacking)
        for refusal in found:
            with pytest.raises(NotSupportedError) as raised:
                check_needs(asking, kind)
            assert raised.value.key in {one.key for one in NEEDS}
            assert "{job" not in refusal
            assert "; " in refusal or "with infra: kubernetes" in refusal, "a refusal says what to write"
        met, refused = met + (not found), refused + bool(found)
    assert refused
    assert met or "utility" in need.name


@pytest.mark.parametrize(
    ("sections", "kind", "words"),
    [
        ({"infra": "gcp/us-central1", "engine": "ray"}, Kind.KERAS, "engine: ray runs on existing nodes"),
        ({"infra": "gcp/us-central1", "engine": "ray/train"}, Kind.KERAS, "needs infra: kubernetes"),
        ({"engine": "ray/train"}, Kind.KERAS, "needs infra: kubernetes"),
        (
            {"infra": "kubernetes", "engine": "ray/head:6379"},
            Kind.KERAS,
            "name the RayCluster .* as ray/NAME",
        ),
        ({"infra": "kubernetes", "aggregation": "shared"}, Kind.KERAS, "not on Kubernetes"),
        (
            {"aggregation": "shared", "infra": "aws/us-east-1", "leader": "vm"},
            Kind.KERAS,
            "cannot reach the pool",
        ),
        ({"elastic": {"lr_scaling": "linear"}}, Kind.COMMAND, "give it {lr_scale}"),
        ({"objective": {"utility": "time * 2"}}, Kind.LOOP, "{utility: {linear: {worth: "),
    ],
)
def test_a_refusal_names_the_job_own_words(sections: dict[str, Any], kind: Kind, words: str) -> None:
    with pytest.raises(NotSupportedError, match=words):
        check_needs(job(kind, **sections), kind)


@pytest.mark.parametrize(
    "sections",
    [
        {"elastic": {"min": 1, "max": 2, "policy": "throughput", "batch": "weak", "batch_max": 512}},
        {"elastic": {"straggler": {"rule": "edl"}, "lr_scaling": "adascale", "aggregators": 2}},
        {"infra": "aws/us-east-1a", "spot": "always", "resources": {"any_of": ["c5.large", "c5.xlarge"]}},
        {
            "objective": {"utility": {"linear": {"worth": "$50", "until": "8h"}}},
            "elastic": {"policy": "utility"},
        },
        *PLACES.values(),
    ],
)
def test_what_is_there_is_not_refused(sections: dict[str, Any]) -> None:
    check_needs(job(**sections), Kind.KERAS)


def test_every_provider_of_this_package_has_its_code() -> None:
    for kind in BUILT_IN:
        assert bool(kind.adapter) == kind.capabilities.rents
        assert not kind.adapter or isinstance(adapter_of(kind.name), Adapter)


def test_a_refusal_begins_with_the_place_in_the_job_file(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(
        "version: 1\nname: tiny\ntrain: train:job\ngoal: {max_epochs: 2}\n"
        "elastic: {aggregators: 2, aggregator_vms: 2}\n"
    )
    (tmp_path / "train.py").write_text("from scavenger import KerasJob\n")

    with pytest.raises(
        NotSupportedError, match=r"job\.yaml:5:43: elastic\.aggregator_vms is for VMs of a cloud"
    ):
        prepare_job(load_job(file), file)


def test_the_page_is_the_table() -> None:
    """`python docs/site/references.py` writes the page."""
    spec = importlib.util.spec_from_file_location("references", ROOT / "docs" / "site" / "references.py")
    assert spec is not None
    assert spec.loader is not None
    references = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(references)

    assert (ROOT / "docs" / "what-runs-where.md").read_text() == references.what_runs_where()
