"""The mode itself: what happens with one call, and the functions that take PyTorch's place.

It matches calls against the rows, decides, runs a substitute or ATen, and counts what it met. It
may import the families of :mod:`detmode.rules` and everything below them. It does not know who
looks on: neither recordings, audits and tests, nor the command line.
"""
