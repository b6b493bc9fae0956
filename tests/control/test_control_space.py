"""From a job file to the configurations that may be searched."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted import offer

from scavenger.cloud.local import LocalCloud
from scavenger.control.places.kinds import check_code, check_keras_backend
from scavenger.control.places.needs import Kind
from scavenger.control.places.room import fit_to_data
from scavenger.control.places.this_machine import search_space
from scavenger.domain.configuration import SearchSpace
from scavenger.domain.job import JobSpec
from scavenger.errors import ConfigurationError, NotSupportedError


def job(**sections: Any) -> JobSpec:
    return JobSpec.model_validate(
        {"version": 1, "name": "tiny", "train": "train:job", "goal": {"max_epochs": 2}, **sections}
    )


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


def test_a_training_module_is_found_beside_the_job_file_and_a_misspelt_one_is_offered(tmp_path: Path) -> None:
    (tmp_path / "trian.py").touch()
    with pytest.raises(ConfigurationError, match="did you mean trian:job"):
        check_code(job(), Kind.LOOP, tmp_path)

    (tmp_path / "train.py").touch()
    check_code(job(), Kind.LOOP, tmp_path)


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
