"""Formal proofs: the RTL of every catalogue entry equals a specification, for all inputs and all reachable states."""
