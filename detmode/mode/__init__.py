"""The mode itself: the handling of one call, and the drop-in versions of PyTorch's functions.

It matches calls against the rows, decides, runs a substitute or ATen, and counts the calls;
``compiled/`` and ``audit/`` are the mode by other means. It may import the families of
:mod:`detmode.rules` and everything below them. It knows neither recordings and tests, nor the
command line.
"""
