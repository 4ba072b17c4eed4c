"""The command line: its parser, its commands, and running an unchanged program.

It may import everything; nothing imports it but ``python -m detmode``.
"""

from detmode.cli.parser import main

__all__ = ["main"]
