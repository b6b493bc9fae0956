"""The operator of `python -m benchmarks operator`: as the command runs it, and writes how long what it does has taken.

Each line is JSON: `["look", seconds that it waited, seconds that it took]`, or `["call", method, seconds]` of a call to
the API server, as its client sees it.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from scavenger.cloud.kubernetes.elastic_jobs import Cluster
from scavenger.control.cluster.operating import Installation
from scavenger.control.cluster.running import OperatorOptions, run_operator
from scavenger.domain.vm_settings import KubernetesSettings


def main() -> None:
    settings = KubernetesSettings(image="scavenger", usd_per_cpu_hour=0.03, usd_per_gib_hour=0.004)
    with open(sys.argv[1], "w", buffering=1) as file:
        ask = Cluster._asked

        def note(*what: object) -> None:
            file.write(json.dumps(what) + "\n")

        def timed(self: Cluster, method: str, *arguments: Any, watch: bool = False) -> Any:
            begun_s = time.monotonic()
            try:
                return ask(self, method, *arguments, watch=watch)
            finally:
                if not watch:
                    note("call", method, time.monotonic() - begun_s)

        Cluster._asked = timed  # type: ignore[method-assign,assignment]
        run_operator(
            OperatorOptions(),
            Installation(settings),
            looked=lambda look: note("look", look.waited_s, look.took_s),
        )


if __name__ == "__main__":
    main()
