"""Evaluations that a job tells to whoever follows it from elsewhere."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scavenger.domain.document import without_nonfinite
from scavenger.domain.epochs import EpochsToTell, epochs_data, read_epochs
from scavenger.domain.measurement import EpochRecord
from scavenger.domain.report import EpochEnded


def ended(epoch: int, value: float = 0.5) -> EpochEnded:
    return EpochEnded(EpochRecord(epoch, 10 * epoch, {"val_loss": value}, 0.1, 1.0 * epoch), "val_loss", 0.1)


@given(st.lists(st.floats(0.001, 50.0), min_size=1, max_size=300), st.integers(1, 3))
def test_each_evaluation_is_told_once_in_order_and_long_jobs_make_few_events(
    pauses: list[float], per_look: int
) -> None:
    epochs, now_s, count, told, events = EpochsToTell(), 0.0, 0, [], 0
    for pause_s in pauses:
        for _ in range(per_look):
            epochs.on_event(ended(count))
            count += 1
        now_s += pause_s
        due = epochs.due(now_s, 1.0)
        events += bool(due)
        told += due
    last = epochs.due(now_s, 2.0, last=True)
    told += last

    numbers = [one.record.epoch for one in told]
    assert numbers == sorted(set(numbers))
    assert numbers[-1] == count - 1
    assert {one.cost_usd for one in told} <= {1.0, 2.0}
    assert events <= 2.0 * now_s + 1
    assert events <= 35 + math.log(max(1.0, now_s)) / math.log(1.03)


def test_they_come_back_as_they_were_but_for_what_json_has_not() -> None:
    sent = (ended(3), ended(4, math.nan))
    read = read_epochs(json.loads(json.dumps(without_nonfinite(epochs_data(sent)))))

    assert read[0] == sent[0]
    assert math.isnan(read[1].record.metrics["val_loss"])
    with pytest.raises(ValueError, match="no evaluations"):
        read_epochs({"epochs": [{}]})
