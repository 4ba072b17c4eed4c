"""What every report shows, as data; and how it becomes text, SARIF and an HTML page.

It may import :mod:`detmode.sites` and what is below. It does not know how its rows came about.
"""
