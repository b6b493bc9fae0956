"""Scripts become elastic by few lines, and the command takes them to their targets."""

from __future__ import annotations

import difflib
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from audits import AUDIT_FILE, verify_audit
from real_jobs import Job, ended, environment, lines
from warm_commands import Command

from scavenger.control.job_file.load import load_job
from scavenger.domain.script import Script

pytestmark = pytest.mark.slow

pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'scavenger-ml[compare]'")

EXAMPLES = Path(__file__).parents[2] / "examples"
EXAMPLE = EXAMPLES / "torch_script"
BEFORE = {
    "torch_script": "ddp.py",
    "torch_accelerate": "plain.py",
    "torch_trainer": "plain.py",
    "torch_lightning": "plain.py",
    "torch_fsdp": "fsdp.py",
}
CHANGED_MAX = 10
"""Lines that may be added to a script, or taken out of it."""


@pytest.mark.parametrize("example", BEFORE)
def test_few_lines_make_a_script_elastic(example: str) -> None:
    texts = [(EXAMPLES / example / name).read_text().splitlines() for name in (BEFORE[example], "train.py")]
    found = [line for line in difflib.ndiff(*texts) if line[:2] in ("+ ", "- ")]

    assert len(found) <= CHANGED_MAX
    assert sum("elastic" in line for line in found) == 3
    taken = [line for line in found if line.startswith("- ")]
    assert all(line.startswith('- """') for line in taken), (
        "but for what it says of itself, nothing is taken out"
    )


@pytest.mark.parametrize("name", ["ddp.py", "train.py"])
@pytest.mark.long
def test_both_do_the_same_with_torchrun(name: str, tmp_path: Path, mark: str) -> None:
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    ran = subprocess.run(
        [*launch, str(EXAMPLE / name), "--epochs", "2"],
        cwd=tmp_path,
        env={
            **environment(mark),
            "GLOO_SOCKET_IFNAME": "lo",
            "OMP_NUM_THREADS": "1",
            "TMPDIR": str(tmp_path),
        },
        capture_output=True,
        text=True,
        timeout=200,
    )

    assert ran.returncode == 0, ran.stderr
    assert [line.partition(":")[0] for line in ran.stdout.splitlines()] == ["epoch 1", "epoch 2"]
    assert (tmp_path / "digits.pt").is_file()


def test_the_command_takes_a_script_to_its_target_and_every_sample_counts_once(
    make_job: Callable[..., Job],
) -> None:
    """Neither Keras nor TensorFlow can be imported."""
    job = make_job()
    lacking = job.folder / "lacking"
    lacking.mkdir()
    for name in ("keras", "tensorflow"):
        (lacking / f"{name}.py").write_text(f"raise ModuleNotFoundError({name!r})")
    variables = environment(job.mark)
    variables["PYTHONPATH"] = f"{lacking}:{variables['PYTHONPATH']}"
    script = job.folder / "digits.py"
    shutil.copy(EXAMPLE / "train.py", script)
    options = [
        "--target",
        "val_accuracy=0.95",
        "--workers",
        "2",
        "--batch-size",
        "32..128",
        "--strategy",
        "full",
    ]

    command = [sys.executable, "-m", "scavenger_cli", "optimize", str(script), *options, "--yes", "--audit"]
    outcome = ended(
        Command(
            [*command, "--store", job.store, "-o", "json", "--", "--lr", "0.02", "--epochs", "60"],
            env={**variables, "TORCHINDUCTOR_CACHE_DIR": str(job.folder)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
    )
    assert outcome.stdout, outcome.stderr
    report = outcome.report
    assert report["job"]["state"] == "succeeded", outcome.stderr
    assert (
        "prepare: Sequential of 19,210 weights, 1,437 samples in batches of 64, 60 epochs, SGD, val_accuracy"
        in (outcome.stderr)
    )
    written = load_job(script.with_suffix(".job.yaml"))
    assert written.train == Script("digits.py", ("--lr", "0.02", "--epochs", "60"))
    assert (written.batch_sizes, written.goal.max_epochs) == ((64,), 60)
    journal = list(lines(report["measurements_path"]))
    measured = {
        (line["configuration"]["workers"], line["configuration"]["global_batch_size"])
        for line in journal
        if line["kind"] == "measurement"
    }
    assert {workers for workers, _ in measured} == {2}
    assert len(measured) > 1, "the batch changes while it trains"
    assert verify_audit(Path(report["measurements_path"]).with_name(AUDIT_FILE), 1437) == []
    safetensors = pytest.importorskip("safetensors.torch")
    saved = safetensors.load_file(report["model_path"])
    assert saved["model/0.weight"].shape == (256, 64)


@pytest.mark.long
@pytest.mark.parametrize(
    ("example", "library", "target", "found"),
    [
        (
            "torch_accelerate",
            "accelerate",
            0.93,
            "Sequential of 19,210 weights, 1,437 samples in batches of 64, 20 epochs, AdamW, val_accuracy",
        ),
        (
            "torch_trainer",
            "transformers",
            0.93,
            "ViTForImageClassification of 69,194 weights, 1,437 samples in batches of 32, 20 epochs, AdamW",
        ),
        (
            "torch_lightning",
            "lightning",
            0.93,
            "Digits of 19,210 weights, 1,437 samples in batches of 64, 20 epochs, AdamW, val_accuracy",
        ),
        (
            "jax_script",
            "optax",
            0.88,
            "a pytree of 19,210 weights, 1,437 samples in batches of 64, 20 epochs, val_accuracy",
        ),
    ],
)
def test_a_script_of_another_library_is_taken_to_its_target(
    make_job: Callable[..., Job],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    example: str,
    library: str,
    target: float,
    found: str,
) -> None:
    pytest.importorskip(library)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    job = make_job()
    script = job.folder / "digits.py"
    shutil.copy(EXAMPLES / example / "train.py", script)

    outcome = job.ask(
        "optimize", str(script), "--target", f"val_accuracy={target}", "--workers", "2", "--yes"
    )

    assert outcome.stdout, outcome.stderr
    assert outcome.report["job"]["state"] == "succeeded", outcome.stderr
    assert f"prepare: {found}" in outcome.stderr


def test_a_script_without_the_calls_is_told_what_it_misses(make_job: Callable[..., Job]) -> None:
    job = make_job()
    shutil.copy(EXAMPLE / "ddp.py", job.folder / "ddp.py")

    outcome = job.ask("optimize", str(job.folder / "ddp.py"), "--yes")

    assert outcome.code == 2
    assert "a PyTorch script without the calls that make it elastic" in outcome.error
    assert "run: python ddp.py (docs/command-jobs.md)" in outcome.error


def test_a_job_file_may_say_run_as_well() -> None:
    from scavenger.domain.job import JobSpec

    job = JobSpec.model_validate(
        {"version": 1, "name": "x", "run": "train.py --lr 0.1", "goal": {"max_epochs": 3}}
    )

    assert job.train == Script("train.py", ("--lr", "0.1"))
    assert job.run is None
