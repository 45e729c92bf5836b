"""The tasks that show dispersion and its cure; one folder a task."""
