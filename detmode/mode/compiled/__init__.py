"""The rule table inside code that ``torch.compile`` makes.

A compiled graph calls each listed operator as a whole, through a twin operator that carries the
user's line; the mode decides on that call as on any other. It may import the mode and everything
below it. It knows neither ranks, recordings and tests, nor the command line.
"""
