"""What is left of a run: starts, the rest of the way and the end, none of which is certain."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from scavenger.models.run_ahead import RunAhead
from scavenger.models.starts import Lasting, Starts, first_start, further_start

END = Lasting(2.0, 1e-9)
RUN = RunAhead(
    whole=Lasting(100.0, 1e-9),
    meanwhile_s=200.0,
    usd_per_s=0.02,
    start_usd_per_s=0.02,
    behind=0.0,
    share_max=math.inf,
    epochs_log_sd=0.2,
    first=None,
    missing=None,
    end=END,
    end_paid=True,
)


def half_width(run: RunAhead) -> float:
    """Of the time after now, over its median without the end."""
    found = run.predict()
    low_s, high_s = found.time_interval_s
    return 0.5 * (high_s - low_s) / (found.time_s - END.median_s)


def test_without_a_start_the_interval_is_that_of_the_epochs() -> None:
    found = RUN.predict()

    assert found.time_s == pytest.approx(102.0)
    low_s, high_s = found.time_interval_s
    assert math.log((high_s - 2.0) / (low_s - 2.0)) == pytest.approx(2.0 * 1.645 * 0.2, rel=0.02)
    assert found.cost_usd == pytest.approx(2.04)
    assert (found.start_s, found.remaining, found.share) == (0.0, 1.0, 1.0)


def test_what_processes_are_paid_for_ends_somewhere_in_the_end_of_the_run() -> None:
    short = replace(RUN, whole=Lasting(1.0, 1e-9), epochs_log_sd=0.0)
    found, of_machines = replace(short, end_paid=False).predict(), short.predict()

    assert found.time_interval_s == pytest.approx(of_machines.time_interval_s)
    assert of_machines.cost_usd == pytest.approx(0.02 * 3.0)
    assert found.cost_usd == pytest.approx(0.02 * 2.0)
    assert found.cost_interval_usd == pytest.approx((0.02 * 1.1, 0.02 * 2.9), rel=0.01)


def test_what_is_trained_makes_the_epochs_no_more_certain() -> None:
    """Half the way is behind: what is left is as uncertain in seconds as the whole was."""
    wide = [half_width(replace(RUN, behind=behind)) * (1.0 - behind) for behind in (0.0, 0.3, 0.5)]

    assert wide == pytest.approx([wide[0]] * 3, rel=0.15)


def test_a_run_that_takes_longer_than_predicted_ends_later_than_now() -> None:
    found = replace(RUN, behind=1.2).predict()

    assert found.time_s > 2.0
    assert found.share > 1.2
    assert found.time_interval_s[0] < found.time_s < found.time_interval_s[1]


def test_a_start_is_uncertain_and_so_is_what_is_trained_meanwhile() -> None:
    sure = replace(RUN, missing=Lasting(10.0, 1e-9)).predict()
    unsure = replace(RUN, missing=Lasting(10.0, 0.5), epochs_log_sd=1e-9).predict()

    assert sure.start_s == pytest.approx(10.0)
    assert sure.time_s == pytest.approx(10.0 + 0.95 * 100.0 + 2.0)
    assert unsure.time_interval_s[1] - unsure.time_interval_s[0] > 5.0


def test_a_run_may_end_before_the_missing_worker_is_ready_whatever_is_left() -> None:
    """No interval is a point, as [212.2, 212.2] would be."""
    found = replace(RUN, behind=0.9, missing=Lasting(60.0, 0.3)).predict()

    # Of the runs that are not done yet, the median needs 8 % more than was predicted.
    assert found.remaining == 0.0
    assert found.share == pytest.approx(1.08, rel=0.01)
    assert found.time_s == pytest.approx((found.share - 0.9) * 200.0 + 2.0)
    low_s, high_s = found.time_interval_s
    assert high_s > 2.0 * low_s


def test_the_first_worker_is_awaited_for_what_is_left_of_its_start() -> None:
    fresh, waited = (replace(RUN, first=(Lasting(10.0, 0.5), waited_s)).predict() for waited_s in (0.0, 30.0))

    assert fresh.start_s == pytest.approx(10.0)
    assert 0.0 < waited.start_s < 20.0


def test_a_bound_on_the_epochs_ends_a_run() -> None:
    found = replace(RUN, epochs_log_sd=1.0, share_max=1.5).predict()

    assert found.time_interval_s[1] == pytest.approx(152.0)


@pytest.mark.parametrize("behind", [0.0, 0.5, 0.999, 1.0, 3.0, 1e6])
@pytest.mark.parametrize("epochs_log_sd", [0.0, 1e-3, 3.0])
def test_whatever_is_known_the_interval_holds_the_median_and_is_finite(
    behind: float, epochs_log_sd: float
) -> None:
    run = replace(RUN, behind=behind, epochs_log_sd=epochs_log_sd, share_max=behind + 1.0)
    for meanwhile_s, missing in ((200.0, Lasting(5.0, 0.3)), (math.inf, Lasting(5.0, 0.3)), (math.inf, None)):
        found = replace(run, meanwhile_s=meanwhile_s, missing=missing).predict()
        low_s, high_s = found.time_interval_s
        assert 0.0 <= low_s <= found.time_s <= high_s < math.inf
        assert 0.0 <= found.cost_interval_usd[0] <= found.cost_usd <= found.cost_interval_usd[1] < math.inf
        assert 0.0 <= found.remaining <= 1.0


def test_starts_are_learned_from_the_machine_and_then_from_the_job() -> None:
    unknown, machine = further_start(Starts(), Starts()), Starts((5.4,) * 5, (1.9,) * 5)
    known, busy = further_start(Starts(), machine), further_start(Starts((5.4,), (4.0,) * 3), machine)

    assert 1.0 < unknown.median_s < 10.0
    assert unknown.log_sd > 2.0 * known.log_sd
    assert known.median_s == pytest.approx(1.9, rel=0.1)
    assert 2.5 < busy.median_s < 4.0
    assert first_start(machine).median_s == pytest.approx(5.4, rel=0.05)


def test_a_slow_first_start_tells_of_the_further_ones() -> None:
    slow, quick = (further_start(Starts((took_s,)), Starts()) for took_s in (60.0, 2.0))

    assert slow.median_s > 4.0 * quick.median_s
