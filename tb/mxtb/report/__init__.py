"""The report of a regression: a page for people, JUnit XML for a continuous check, JSON for everything else."""
