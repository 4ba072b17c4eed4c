"""The ground: this process's settings, files, rank and log, and what all else is undone by.

It imports nothing of :mod:`detmode`, and knows no operator, rule or kernel.
"""
