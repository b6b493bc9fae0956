"""The curve of a report in every format: text for a terminal, picture, page or data."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, get_args

from rich.text import Text

from scavenger.api.curves import CurveAnswer, part_of
from scavenger.api.values import plain
from scavenger.domain.document import report_document
from scavenger.domain.report import RunReport
from scavenger.presentation.picture import Picture, picture_of
from scavenger_cli.ui import console, render
from scavenger_cli.ui.curve_files import curve_csv
from scavenger_cli.ui.terminal_picture import TerminalPicture

if TYPE_CHECKING:
    from rich.console import RenderableType

CurveFormat = Literal["terminal", "svg", "png", "pdf", "html", "csv", "json"]
FORMATS: tuple[str, ...] = get_args(CurveFormat)
ENDINGS = (".svg", ".png", ".pdf", ".html", ".csv", ".json", ".txt")
BINARY = ("png", "pdf")
_PRICED = {"vm": "by the VM", "size": "by vCPU and GiB"}
_OF_A_PRICING = ("choice", "infeasible", "curve", "curve_info")


@dataclass(frozen=True, slots=True)
class Drawing:
    """A report's curve, or the same curve under other ways of pricing.

    Attributes:
        report: The report with the curve as predicted.
        priced: Reports by way of pricing, `vm` or `size`; empty if the curve's own prices are used.
        rates: Prices of a vCPU and a GiB, for `priced`.
        deadline_s, budget_usd: The limits to draw; None if there is none.
    """

    report: RunReport
    priced: Mapping[str, RunReport] = field(default_factory=dict)
    rates: Mapping[str, Any] = field(default_factory=dict)
    deadline_s: float | None = None
    budget_usd: float | None = None

    @property
    def title(self) -> str:
        return f"{self.report.job.name}: predicted time and cost"

    def content(self, form: str, *, verbose: bool = False) -> bytes:
        """The content of a file.

        Args:
            form: One of `FORMATS`.
            verbose: Whether the text shows all notes.

        Raises:
            ConfigurationError: If a package that draws this format is not installed.
        """
        match form:
            case "json":
                return (
                    json.dumps(self._document(), ensure_ascii=True, allow_nan=False, indent=1) + "\n"
                ).encode()
            case "csv":
                return curve_csv(self._rows()).encode()
            case "html":
                from scavenger_cli.ui.page import pictures_page

                return pictures_page(self._pictures(), title=self.title).encode()
            case "svg" | "png" | "pdf":
                from scavenger.pictures import still

                pictures = self._pictures()
                if form == "png":
                    return still.png_of(pictures)
                if form == "pdf":
                    return still.pdf_of(pictures, title=self.title)
                return still.svg_of(pictures, title=self.title).encode()
        text = io.StringIO()
        console.emit(*self.text(verbose=verbose), stream=text)
        return text.getvalue().encode()

    def text(self, *, verbose: bool) -> Iterator[RenderableType]:
        """Picture, table and choice as text."""
        for number, picture in enumerate(self._pictures()):
            curve = picture.curve
            if self.priced:
                if number:
                    yield ""
                yield Text(picture.title[0].upper() + picture.title[1:], style="bold")
                curve = replace(
                    curve, notes=curve.notes[-1:]
                )  # only the note about prices: the others are the same
            yield TerminalPicture(picture)
            yield ""
            yield from render.curve_table(curve, picture.choice, verbose=verbose)
            yield ""
            choice = picture.choice if self.priced else self.report.choice
            yield from render.choice_lines(choice, relative_only=curve.relative_only)

    def _pictures(self) -> list[Picture]:
        if not self.priced:
            return [
                picture_of(self.report, self.title, deadline_s=self.deadline_s, budget_usd=self.budget_usd)
            ]
        alone = f"{self.title} " if len(self.priced) == 1 else "priced "
        return [  # without the run's own figures: they were at other prices
            picture_of(
                one,
                alone + _PRICED[kind],
                deadline_s=self.deadline_s,
                budget_usd=self.budget_usd,
                with_run=False,
            )
            for kind, one in self.priced.items()
        ]

    def _document(self) -> Any:
        if not self.priced:
            return plain(part_of(self.report, CurveAnswer))
        whole = report_document(self.report)
        priced = {}
        for kind, one in self.priced.items():
            document = report_document(one)
            priced[kind] = {name: document[name] for name in _OF_A_PRICING}
        return {
            "schema_version": whole["schema_version"],
            "job": whole["job"],
            "rates": dict(self.rates),
            "pricing": priced,
        }

    def _rows(self) -> list[dict[str, Any]]:
        if not self.priced:
            return list(report_document(self.report)["curve"])
        return [
            {"pricing": kind, **row}
            for kind, one in self.priced.items()
            for row in report_document(one)["curve"]
        ]
