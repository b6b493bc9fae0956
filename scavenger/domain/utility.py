"""Utility functions: what finishing a job after a given time is worth to its user.

========  =======================================================================
T         time from the start of the job to its goal, seconds
U(T)      what reaching the goal at T is worth, US dollars; never rises with T
========  =======================================================================

References:
    .. [1] Or et al., "Resource Elasticity in Distributed Deep Learning", MLSys 2020, section 4.2.2, figure 5.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import pairwise
from typing import Annotated, Any

from pydantic import Field, PlainSerializer, PlainValidator, ValidationError, WithJsonSchema, model_validator

from scavenger.domain.forms import Duration, FrozenModel, Money, did_you_mean, fault, shown

POWER_MAX = 20.0
"""Largest power of a concave utility; a higher one is practically a step, which has a form of its own."""
STEPS_MAX = 100
_EXPRESSION = r"[^\x00-\x1f\x7f]{1,500}"


class UtilityStep(FrozenModel):
    """A worth and the time until which it holds."""

    worth: Money = Field(description="What reaching the goal is worth, US dollars.", examples=["$50"])
    until: Duration = Field(description="The time that the worth goes with.", examples=["8h"])


class LinearUtility(UtilityStep):
    """Falls linearly from `worth` at time 0 to nothing at `until`, and below zero after that.

    Every hour saved has the same value, whether the job is early or late [1]_.
    """

    def at(self, time_s: float, *, latest_s: float | None = None) -> float:
        """`U(T) = worth (1 - T / until)`, US dollars."""
        return self.worth * (1.0 - time_s / self.until)


class ConcaveUtility(UtilityStep):
    """Falls from `worth` at time 0 to nothing at `until`, ever faster: being late matters more than being early."""

    power: float = Field(
        default=2.0, gt=1, le=POWER_MAX, description="How sharply the worth bends; 1 would be a line."
    )

    def at(self, time_s: float, *, latest_s: float | None = None) -> float:
        """`U(T) = worth (1 - (T / until)^power)`, US dollars."""
        share: float = (max(time_s, 0.0) / self.until) ** self.power
        return self.worth * (1.0 - share)


class StepUtility(FrozenModel):
    """Piecewise constant: the first step's `worth` up to its `until`, then the second's, ..., then nothing."""

    steps: tuple[UtilityStep, ...]

    @model_validator(mode="after")
    def _check(self) -> StepUtility:
        for index, (earlier, later) in enumerate(pairwise(self.steps), start=1):
            if later.until <= earlier.until or later.worth >= earlier.worth:
                raise fault("must come later and be worth less than the step before it", index)
        return self

    def at(self, time_s: float, *, latest_s: float | None = None) -> float:
        """U(T), US dollars, with its jumps replaced by straight lines [1]_.

        With a jump between two steps, a change of size that brings the job nearer to the better step would seem to
        gain nothing. So the worth falls linearly from the end of each step to the end of the next, and from the
        end of the last one to nothing at `latest_s`.

        Args:
            time_s: T.
            latest_s: The latest T under consideration (the paper's T_0, the job as it was started); without
                it, or where it is no later than the last step, nothing is bridged after that.
        """
        first, last = self.steps[0], self.steps[-1]
        if time_s <= first.until:
            return first.worth
        corners = [(step.until, step.worth) for step in self.steps]
        if latest_s is not None and latest_s > last.until:
            corners.append((latest_s, 0.0))
        for (left_s, high), (right_s, low) in pairwise(corners):
            if time_s <= right_s:
                # weighted rather than sloped, so that rounding cannot leave [low, high]
                share = (time_s - left_s) / (right_s - left_s)
                return high * (1.0 - share) + low * share
        return 0.0

    def worth_at(self, time_s: float) -> float:
        """U(T) as it is written, US dollars: a job that misses a step by a second has missed it."""
        return next((step.worth for step in self.steps if time_s <= step.until), 0.0)


def _parse_steps(value: object) -> StepUtility:
    if isinstance(value, StepUtility):
        return value
    words = "must be a list of steps such as [{worth: $50, until: 4h}, {worth: $20, until: 8h}]"
    if not isinstance(value, list | tuple) or not value or len(value) > STEPS_MAX:
        many = f" and of at most {STEPS_MAX}" if isinstance(value, list) and value else ""
        raise fault(f"{words}{many}, not {shown(value)}")
    steps = []
    for index, item in enumerate(value):
        if isinstance(item, Mapping) and not item.keys() <= UtilityStep.model_fields.keys():
            unknown = next(str(key) for key in item if key not in UtilityStep.model_fields)
            raise fault(
                f"has no key {shown(unknown)}{did_you_mean(unknown, UtilityStep.model_fields)}", index
            )
        if not isinstance(item, UtilityStep) and not (isinstance(item, Mapping) and len(item) == 2):
            raise fault("must be a step such as {worth: $50, until: 4h}", index)
        try:
            steps.append(UtilityStep.model_validate(item))
        except ValidationError as error:
            detail = error.errors(include_url=False)[0]
            raise fault(detail["msg"], index, *detail["loc"]) from error
    return StepUtility(steps=tuple(steps))


def _write_steps(utility: StepUtility) -> list[dict[str, float]]:
    return [step.model_dump() for step in utility.steps]


class UtilityCurve(FrozenModel):
    """The worth of the result as a function of its time; exactly one form is given."""

    linear: LinearUtility | None = Field(
        default=None, description="Falls in a straight line from worth at once to nothing at until."
    )
    concave: ConcaveUtility | None = Field(
        default=None, description="Falls slowly at first, then ever faster, from worth to nothing at until."
    )
    step: (
        Annotated[
            StepUtility,
            PlainValidator(_parse_steps),
            PlainSerializer(_write_steps),
            WithJsonSchema(
                {
                    "type": "array",
                    "minItems": 1,
                    "maxItems": STEPS_MAX,
                    "items": UtilityStep.model_json_schema(),
                }
            ),
        ]
        | None
    ) = Field(default=None, description="Worth this much until then, that much until later, and so on.")

    @model_validator(mode="after")
    def _check(self) -> UtilityCurve:
        if sum(form is not None for form in (self.linear, self.concave, self.step)) != 1:
            raise fault("must have exactly one of: linear, concave, step")
        return self

    def at(self, time_s: float, *, latest_s: float | None = None) -> float:
        """U(T), US dollars; see the forms for their formulas and for `latest_s`."""
        form = self.linear or self.concave or self.step
        assert form is not None
        return form.at(time_s, latest_s=latest_s)

    def worth_at(self, time_s: float) -> float:
        """U(T) as it is written, without lines over the jumps between steps, US dollars."""
        return self.at(time_s) if self.step is None else self.step.worth_at(time_s)


def _inlined(schema: dict[str, Any]) -> dict[str, Any]:
    """Resolve the references of a JSON Schema, so that it can be nested in another."""
    definitions = schema.pop("$defs", {})

    def resolved(part: Any) -> Any:
        if isinstance(part, list):
            return [resolved(item) for item in part]
        if not isinstance(part, dict):
            return part
        if "$ref" in part:
            return resolved(definitions[part["$ref"].rpartition("/")[2]])
        return {key: resolved(value) for key, value in part.items()}

    inlined: dict[str, Any] = resolved(schema)
    return inlined


def _parse_utility(value: object) -> str | UtilityCurve:
    if isinstance(value, Mapping | UtilityCurve):
        return UtilityCurve.model_validate(value)
    if isinstance(value, str) and re.fullmatch(_EXPRESSION, value):
        return value
    raise fault(
        "must be an expression as text, or a worth by time such as {linear: {worth: $50, until: 8h}}, "
        f"not {shown(value)}"
    )


def _write_utility(value: str | UtilityCurve) -> str | dict[str, Any]:
    return value if isinstance(value, str) else value.model_dump(mode="json", exclude_none=True)


_CURVE_SCHEMA = _inlined(UtilityCurve.model_json_schema()) | {
    "oneOf": [{"required": [form]} for form in UtilityCurve.model_fields]
}


class Utility(FrozenModel):
    """A user-defined objective: the worth of the result as a function of its time, or an expression."""

    utility: Annotated[
        str | UtilityCurve,
        PlainValidator(_parse_utility),
        PlainSerializer(_write_utility),
        WithJsonSchema({"anyOf": [{"type": "string", "pattern": f"^(?:{_EXPRESSION})$"}, _CURVE_SCHEMA]}),
    ] = Field(
        description="What reaching the goal is worth by its time ({linear: ...}, {concave: ...}, {step: ...}), "
        "to be as far above its cost as possible; or an expression of the predicted time and cost.",
        examples=["{linear: {worth: $50, until: 8h}}"],
    )

    @property
    def curve(self) -> UtilityCurve | None:
        """U(T); None where the objective is an expression."""
        return None if isinstance(self.utility, str) else self.utility
