"""The rules of legality as data, one module for each verifier."""
