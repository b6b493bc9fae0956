"""A round of pushing a gradient and reading the weights, compared with gloo's all-reduce of as many bytes."""

from __future__ import annotations

from pathlib import Path

from benchmarks.elastic_supervisor import Training, gradient_s
from benchmarks.figures import Benchmark, Result, Spread
from benchmarks.peers.running import installed, run_peers
from benchmarks.peers.shapes import parameters

_WORKERS = 2
_BATCH = 2
"""A sample for each worker: as little computing as there can be around the round."""
_WARM_UP_STEPS = 6
_ONE = "one host, shared memory, one aggregator"
_SHARED = "one host, shared memory, two aggregators"
_TCP = "two hosts, encrypted tcp (AES-GCM), two aggregators"
_CURVE = "two hosts, encrypted tcp (ZeroMQ, CURVE), two aggregators"
_GLOO = "gloo all-reduce (PyTorch), tcp"
_AIMS = {_SHARED: 0.5, _TCP: 1.3}


def _rounds(
    rounds: int, work_dir: Path, aggregators: int = 2, *, two_hosts: bool = False, payloads: str = "sealed"
) -> Spread:
    """Steps without their gradients. With two hosts, each has a worker and an aggregator."""
    with Training(
        "benchmarks.peers.keras_jobs:mlp_sgd",
        work_dir,
        aggregators=aggregators,
        elsewhere=("w1", "aggregator-1") if two_hosts else (),
        payloads=payloads,
    ) as training:
        training.begin(_WORKERS, _BATCH)
        training.go_on(_WARM_UP_STEPS)
        steps = training.go_on(rounds)
    measured = training.measured()
    return Spread.of(step.step_time_s - gradient_s(measured, step.step) for step in steps)


def _all_reduce(rounds: int) -> Spread:
    ranks = run_peers("torch_allreduce", _WORKERS, parameters=parameters("mlp"), rounds=rounds)
    return Spread.of(max(times) for times in zip(*(rank["round_times_s"] for rank in ranks), strict=True))


def run(repetitions: int, work_dir: Path) -> Result:
    """So many rounds each way, one way after the other."""
    count = parameters("mlp")
    peer = _all_reduce(repetitions) if installed("torch") else None
    found = {
        _ONE: _rounds(repetitions, work_dir / "one", 1),
        _SHARED: _rounds(repetitions, work_dir / "shared"),
        _TCP: _rounds(repetitions, work_dir / "tcp", two_hosts=True),
        _CURVE: _rounds(repetitions, work_dir / "curve", two_hosts=True, payloads="curve"),
    }
    rows: list[tuple[str, ...]] = []
    verdicts = []
    for name, spread in found.items():
        ratio = "-" if peer is None else f"{spread.median / peer.median:.2f}"
        rows.append((name, str(spread.count), spread.text(1e3), ratio))
        if name in _AIMS:
            verdicts.append(f"{name}: below {_AIMS[name]}, is {ratio}")
    figures: dict[str, object] = {
        "bytes": 4 * count,
        **{f"{name}_s": spread for name, spread in found.items()},
    }
    if peer is None:
        rows.append((_GLOO, "0", "not installed", "-"))
    else:
        rows.append((_GLOO, str(peer.count), peer.text(1e3), "1.00"))
        figures[f"{_GLOO}_s"] = peer
    return Result(
        headers=("way", "n", "round, ms", "to gloo"),
        rows=tuple(rows),
        verdict=f"aims, times gloo's all-reduce: {'; '.join(verdicts)}",
        figures=figures,
        remarks=(
            f"{4 * count / 1e6:.0f} MB, K = {_WORKERS}, one thread per process; a round: a step with plain SGD, "
            "without the gradient's computation: copying or sending gradients, mean, norms, update, weights readable",
            "two hosts: processes of one machine that share two memories, each with a worker and an aggregator that "
            "holds half of the model, so that half of the bytes travel; everything that travels is encrypted; by "
            "ZeroMQ with CURVE, which no job can ask for, for comparison",
            "gloo: nothing is encrypted, and no weight is updated",
        ),
    )


BENCHMARK = Benchmark("elastic_round", 30, run)
