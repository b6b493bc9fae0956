"""The example of a PyTorch job from Python: killed in the middle, it goes on from its checkpoint within its budget."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from scavenger import Client

EXAMPLE = Path(__file__).parents[2] / "examples" / "torch_job"


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.timeout(900)
def test_the_example_goes_on_after_it_was_killed_within_its_budget(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("sklearn")
    for name in ("run.py", "train.py"):
        (tmp_path / name).write_text((EXAMPLE / name).read_text())
    slower = (
        (tmp_path / "train.py").read_text().replace("loss.backward()", "loss.backward(); time.sleep(0.01)")
    )
    (tmp_path / "train.py").write_text(slower.replace("import sys\n", "import sys\nimport time\n"))
    env = {**os.environ, "SCAVENGER_LOCAL_PRICE": "0.1"}
    command = [sys.executable, "run.py"]
    url = f"sqlite:///{tmp_path}/jobs.db"

    first = subprocess.Popen(command, cwd=tmp_path, env=env, stderr=subprocess.PIPE, text=True)
    until = time.monotonic() + 300
    while not _saved(url):
        assert first.poll() is None, first.communicate()[1][-2000:]
        assert time.monotonic() < until
        time.sleep(0.3)
    first.send_signal(signal.SIGKILL)
    first.communicate()
    second = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, check=False)

    assert second.returncode == 0, second.stderr[-3000:]
    with Client(store=url) as client:
        (job,) = client.records("torch-job")
        run = client.result(job.id)
        assert (run.state, job.attempts) == ("succeeded", 2)
        assert run.value is not None
        assert run.value >= 0.87
        assert 0.0 < client.cost_of(job.id) <= 1.0
        assert f"It cost ${client.cost_of(job.id):.5f} in all" in second.stdout
        assert Path(run.model_path or "").is_file()


def _saved(url: str) -> bool:
    with Client(store=url) as client:
        return any(one.checkpoint is not None for one in client.records("torch-job"))
