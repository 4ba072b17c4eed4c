"""Making a call again on the same inputs, and the bytes of what it gave.

The mode makes a share of its calls twice (``recheck``), and probes all of them; recordings share
the digests and the kinds of tensors. It may import what is below :mod:`detmode.mode`, and nothing
of the mode itself.
"""
