"""One run of a job: begin, search, run, resume, end."""
