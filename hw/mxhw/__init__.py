"""The RTL twin: Amaranth components of the MX datapath, and their Verilog."""

from mxmodel import __version__ as __version__
