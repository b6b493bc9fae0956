"""Generated pages: commands, keys of the job file, REST routes, decisions, and what runs where from needs and lacks.

`python docs/site/references.py` writes docs/what-runs-where.md, the one that is read in the repository, too.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Document = dict[str, Any]


def commands() -> str:
    """Every command with its arguments and options, as Typer documents them."""
    import typer
    from scavenger_cli.main import app
    from typer.cli import get_docs_for_click

    command = typer.main.get_command(app)
    context = typer.Context(command, info_name="scavenger")
    text = get_docs_for_click(obj=command, ctx=context, name="scavenger", title="Commands")
    return text.strip() + "\n"


def decisions(folder: Path) -> str:
    """The list of the records of decisions."""
    lines = ["# Decisions", "", "Decisions with alternatives that will be asked about again.", ""]
    for path in sorted(folder.glob("0*.md")):
        text = path.read_text()
        number, title = re.match(r"# (\d+)\. (.+)", text).groups()  # type: ignore[union-attr]
        replaced = re.match(r"[^\n]+\n\n(Replaced.*?)\n\n", text, re.DOTALL)
        by = re.findall(r"\[ADR\s+(\d+)\]", replaced[1]) if replaced else []
        lines.append(
            f"- {number}. [{title}]({path.name})" + (f" (in part replaced by {', '.join(by)})" if by else "")
        )
    return "\n".join(lines) + "\n"


def job_file() -> str:
    """Every key of the job file with its form, default and meaning, from the schema that editors use."""
    from scavenger.control.job_file.load import job_schema

    schema = job_schema()
    lines = [
        "# Keys of the job file",
        "",
        "```yaml",
        "version: 1",
        "name: digits-cnn",
        "train: train:job",
        "goal: {max_epochs: 60}",
        "```",
        "",
        "Generated from the schema that `scavenger schema job` prints. What the keys are for, with examples: "
        "[job-file.md](../job-file.md).",
        "",
        *_keys(schema),
    ]
    for name, section in schema["$defs"].items():
        lines += ["", f"## {_section(name)}", "", section.get("description", ""), "", *_keys(section)]
    return "\n".join(lines) + "\n"


def _keys(section: Document, indent: str = "") -> Iterator[str]:
    required = section.get("required", ())
    for key, one in section["properties"].items():
        default = one.get("default")
        form = _key_form(one)
        words = [one.get("description", ""), f"Form: {form}." if form else ""]
        if key in required:
            words.append("Required.")
        elif default not in (None, []):
            words.append(f"Default: {_default(default, form)}.")
        yield f"{indent}- **`{key}`**: {' '.join(word for word in words if word)}"
        mappings = [part for part in (one, *one.get("anyOf", ())) if "properties" in part]
        for part in mappings:
            if len(mappings) > 1:  # settings of several clouds: named by an example of the place
                yield f"{indent}    - as `{{at: {part['properties']['at']['examples'][0]}, ...}}`"
            yield from _keys(part, indent + "    " * min(2, len(mappings)))


def _key_form(schema: Document) -> str:
    """The form of a value in the words of the job file, where its pattern is that of a duration, money or an amount."""
    if "$ref" in schema:
        name = _section(schema["$ref"].rpartition("/")[2])
        return f"the keys of [{name}](#{name})"
    forms = dict.fromkeys(_key_form(one) for one in schema["anyOf"]) if "anyOf" in schema else {}
    if forms:
        named = [form for form in forms if form in ("duration", "money")]
        return " or ".join(named or [form for form in forms if form])
    if "properties" in schema:
        return "a mapping with the keys below"
    pattern = schema.get("pattern", "")
    for mark, form in ((")ms)?)$", "duration"), (r"^\$", "money"), ("module", "module:object")):
        if mark in pattern:
            return form
    return _form(schema) if "type" in schema or "enum" in schema or "const" in schema else ""


def _section(definition: str) -> str:
    return definition.removesuffix("Spec").lower()


def _default(value: Any, form: str) -> str:
    return f"{value:g} s" if form == "duration" else f"`{value}`"


def rest() -> str:
    """Every route of the REST API with its parameters, body and answers, from its OpenAPI document."""
    from scavenger.server.app import create_app
    from scavenger.store import Store

    with tempfile.TemporaryDirectory() as folder, Store.open(f"sqlite:///{folder}/store.db") as store:
        document = create_app(store).openapi()
    lines = [
        "# REST",
        "",
        "Generated from the OpenAPI document of the server, `GET /openapi.json`. What it is for, who may use it and "
        "how errors look: [service.md](../service.md#rest).",
        "",
    ]
    tags: dict[str, list[tuple[str, str, Document]]] = {}
    for path, item in document["paths"].items():
        for method, operation in item.items():
            tags.setdefault(operation["tags"][0], []).append((method.upper(), path, operation))
    for tag, operations in tags.items():
        lines += [f"## {tag.capitalize()}", ""]
        for method, path, operation in operations:
            lines += _route(method, path, operation)
    lines += ["## Schemas", ""]
    for name, schema in sorted(document["components"]["schemas"].items()):
        lines += [f"### {name}", "", *_schema(schema), ""]
    return "\n".join(lines)


_EXAMPLE = """\
# What runs where

```yaml
run: torchrun train.py
engine: ray   # job.yaml:2:9: engine: ray: a command runs on this machine or on VMs; leave engine out
```

A job that asks for something which its kind of training code or its place lacks is refused before anything starts, with
the place in the job file and what to write instead. This page is made from the table by which jobs are compared
(`scavenger/control/places/needs.py`).
"""


def what_runs_where() -> str:
    """Each kind of job at each place, what else a job file may ask for, and all refusals."""
    from scavenger.control.places.needs import NEEDS, Kind, Where, lacks
    from scavenger.domain.job import JobSpec

    places: dict[Where, Document] = {
        Where.HERE: {},
        Where.RAY: {"engine": "ray"},
        Where.VMS: {"infra": "aws/us-east-1"},
        Where.PODS: {"infra": "kubernetes"},
        Where.RAY_PODS: {"infra": "kubernetes", "engine": "ray/train"},
        Where.POOL: {"aggregation": "shared"},
    }
    lines = [_EXAMPLE, "## Kinds and places", "", *_header(["", *places])]
    for kind in Kind:
        trained = {"run": "x"} if kind is Kind.COMMAND else {"train": "train:job"}
        jobs = (
            JobSpec.model_validate(
                {"version": 1, "name": "x", "goal": {"max_epochs": 1}, **trained, **sections}
            )
            for sections in places.values()
        )
        lines.append(_row([kind, *("no" if any(lacks(job, kind)) else "yes" for job in jobs)]))
    lines += ["", "## Keys of the job file", "", "`no`: it is refused there.", ""]
    parts = [*Kind, *Where]
    lines += _header(["", *parts])
    for need in NEEDS:
        lines.append(_row([need.name, *("no" if part in need.lacked else "" for part in parts)]))
    lines += ["", "## Refusals", ""]
    for need in NEEDS:
        lines += [f"{need.name}:", ""]
        for refusal in dict.fromkeys(need.lacked.values()):
            by = ", ".join(part for part in parts if need.lacked.get(part) == refusal)
            shown = re.sub(r"\{job\.(?:\w+\.)*(\w+)\}", lambda found: found[1].upper(), refusal)
            lines.append(f"- {by}: `{shown.replace('{{', '{').replace('}}', '}')}`")
        lines.append("")
    return "\n".join(lines).strip() + "\n"


def _header(cells: list[str]) -> list[str]:
    return [_row(cells), "|" + "---|" * len(cells)]


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _route(method: str, path: str, operation: Document) -> Iterator[str]:
    yield from (f"### {method} {path}", "", operation.get("summary", "") + ".", "")
    if description := operation.get("description", ""):
        yield from (description, "")
    if parameters := operation.get("parameters"):
        yield from ("| parameter | in | form | |", "|---|---|---|---|")
        for one in parameters:
            need = "required" if one.get("required") else ""
            yield f"| `{one['name']}` | {one['in']} | {_form(one['schema'])} | {need} |"
        yield ""
    if body := operation.get("requestBody"):
        yield from (f"Body: {_content(body)}.", "")
    for status, answer in operation["responses"].items():
        if status.startswith("2"):
            yield from (f"Answer {status}: {_content(answer)}.", "")


def _content(part: Document) -> str:
    forms = [f"{_form(one.get('schema', {}))} (`{kind}`)" for kind, one in part.get("content", {}).items()]
    return " or ".join(forms) or "empty"


def _schema(schema: Document) -> Iterator[str]:
    if description := schema.get("description", ""):
        yield from (" ".join(description.split()), "")
    if not (properties := schema.get("properties")):
        yield f"{_form(schema)}"
        return
    required = schema.get("required", ())
    yield from ("| field | form | |", "|---|---|---|")
    for name, one in properties.items():
        need = "" if name in required else "optional. "
        yield f"| `{name}` | {_form(one)} | {need}{_cell(one.get('description', ''))} |"


def _form(schema: Document) -> str:
    """A schema in words, with a link to those that have a name."""
    if reference := schema.get("$ref"):
        name = reference.rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    for key in ("anyOf", "oneOf"):
        if key in schema:
            return " or ".join(_form(one) for one in schema[key])
    if "enum" in schema:
        return " or ".join(f"`{one}`" for one in schema["enum"])
    if "const" in schema:
        return f"`{schema['const']}`"
    kind = schema.get("type", "any")
    words = " or ".join(kind) if isinstance(kind, list) else kind
    if words == "array":
        return f"list of {_form(schema.get('items', {}))}"
    bounds = [f"{sign} {schema[key]}" for key, sign in (("minimum", "≥"), ("maximum", "≤")) if key in schema]
    return f"{words} {', '.join(bounds)}".strip()


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    (Path(__file__).parents[1] / "what-runs-where.md").write_text(what_runs_where())
