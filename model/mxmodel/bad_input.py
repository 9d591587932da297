"""The one exception that means "the user's input cannot be used"."""

__all__ = ["BadInput"]


class BadInput(ValueError):
    """Its message is one line that names the thing, what was wanted and what came; the command line then exits 2."""
