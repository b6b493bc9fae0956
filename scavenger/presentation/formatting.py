"""Numbers for people: durations, money, sizes, and errors of predictions."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Callable, Sequence
from datetime import datetime

from scavenger.frames import Frame, told

UNKNOWN = "unknown"
_MINUTE, _HOUR, _DAY = 60.0, 3600.0, 86400.0
_DIGITS_MAX = 17
"""Significant digits that tell every two numbers apart."""
RANGE_MIN = 5.0
"""A range is in minutes, hours or days if it ends at this many or more: below, its start is often a fraction."""
_UNITS = ((_DAY, "d"), (_HOUR, "h"), (_MINUTE, "min"), (1.0, "s"), (1e-3, "ms"), (1e-6, "us"))
_PAIRS = (
    (_MINUTE, "min", 1.0, "s", 60.0),
    (_HOUR, "h", _MINUTE, "min", 48.0),
    (_DAY, "d", _HOUR, "h", math.inf),
)
"""Units of long durations: a large one, a small one, and below how many of the large one they are used."""
_LEAST = 1e-4
"""Ends of ranges below it, in their unit, are rounded outwards to 0 and to it."""
PLACES_MAX = 9
"""Most places after the point of a sum of money."""
_ESCAPES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # CSI: colours and cursor movements
    r"|\x1b[\]PX^_].*?(?:\x07|\x1b\\|\Z)"  # OSC and similar: titles, links, clipboard
    r"|\x1b[@-Z\\-_]?",
    re.DOTALL,
)


def clean(text: object) -> str:
    """The text on one line without terminal escapes, control, direction-changing or unpaired characters.

    Names, reasons and errors come from files and from the user's code: printed as they are, they could move
    the cursor, hide text or reach the terminal's clipboard.
    """
    plain = re.sub(r"[\t\r\n\v\f\x85\u2028\u2029]+", " ", _ESCAPES.sub("", str(text)))
    return "".join(c for c in plain if unicodedata.category(c) not in ("Cc", "Cf", "Cs"))


def quantity(value: float | None, digits: int = 3) -> str:
    """A number with `digits` significant digits, without an exponent for everyday sizes."""
    if value is None or math.isnan(value):
        return UNKNOWN
    if math.isinf(value):
        return "unbounded"
    if value == 0:
        return "0"
    magnitude = math.floor(math.log10(abs(value)))
    if not -5 <= magnitude <= 12:
        return f"{value:.{digits - 1}e}"
    rounded = round(value, digits - 1 - magnitude)
    text = f"{rounded:,.{max(digits - 1 - magnitude, 0)}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def digits_apart(one: float, other: float, digits: int) -> int:
    """The fewest significant digits, at least `digits`, that show that two different numbers differ."""
    while digits < _DIGITS_MAX and quantity(one, digits) == quantity(other, digits):
        digits += 1
    return digits


def beside_target(value: float | None, target: float | None) -> tuple[str, str]:
    """A metric's value and its target, of three digits or as many as show that they differ; the target may be empty.

    Values that frameworks tell in single precision equal a target that they have met.
    """
    if value is None or target is None or not math.isfinite(value):
        return quantity(value), "" if target is None else quantity(target)
    digits = 3 if math.isclose(value, target, rel_tol=1e-7) else digits_apart(value, target, 3)
    return quantity(value, digits), quantity(target, digits)


def duration(seconds: float | None) -> str:
    """A duration, such as `85 ms`, `12.3 s`, `4 min 10 s`, `1 h 12 min`, `3 d 4 h`."""
    if seconds is None or not math.isfinite(seconds):
        return quantity(seconds)
    if seconds < 0:
        return "-" + duration(-seconds)
    if seconds == 0:
        return "0 s"
    for unit, name in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if seconds >= unit * 0.9995 or unit == 1e-6:
            if seconds < 59.95:
                return f"{quantity(seconds / unit)} {name}"
            break
    for big, big_name, small, small_name, limit in _PAIRS:
        whole = round(seconds / small)
        per = round(big / small)
        count, rest = divmod(whole, per)
        if count < limit:
            return f"{count:,} {big_name}" + (f" {rest} {small_name}" if rest else "")
    raise AssertionError("days have no limit")


def duration_range(low: float, high: float) -> str:
    """A range such as `58-90 min`: both ends in one unit, so that they are easy to compare, and rounded outwards."""
    return _range_in(_unit_of(high), low, high)


def _unit_of(high: float) -> tuple[float, str]:
    """The unit of a range that ends there."""
    return next((one for one in _UNITS if high >= one[0] * (RANGE_MIN if one[0] > 1.0 else 1.0)), _UNITS[-1])


def _range_in(of: tuple[float, str], low: float, high: float) -> str:
    if not (math.isfinite(low) and math.isfinite(high)):
        return UNKNOWN
    unit, name = of
    low, high = low / unit, high / unit
    # a column has one unit, in which its least values would be written with exponents
    if 0.0 < high < _LEAST:
        high = _LEAST
    first, second = quantity(_down(low) if low >= _LEAST else 0.0, 2), quantity(_up(high), 2)
    return f"{first if first == second else f'{first}-{second}'} {name}"


def money(usd: float | None, digits: int = 3) -> str:
    """US dollars: whole cents from one dollar on, `digits` significant digits below."""
    if usd is None or not math.isfinite(usd):
        return quantity(usd)
    if usd < 0:
        return "-" + money(-usd, digits)
    if usd == 0:
        return "$0"
    places = _places(usd, digits)
    if usd >= 0.995:
        return f"${usd:,.{places}f}"
    if places > PLACES_MAX:
        return "<$0.000001"
    text = f"{usd:.{places}f}".rstrip("0")
    return f"${text:0<4}"


def money_range(low: float, high: float) -> str:
    """A range of US dollars, such as `$0.0040-0.0052`, rounded outwards."""
    if not (math.isfinite(low) and math.isfinite(high)):
        return UNKNOWN
    first, second = money(_down_usd(low), 2), money(_up_usd(high), 2)
    return first if first == second else f"{first}-{second.removeprefix('$')}"


def durations(column: Sequence[float | None]) -> list[str]:
    """The durations of a column, in the units of the longest, such as `0 min 38 s` above `3 min 10 s`."""
    known = [abs(one) for one in column if one is not None and math.isfinite(one)]
    longest = max(known, default=0.0)
    if longest < 59.95:
        unit, name = next((one for one in _UNITS[3:] if longest >= one[0] * 0.9995), _UNITS[3])
        return [
            quantity(one) if one is None or not math.isfinite(one) else f"{quantity(one / unit)} {name}"
            for one in column
        ]
    big, big_name, small, small_name = next(
        one for one in _PAIRS if round(longest / one[2]) < one[4] * round(one[0] / one[2])
    )[:4]

    def shown(seconds: float | None) -> str:
        if seconds is None or not math.isfinite(seconds):
            return quantity(seconds)
        if seconds < 0.0:
            return "-" + shown(-seconds)
        count, rest = divmod(round(seconds / small), round(big / small))
        part = quantity(seconds / small, 1) if seconds < 0.5 * small else f"{rest}"
        return f"{count:,} {big_name} {part} {small_name}"

    return [shown(one) for one in column]


def duration_ranges(column: Sequence[tuple[float, float]]) -> list[str]:
    """The ranges of a column, all in the unit of the middle one, and rounded outwards as by `duration_range`."""
    known = sorted(high for low, high in column if math.isfinite(low) and math.isfinite(high))
    unit = _unit_of(known[len(known) // 2]) if known else _UNITS[-1]
    return [_range_in(unit, *one) for one in column]


def moneys(column: Sequence[float | None]) -> list[str]:
    """The sums of a column with the same places after the point: those of the largest, and two more for small ones.

    What is less than the last place is told so, as `<$0.01`, and not as nothing.
    """
    known = [abs(one) for one in column if one is not None and math.isfinite(one) and one != 0.0]
    if not known:
        return [money(one) for one in column]
    places = _places_of(known)

    def shown(usd: float | None) -> str:
        if usd is None or not math.isfinite(usd):
            return quantity(usd)
        if usd < 0.0:
            return "-" + shown(-usd)
        if 0.0 < usd < 0.5 * 10.0**-places:
            return f"<${10.0**-places:.{places}f}"
        digits = usd if usd >= 0.995 else float(f"{usd:.3g}")
        return f"${digits:,.{places}f}"

    cells = [shown(one) for one in column]
    while places > 2 and all(cell[-1] in "0nd" for cell in cells):  # 0s, unknown or unbounded
        places -= 1
        cells = [shown(one) for one in column]
    return cells


def money_ranges(column: Sequence[tuple[float, float]]) -> list[str]:
    """The ranges of a column with the same places after the point, rounded outwards."""
    known = [end for one in column if all(map(math.isfinite, one)) for end in one if end > 0.0]
    if not known:
        return [money_range(*one) for one in column]
    places = _places_of(known, digits=2)
    scale = 10.0**places

    def shown(low: float, high: float) -> str:
        if not (math.isfinite(low) and math.isfinite(high)):
            return UNKNOWN
        first = math.floor(round(_down_usd(low) * scale, 6)) / scale
        second = math.ceil(round(_up_usd(high) * scale, 6)) / scale
        words = f"${first:,.{places}f}"
        return words if first == second else f"{words}-{second:,.{places}f}"

    return [shown(*one) for one in column]


def _places_of(known: Sequence[float], digits: int = 3) -> int:
    """Places after the point for sums above 0 that are shown together."""
    most = min(_places(max(known), digits), PLACES_MAX)
    return min(max(most, _places(min(known), 1)), most + 2, PLACES_MAX)


def duration_within(seconds: float, low: float, high: float) -> str:
    """A duration with its 90 % interval, such as `2 min 20 s (90 %: 40 s to 3 min)`, which always holds it."""
    return f"{duration(seconds)} (90 %: {duration_span(low, high)})"


def duration_span(low: float, high: float) -> str:
    """An interval of durations as each is written, such as `40 s to 2 min 50 s`, rounded outwards."""
    return f"{duration(_down(low))} to {duration(_up(high))}"


def money_within(usd: float, low: float, high: float) -> str:
    """US dollars with their 90 % interval, such as `$0.025 (90 %: $0.012 to $0.053)`, which always holds them."""
    return f"{money(usd)} (90 %: {money_span(low, high)})"


def money_span(low: float, high: float) -> str:
    """An interval of US dollars as each is written, such as `$0.012 to $0.053`, rounded outwards."""
    return f"{money(_down_usd(low))} to {money(_up_usd(high))}"


def _down(value: float, digits: int = 2) -> float:
    """The largest number of so many significant digits that is not above a value."""
    return _outward(value, digits, math.floor)


def _up(value: float, digits: int = 2) -> float:
    """The smallest number of so many significant digits that is not below a value."""
    return _outward(value, digits, math.ceil)


def _down_usd(usd: float) -> float:
    return _at_place(usd, math.floor) if 0.995 <= usd < math.inf else _down(usd)


def _up_usd(usd: float) -> float:
    return _at_place(usd, math.ceil) if 0.995 <= usd < math.inf else _up(usd)


def _at_place(usd: float, whole: Callable[[float], int]) -> float:
    scale = 10.0 ** _places(usd)
    return whole(round(usd * scale, 6)) / scale


def _outward(value: float, digits: int, whole: Callable[[float], int]) -> float:
    if value == 0.0 or not math.isfinite(value):
        return value
    unit = 10.0 ** (math.floor(math.log10(abs(value))) + 1 - digits)
    if unit == 0.0:  # of the smallest numbers that there are
        return value
    # what is such a number but for its last bits stays as it is
    return whole(round(value / unit, 9)) * unit


def money_parts(usd: float, parts: Sequence[float]) -> tuple[str, ...]:
    """Parts of a sum of money with the places that `money` rounds the sum to, so that they add up to it as shown.

    What rounding leaves goes to the parts that lost most by it. Parts that are not finite, not above 0 or do not add
    up to the sum are shown as `money` shows them.
    """
    places = _places(usd) if math.isfinite(usd) and usd > 0 else PLACES_MAX + 1
    if places > PLACES_MAX or min(parts) < 0 or not math.isclose(math.fsum(parts), usd, rel_tol=1e-6):
        return tuple(map(money, parts))
    each = [part * 10.0**places for part in parts]
    units = [math.floor(one) for one in each]
    lost = sorted(range(len(parts)), key=lambda at: units[at] - each[at])
    whole = round(float(f"{usd:.{places}f}") * 10.0**places)  # as `money` rounds it
    for at in lost[: whole - sum(units)]:
        units[at] += 1
    return tuple(f"${count / 10.0**places:,.{places}f}" if count else "$0" for count in units)


def _places(usd: float, digits: int = 3) -> int:
    """Places after the point of a sum of money above 0: cents from one dollar on, significant digits below."""
    if usd >= 0.995:
        return 2 if usd < 10_000 else 0
    return digits - 1 - math.floor(math.log10(usd))


def size(count: float) -> str:
    """A number of bytes in binary units."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{quantity(count)} {unit}"
        count /= 1024
    return f"{quantity(count)} TiB"


def difference(predicted: float, actual: float) -> str:
    """Error of a prediction relative to the actual figure: `+4.2 %`, or `25 times`; positive if it was too high."""
    if not (math.isfinite(predicted) and math.isfinite(actual)):
        return UNKNOWN
    if predicted == actual:
        return "0 %"
    if actual == 0:
        return "was 0"
    percent = 100 * (predicted - actual) / abs(actual)
    if not math.isfinite(percent):  # too far apart for a number
        return UNKNOWN
    if percent >= 1000:
        return f"{quantity(predicted / actual)} times"
    return "0 %" if abs(percent) < 0.05 else f"{percent:+.1f} %"


def ratio(value: float, least: float) -> str:
    """A value as a multiple of the least one, such as `1.25`."""
    if least > 0 and math.isfinite(value):
        return f"{value / least:.2f}"
    return "1.00" if value == least else UNKNOWN


def traceback_lines(frames: Sequence[Frame], directory: str | None = None) -> list[str]:
    """The lines of `frames.told`, indented, with nothing in them that a terminal takes for more than text."""
    return [
        line[: len(line) - len(line.lstrip(" "))] + clean(line.lstrip(" "))
        for line in told(frames, directory)
    ]


def plural(count: int, noun: str) -> str:
    """A count with its noun, such as `1 worker` or `2 workers`."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def when(moment: datetime | None) -> str:
    """A moment in this machine's time zone, to the second."""
    return "-" if moment is None else moment.astimezone().strftime("%Y-%m-%d %H:%M:%S")
