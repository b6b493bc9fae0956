"""An example of a search that is killed, and run again."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path


def run_again_after_a_kill(
    folder: Path,
    example: Path,
    trials: int,
    env: Mapping[str, str],
    *,
    told: str,
    midst_s: float,
    gone_s: float = 0.0,
) -> subprocess.CompletedProcess[str]:
    """Run a search of so many trials, kill it and run it to its end.

    Args:
        folder: Where the example is copied to and runs.
        told: What it has printed when its first trial is over.
        midst_s: How much later it is killed, in the midst of the second trial.
        gone_s: How long its processes take to see that.
    """
    for name in ("search.py", "train.py"):
        (folder / name).write_text((example / name).read_text())
    command, log = [sys.executable, "search.py", str(trials)], folder / "first.log"
    with log.open("w") as file:
        first = subprocess.Popen(
            command, cwd=folder, env=env, stderr=file, stdout=file, start_new_session=True
        )
        until = time.monotonic() + 300
        while told not in log.read_text():
            assert first.poll() is None, log.read_text()[-2000:]
            assert time.monotonic() < until
            time.sleep(0.1)
        time.sleep(midst_s)
        first.send_signal(signal.SIGKILL)
        first.wait()
    time.sleep(gone_s)
    second = subprocess.run(
        command, cwd=folder, env=env, capture_output=True, text=True, timeout=500, check=False
    )
    assert second.returncode == 0, second.stderr[-3000:]
    return second
