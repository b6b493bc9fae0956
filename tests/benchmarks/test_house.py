"""The figures of the source count what they say."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path

import pytest

from benchmarks.house import Module, main, modules, rows


def figures(**texts: str) -> dict[str, tuple[float, tuple[str, ...]]]:
    found = []
    for name, text in texts.items():
        found.append(Module.of(name.replace("__", "/") + ".py", textwrap.dedent(text)))
    return {one.what: (one.now, one.where) for one in rows(found)}


def test_comparisons_with_names_of_places_count_outside_the_clouds_and_as_names_only() -> None:
    code = """
        def f(a, b):
            if a.provider == "aws" or b in ("gcp", "aws"):
                return a == f(a, "local")
            match a:
                case "ray" | "other":
                    return a == "own"
    """
    found = figures(scavenger__control__a=code, scavenger__cloud__b=code)
    now, where = found["comparisons with the name of a provider or platform outside cloud/"]
    assert (now, {one.partition(":")[0] for one in where}) == (3, {"scavenger/control/a.py"})


def test_classes_are_counted_by_name_attributes_and_fields() -> None:
    fields = "\n".join(f"            f{n}: int" for n in range(12))
    sets = "\n".join(f"                self.a{n} = 0" for n in range(20))
    found = figures(
        scavenger__a=f"""
        @dataclass
        class Wide:
{fields}
        class Ask: ...
        class Sent(Struct):
{fields}
        @dataclass
        class Shown:
{fields}
        """,
        scavenger__api__a="""
        @dataclass
        class Answer:
            shown: Shown | None
        """,
        scavenger__b=f"""
        class Ask:
            def __init__(self):
{sets}
        """,
    )
    assert found["class names with two or more meanings"] == (1, ("Ask",))
    assert found["value classes with 12 fields or more, formats left out"] == (
        1,
        ("scavenger/a.py:Wide (12)",),
    )
    assert found["classes with 20 attributes or more"] == (1, ("scavenger/b.py:Ask (20)",))


def test_a_meter_of_money_is_what_notes_dollars_whatever_its_name() -> None:
    found = figures(
        scavenger__a="""
        class ItemCounter:
            def record(self):
                self._store.note(self.job, "traffic", 1.0, 2.0)

        class BarMeter:
            def draw(self):
                self.trainer.note("a line")
        """
    )
    where = found["meters of money: classes that note dollars in the ledger"]
    assert where == (1, ("scavenger/a.py:ItemCounter",))


def test_the_table_is_told_as_a_document_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "scavenger").mkdir()
    (tmp_path / "scavenger" / "a.py").write_text("def f():\n    return 1  # why\n")
    found = modules(tmp_path)
    monkeypatch.setattr("benchmarks.house.modules", lambda: found)
    main(["-o", "json"])
    told = {one["what"]: one["now"] for one in json.loads(capsys.readouterr().out)["figures"]}
    assert told["lines of the product"] == told["longest function, lines"] == 2
    assert told["lines with a `#` comment, percent"] == 50
    main(["--where"])
    shown = capsys.readouterr().out
    assert "| lines of the product " in shown
    assert "    scavenger/a.py:f" in shown
