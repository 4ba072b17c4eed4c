"""Making a call again on the same inputs.

The mode makes a share of its calls twice (``recheck``), and probes all of them. It may import what
is below :mod:`detmode.mode`, and nothing of the mode itself.
"""
