"""From a job file to the configurations that may be searched."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted import offer

from scavenger.cloud.local import LocalCloud
from scavenger.control.search.space import (
    check_keras_backend,
    check_supported,
    check_training_module,
    fit_to_data,
    search_space,
)
from scavenger.domain.configuration import SearchSpace
from scavenger.domain.job import JobSpec
from scavenger.errors import ConfigurationError, NotSupportedError


def job(**sections: Any) -> JobSpec:
    return JobSpec.model_validate(
        {"version": 1, "name": "tiny", "train": "train:job", "goal": {"max_epochs": 2}, **sections}
    )


@pytest.mark.parametrize(
    ("sections", "word"),
    [
        ({"infra": "kubernetes", "aggregation": "shared"}, "aggregation"),
        ({"infra": "gcp/us-central1", "engine": "ray"}, "engine"),
        ({"infra": "gcp/us-central1", "engine": "ray/train"}, "engine"),
        ({"infra": "kubernetes", "engine": "ray"}, "name the RayCluster .* as ray/NAME"),
        ({"infra": "kubernetes", "engine": "ray/head:6379"}, "name the RayCluster"),
        ({"engine": "ray/train"}, "needs infra: kubernetes"),
        ({"infra": "kubernetes", "engine": "ray/train", "leader": "vm"}, "a node of the Ray cluster leads"),
        ({"infra": "kubernetes", "engine": "ray/train", "aggregation": "shared"}, "aggregation: shared"),
        (
            {
                "infra": "kubernetes",
                "engine": "ray/train",
                "elastic": {"aggregators": 2, "aggregator_vms": 2},
            },
            "aggregators are where the job is led",
        ),
        ({"spot": "auto"}, "spot"),
        ({"resources": {"cpus": 1, "disk": 50}}, "disk"),
        ({"objective": {"utility": "time * 2"}}, "objective"),
        (
            {
                "aggregation": "shared",
                "infra": "aws/us-east-1",
                "elastic": {"aggregators": 2, "aggregator_vms": 2},
            },
            "none is rented",
        ),
        (
            {"aggregation": "shared", "infra": "aws/us-east-1", "leader": "vm"},
            "leader: vm cannot reach the pool",
        ),
        ({"aggregation": "shared", "engine": "ray"}, "aggregation: shared .* engine: ray"),
    ],
)
def test_what_this_version_does_not_do_is_refused_by_the_key_that_asks_for_it(
    sections: dict[str, Any], word: str
) -> None:
    with pytest.raises(NotSupportedError, match=word):
        check_supported(job(**sections))


@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_another_backend_of_keras_is_refused_by_the_place_that_sets_it(backend: str, tmp_path: Path) -> None:
    home = {"KERAS_HOME": str(tmp_path)}
    check_keras_backend(home)
    (tmp_path / "keras.json").write_text(f'{{"backend": "{backend}"}}')

    with pytest.raises(NotSupportedError, match=f"KERAS_BACKEND sets Keras's backend to '{backend}'"):
        check_keras_backend({"KERAS_BACKEND": backend})
    with pytest.raises(NotSupportedError, match=r"keras\.json sets"):
        check_keras_backend(home)
    check_keras_backend({**home, "KERAS_BACKEND": "tensorflow"})
    (tmp_path / "keras.json").write_text("no JSON")
    check_keras_backend(home)


@pytest.mark.parametrize(
    "sections",
    [
        {},
        {"elastic": {"min": 1, "max": 2, "policy": "throughput", "batch": "weak", "batch_max": 512}},
        {"elastic": {"straggler": {"rule": "edl"}, "lr_scaling": "adascale", "aggregators": 2}},
        {"checkpoint": {"path": "./c", "every_steps": 10}},
        {"aggregation": "shared"},
        {"infra": "gcp/us-central1", "spot": "auto"},
        {"infra": "aws/us-east-1a", "spot": "always", "resources": {"any_of": ["c5.large", "c5.xlarge"]}},
        {
            "objective": {"utility": {"linear": {"worth": "$50", "until": "8h"}}},
            "elastic": {"policy": "utility"},
        },
    ],
)
def test_what_this_version_does_is_not_refused(sections: dict[str, Any]) -> None:
    check_supported(job(**sections))


def test_a_training_module_is_found_beside_the_job_file_and_a_misspelt_one_is_offered(tmp_path: Path) -> None:
    (tmp_path / "trian.py").touch()
    with pytest.raises(ConfigurationError, match="did you mean trian:job"):
        check_training_module(job(), tmp_path / "job.yaml")

    (tmp_path / "train.py").touch()
    assert check_training_module(job(), tmp_path / "job.yaml") == tmp_path


def test_prices_of_the_local_cloud_are_never_absurd() -> None:
    for text in ("-1", "nan", "inf", "much"):
        with pytest.raises(ConfigurationError, match="SCAVENGER_LOCAL_PRICE"):
            LocalCloud({"SCAVENGER_LOCAL_PRICE": text}).offers(workers_max=1)


def test_a_vm_type_that_there_is_not_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(ConfigurationError, match=r"'local-9999'; it has local-1"):
        search_space(job(resources={"vm": "local-9999"}), LocalCloud({}))


sizes = st.sets(st.integers(1, 500), min_size=1, max_size=8).map(lambda found: tuple(sorted(found)))


@given(workers=sizes, batches=sizes, dataset_size=st.integers(1, 500))
def test_what_is_left_of_a_space_fits_the_data_and_nothing_that_fits_is_lost(
    workers: tuple[int, ...], batches: tuple[int, ...], dataset_size: int
) -> None:
    space = SearchSpace((offer(),), workers, batches)
    fitting = [c for c in space.configurations() if c.global_batch_size <= dataset_size]
    try:
        left, notes = fit_to_data(space, dataset_size)
    except ConfigurationError:
        assert fitting == []
        return

    assert list(left.configurations()) == fitting
    assert bool(notes) == (batches[-1] > dataset_size)
