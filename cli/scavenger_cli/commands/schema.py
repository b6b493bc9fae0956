"""`schema job`: the JSON Schema of the job file."""

from __future__ import annotations

from scavenger.control.job_file.load import job_schema
from scavenger_cli.options import Output, OutputOption
from scavenger_cli.ui import console


def job(output: OutputOption = Output.JSON) -> int:
    """Print the JSON Schema of the job file."""
    console.emit_json(job_schema())
    return 0
