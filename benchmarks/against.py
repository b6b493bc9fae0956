"""Two versions of the project, measured in turn: `python -m benchmarks against COMMIT NAME... [--rounds N]`."""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.figures import Spread, markdown_table
from benchmarks.machine import conditions, describe

_ROOT = Path(__file__).resolve().parents[1]
_HEADERS = ("figure", "then", "now", "now to then")
Figures = dict[str, float]
"""Medians of one run of a benchmark by the path of their names."""


def main(arguments: Sequence[str]) -> None:
    """Measure what is named with the source of a commit and with this one, and print the ratios.

    Each round runs a benchmark with both, the second round in the other order, so that what changes slowly on the
    machine falls on both. The commit's source runs in this environment: its dependencies must fit.

    Raises:
        subprocess.CalledProcessError: If there is no such commit, or if a benchmark ends with an error.
    """
    parser = argparse.ArgumentParser(prog="python -m benchmarks against", description=__doc__)
    parser.add_argument("commit", help="whose source is measured beside this one")
    parser.add_argument("names", nargs="+", metavar="NAME", help="of benchmarks that both have")
    parser.add_argument("--rounds", type=int, default=2, help="of both (default: %(default)s)")
    parser.add_argument(
        "--repetitions", type=int, help="of each round, instead of the benchmark's own number"
    )
    options = parser.parse_args(arguments)
    if options.rounds < 1:
        parser.error("--rounds must be at least 1")
    more = [] if options.repetitions is None else ["--repetitions", str(options.repetitions)]
    with tempfile.TemporaryDirectory(prefix="scavenger-against-") as folder:
        then = Path(folder, "then")
        _git("worktree", "add", "--quiet", "--detach", str(then), options.commit)
        if (data := _ROOT.parent / "shared").is_dir():  # public measurements, beside each source
            Path(folder, "shared").symlink_to(data.resolve())
        try:
            for name in options.names:
                before = describe(conditions())
                measured: dict[Path, list[Figures]] = {then: [], _ROOT: []}
                for number in range(options.rounds):
                    for source in (then, _ROOT) if number % 2 == 0 else (_ROOT, then):
                        measured[source].append(_measured(source, name, more, Path(folder, "figures")))
                print(f"## {name}: {options.commit} and this source\n\n{before}\n")
                print(markdown_table(_HEADERS, ratios(measured[then], measured[_ROOT])), flush=True)
        finally:
            _git("worktree", "remove", "--force", str(then))


def ratios(then: Sequence[Figures], now: Sequence[Figures]) -> list[tuple[str, ...]]:
    """A row for each figure that is above 0 in every round of both: medians over the rounds, and their ratio.

    The ratio's spread is that over the rounds.
    """
    rows = []
    for key in then[0]:
        if all(figures.get(key, 0.0) > 0.0 for figures in (*then, *now)):
            before, after = ([figures[key] for figures in rounds] for rounds in (then, now))
            whole = Spread.of(new / old for old, new in zip(before, after, strict=True))
            rows.append(
                (
                    key,
                    *(f"{statistics.median(values):.4g}" for values in (before, after)),
                    whole.text(digits=2),
                )
            )
    return rows


def medians(figures: Mapping[str, Any] | Sequence[Any], path: str = "") -> Iterator[tuple[str, float]]:
    """Every spread in the figures of a benchmark, as the path to it and its median."""
    if isinstance(figures, Mapping) and set(figures) == set(Spread.__dataclass_fields__):
        yield path, figures["median"]
        return
    inner = figures.items() if isinstance(figures, Mapping) else enumerate(figures)
    for key, value in inner:
        if isinstance(value, Mapping | list):
            yield from medians(value, f"{path} / {key}" if path else str(key))


def _measured(source: Path, name: str, more: Sequence[str], output: Path) -> Figures:
    paths = os.pathsep.join((str(source), str(source / "cli")))
    subprocess.run(
        [sys.executable, "-m", "benchmarks", name, "--output", str(output), *more],
        cwd=source,
        env={**os.environ, "PYTHONPATH": paths},
        stdout=subprocess.DEVNULL,
        check=True,
    )
    return dict(medians(json.loads((output / f"{name}.json").read_text())["figures"]))


def _git(*arguments: str) -> None:
    subprocess.run(["git", *arguments], cwd=_ROOT, check=True)
