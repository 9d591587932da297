"""Counts in messages, with the noun in its right number."""

__all__ = ["counted"]


def counted(count: int, noun: str) -> str:
    """``1 violation``, ``2 violations``, ``1,024 elements``: the plural by an s."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
