"""The bench: stimulus, simulators, scoreboards and reports that hold the two twins together."""

from mxmodel import __version__ as __version__
