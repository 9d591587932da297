"""Tensors in files: opened, read in windows, written whole."""
