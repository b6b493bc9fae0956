"""The operator of `python -m benchmarks operator`: as the command runs it, and writes how long each look took."""

from __future__ import annotations

import sys

from scavenger.control.cluster.operating import Installation
from scavenger.control.cluster.running import Options, run_operator
from scavenger.domain.vm_settings import KubernetesSettings


def main() -> None:
    settings = KubernetesSettings(image="scavenger", usd_per_cpu_hour=0.03, usd_per_gib_hour=0.004)
    with open(sys.argv[1], "w", buffering=1) as file:
        run_operator(Options(), Installation(settings), looked=lambda took_s: print(took_s, file=file))


if __name__ == "__main__":
    main()
