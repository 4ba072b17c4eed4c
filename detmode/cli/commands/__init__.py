"""The commands, a file each: ``ABOUT``, ``EXAMPLES``, ``add(parser)`` and ``run(options)``.

``add`` gives the parser its options; ``run`` returns an exit code. ``options.arguments`` are the
command line as given. What several commands need lies in :mod:`detmode.cli`; a command imports no
other, and nothing heavy before it runs.
"""
