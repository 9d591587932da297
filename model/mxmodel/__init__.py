"""The golden twin: NumPy functions that say, bit for bit, what the MX datapath computes."""

__version__ = "0.1.0"
