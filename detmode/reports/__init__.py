"""The content of reports as data, and its conversion to text, SARIF and HTML.

It may import :mod:`detmode.sites` and what is below. It does not know where its rows come from.
"""
