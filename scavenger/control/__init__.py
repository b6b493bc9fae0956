"""The shell: from a job file to a trained model, by measuring, asking the core, and acting."""
