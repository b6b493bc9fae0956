"""Each worker is placed on a GPU of its own, and no other process of a job sees one."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path

import msgspec
import psutil
import pytest
from engine_conformance import boot, command, exits, said

from scavenger.train.engines.gpus import HIDDEN, gpu_names, gpus_for, only
from scavenger.train.engines.process import ProcessEngine

SEEN = """
import ctypes, os, time
getenv = ctypes.CDLL(None).getenv  # as CUDA reads it
getenv.restype = ctypes.c_char_p
name = "CUDA_VISIBLE_DEVICES"
same = (getenv(name.encode()) or b"none").decode() == os.environ.get(name, "none")
print(os.environ.get(name, "none") if same else "differs", flush=True)
time.sleep(600)
"""


def test_workers_take_the_gpus_in_order_and_one_that_was_freed_before_any_twice() -> None:
    gpus = ("0", "1", "2")
    held: list[str] = []

    for _ in gpus:
        held.append(gpus_for(gpus, held))

    assert held == ["0", "1", "2"]
    assert gpus_for(gpus, ["0", "2"]) == "1"
    assert gpus_for(gpus, [*held, "0"]) == "1"
    assert gpus_for((*gpus, "3"), ["0,2"], 2) == "1,3"


@pytest.mark.parametrize(
    ("environment", "names"),
    [
        ({}, ("0", "1")),
        ({"CUDA_VISIBLE_DEVICES": "3, 1"}, ("3", "1")),
        ({"CUDA_VISIBLE_DEVICES": "GPU-8f6d,GPU-1c2e,GPU-77"}, ("GPU-8f6d", "GPU-1c2e")),
        ({"CUDA_VISIBLE_DEVICES": ""}, ("0", "1")),
    ],
)
def test_a_gpu_has_the_name_by_which_a_process_of_this_environment_reaches_it(
    environment: dict[str, str], names: tuple[str, ...]
) -> None:
    assert gpu_names(2, environment) == names


def test_a_worker_takes_of_its_gpus_memory_only_what_it_uses() -> None:
    assert only("GPU-1c2e") == {
        "CUDA_VISIBLE_DEVICES": "GPU-1c2e",
        "TF_FORCE_GPU_ALLOW_GROWTH": "true",
    }
    assert HIDDEN == {"CUDA_VISIBLE_DEVICES": "-1"}


@pytest.mark.slow
@pytest.mark.parametrize("forked", [False, True], ids=["started", "forked"])
def test_each_worker_sees_one_gpu_and_a_successor_sees_that_of_the_one_that_ended(
    tmp_path: Path, forked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    monkeypatch.setenv("FORKED_PROGRAM", SEEN)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "6,7")
    how = {"fork_targets": {"worker": "forked_program:main"}} if forked else {"command": command(SEEN)}
    with contextlib.closing(ProcessEngine(tmp_path, -1, gpus=("6", "7"), **how)) as engine:
        engine.launch(boot("w0"))
        engine.launch(boot("w1"))
        seen = [said(engine, name) for name in ("w0", "w1")]
        if forked:
            server = psutil.Process(engine.pid("w0")).parent()
            assert server is not None
            assert server.environ()["CUDA_VISIBLE_DEVICES"] == "-1"
        engine.kill("w0")
        exits(engine)
        engine.launch(boot("w2"))

        assert [*seen, said(engine, "w2")] == ["6", "7", "6"]
        engine.kill_all()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("role", "gpus", "sees"),
    [
        ("coordinator", ("0",), "-1"),
        ("aggregator", ("0",), "-1"),
        ("worker", (), "-1"),
        ("worker", None, "5"),
        ("loop", None, "5"),
        ("loop", (), "5"),
        ("loop", ("7",), "7"),
        ("command", ("7",), "7"),
    ],
)
def test_no_other_process_sees_one_unless_its_own_code_is_to_choose(
    tmp_path: Path, role: str, gpus: tuple[str, ...] | None, sees: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5")
    with contextlib.closing(ProcessEngine(tmp_path, -1, gpus=gpus, command=command(SEEN))) as engine:
        engine.launch(msgspec.structs.replace(boot("one"), role=role))

        assert said(engine, "one") == sees
        engine.kill_all()


@pytest.mark.slow
def test_what_forks_the_workers_of_a_loop_cannot_have_begun_cuda_as_it_has_no_library_that_would() -> None:
    code = (
        "import sys, scavenger.train.loop_process; print({'torch', 'jax', 'tensorflow'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )

    assert done.stdout == "set()\n"
