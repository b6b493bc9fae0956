"""A job with `accelerators` on this machine: one worker on each of its GPUs, or one clear line."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from scavenger.cloud.local import LocalCloud
from scavenger.control.places.gpus import LocalGpus, gpus_of, one_process_each, unasked_notes
from scavenger.control.places.needs import Kind
from scavenger.control.places.this_machine import ThisMachine, search_space
from scavenger.domain.job import JobSpec
from scavenger.errors import ConfigurationError, ScavengerError
from scavenger.train.devices import Devices, Gpu

L4 = Gpu("NVIDIA L4", 22 << 30)
A100 = Gpu("NVIDIA A100-SXM4-80GB", 78 << 30)


def job(accelerators: str | None = "L4:2", **sections: Any) -> JobSpec:
    wanted = {} if accelerators is None else {"resources": {"accelerators": accelerators}}
    return JobSpec.model_validate(
        {"version": 1, "name": "tiny", "train": "train:job", "goal": {"max_epochs": 2}, **wanted, **sections}
    )


def found(
    wanted: JobSpec,
    *gpus: Gpu,
    cuda: bool = True,
    driver: bool = True,
    environment: dict[str, str] | None = None,
    kind: Kind = Kind.KERAS,
) -> LocalGpus | None:
    return gpus_of(
        wanted,
        kind,
        environment or {},
        driver=lambda: driver,
        look=lambda: Devices("2.21.0", cuda, gpus),
        ask=lambda: {f"GPU-{number}": gpu for number, gpu in enumerate(gpus)},
    )


def test_a_job_takes_as_many_gpus_of_the_model_as_it_asks_for() -> None:
    assert found(job("L4:2"), L4, L4, L4) == LocalGpus("NVIDIA L4", ("0", "1"))
    assert found(job("A100-80GB"), L4, A100) == LocalGpus("NVIDIA A100-SXM4-80GB", ("1",))
    assert found(job("a100"), A100, environment={"CUDA_VISIBLE_DEVICES": "GPU-5"}) == LocalGpus(
        "NVIDIA A100-SXM4-80GB", ("GPU-5",)
    )


@pytest.mark.parametrize("kind", [Kind.LOOP, Kind.COMMAND])
def test_loops_and_commands_have_the_gpus_of_the_driver_whatever_tensorflow_is_built_for(kind: Kind) -> None:
    gpus = found(job("A100-80GB"), L4, A100, cuda=False, kind=kind)

    assert gpus == LocalGpus("NVIDIA A100-SXM4-80GB", ("GPU-1",))
    with pytest.raises(ConfigurationError, match="but nvidia-smi lists NVIDIA L4 on this machine"):
        found(job("L4:2"), L4, cuda=False, kind=kind)


@pytest.mark.parametrize("listed", ["", "-1"])
def test_an_environment_that_hides_all_gpus_is_told_in_one_line(listed: str) -> None:
    for kind in Kind:
        with pytest.raises(
            ConfigurationError, match=f"CUDA_VISIBLE_DEVICES={listed} hides all GPUs: unset it"
        ) as told:
            found(job("L4:2"), L4, L4, kind=kind, environment={"CUDA_VISIBLE_DEVICES": listed})
        assert told.value.key == "resources"


def test_a_script_that_asks_for_no_gpu_is_told_how_each_worker_has_its_own() -> None:
    gpus = {"GPU-1": A100, "GPU-2": A100, "GPU-3": L4}

    def notes(
        kind: Kind, environment: dict[str, str] | None = None, *, driver: bool = True
    ) -> tuple[str, ...]:
        return unasked_notes(job(None), kind, environment or {}, driver=lambda: driver, ask=lambda: gpus)

    (note,) = notes(Kind.LOOP)
    assert note.startswith("this machine has 3 GPUs, and each worker sees all")
    assert note.endswith("write resources: {accelerators: A100-SXM4-80GB:2}")
    assert found(job("A100-SXM4-80GB:2"), *gpus.values(), kind=Kind.LOOP)
    assert notes(Kind.KERAS) == notes(Kind.LOOP, driver=False) == ()
    assert notes(Kind.COMMAND, {"CUDA_VISIBLE_DEVICES": ""}) == ()


def test_no_gpu_is_looked_for_unless_a_job_on_this_machine_asks_for_one() -> None:
    def look() -> Devices:
        raise AssertionError

    for other in (job(None), job("L4:2", infra="aws/us-east-1")):
        assert gpus_of(other, Kind.KERAS, {}, driver=lambda: True, look=look) is None


@pytest.mark.parametrize(
    ("gpus", "options", "line"),
    [
        ((), {"driver": False}, r"L4:2 asks for GPUs, and this machine has none \(no NVIDIA driver\)"),
        ((), {}, "TensorFlow sees no GPU on this machine"),
        ((L4,), {}, "TensorFlow sees NVIDIA L4 on this machine"),
        ((A100, A100), {}, "TensorFlow sees NVIDIA A100-SXM4-80GB, NVIDIA A100-SXM4-80GB on"),
        ((), {"cuda": False}, r"built for processors alone; pip uninstall .* 'tensorflow\[and-cuda\]"),
    ],
)
def test_a_job_that_asks_for_gpus_that_are_not_there_is_refused_by_what_there_is(
    gpus: tuple[Gpu, ...], options: dict[str, bool], line: str
) -> None:
    with pytest.raises(ConfigurationError, match=line) as refusal:
        found(job("L4:2"), *gpus, **options)

    assert refusal.value.key == "resources"
    assert "\n" not in str(refusal.value)


def test_what_keeps_tensorflow_from_answering_is_said() -> None:
    def look() -> Devices:
        raise ScavengerError("TensorFlow does not tell what GPUs it sees: ImportError: libcudart.so.12")

    with pytest.raises(ConfigurationError, match=r"accelerators: L4:2: .*libcudart"):
        gpus_of(job(), Kind.KERAS, {}, driver=lambda: True, look=look)


def test_clusters_and_elasticity_end_at_one_worker_for_each_gpu() -> None:
    wide = job(search={"workers": "1..8"}, elastic={"max": 6})

    limited, notes = one_process_each(wide, 4)

    assert (limited.worker_counts, limited.elastic_range) == ((1, 2, 3, 4), (1, 4))
    assert len(notes) == 1
    assert one_process_each(limited, 4) == (limited, ())


def test_a_worker_of_several_processes_takes_as_many_gpus() -> None:
    limited, notes = one_process_each(job(search={"workers": "1..8"}, elastic={"processes": 2}), 5)

    assert limited.worker_counts == (1, 2)
    assert notes == ("clusters of more than 2 workers are left out: each worker has 2 GPUs of its own",)


@pytest.mark.parametrize("sections", [{"search": {"workers": "3..4"}}, {"elastic": {"min": 3}}])
def test_more_workers_than_gpus_are_refused(sections: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=r"write workers: 1\.\.2") as refusal:
        one_process_each(job(**sections), 2)

    assert refusal.value.key == "search.workers"


def test_workers_on_gpus_share_this_machines_processors_and_its_models_are_kept_apart() -> None:
    cloud = LocalCloud({}, gpus=2, gpu_model="NVIDIA L4")

    (offer,) = search_space(job(), cloud).offers

    assert offer.cpus == max(1, cloud.capacity()[0] // 2)
    assert offer.memory_bytes == cloud.capacity()[1] // 2
    assert cloud.hardware() == f"{LocalCloud({}).hardware()}, 2 NVIDIA L4"


@pytest.mark.parametrize(("gpus", "placed"), [(None, ()), (LocalGpus("NVIDIA L4", ("2", "3")), ("2", "3"))])
def test_workers_of_this_machine_are_placed_on_the_chosen_gpus_and_see_none_unasked(
    gpus: LocalGpus | None, placed: tuple[str, ...]
) -> None:
    wanted = job(None if gpus is None else "L4:2", search={"workers": "1..2"})

    context: Any = SimpleNamespace(warn=print)
    engine: Any = ThisMachine(wanted, gpus).allocate(context).engine

    assert engine.keywords == {"gpus": placed, "warm": None}
