"""Functional and toggle coverage: what the stimulus showed of every entry, and what no stimulus can show."""
