"""The job file: YAML in, a validated `JobSpec` or one clear line out."""
