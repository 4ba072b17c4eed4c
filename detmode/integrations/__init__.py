"""Lightning, transformers and notebooks: thin, as the libraries do the work.

Each module needs the library that it is named after, and is imported by its own name. It may import
everything but the command line.
"""
