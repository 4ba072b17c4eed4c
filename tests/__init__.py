"""The tests: a folder for each of the package's, and ``shared``, which they import."""
