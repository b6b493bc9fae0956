"""Keras callbacks of a job: which are run, how one worker runs them, and how their state is kept."""
