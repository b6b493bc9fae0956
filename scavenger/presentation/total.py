"""What a run will cost and take as a whole, with its parts."""

from __future__ import annotations

from scavenger.domain.report import Predicted
from scavenger.presentation.formatting import duration_within, money_parts, money_within


def total_words(predicted: Predicted, *, relative_only: bool = False) -> str:
    """The whole first, for example `You will pay about $0.025 (90 %: $0.012 to $0.053) in 6 min 20 s
    (90 %: 3 min 30 s to 13 min): starting $0.004, search $0.005, training $0.016`; the parts add up to the whole.

    Args:
        relative_only: Whether the epochs are not known, so that the whole says little.
    """
    parts = {
        "starting": predicted.spent_usd - predicted.search_usd,
        "search": predicted.search_usd,
        "training": predicted.cost_usd - predicted.spent_usd,
    }
    shown = money_parts(predicted.cost_usd, tuple(parts.values()))
    named = [f"{name} {usd}" for name, usd in zip(parts, shown, strict=True) if usd != "$0"]
    paid = money_within(predicted.cost_usd, *predicted.cost_interval_usd)
    takes = duration_within(predicted.time_s, *predicted.time_interval_s)
    words = f"You will pay about {paid} in {takes}"
    doubt = "; if the largest batch size needs goal.max_epochs, as the epochs are not known"
    return f"{words}: {', '.join(named)}{doubt if relative_only else ''}"
