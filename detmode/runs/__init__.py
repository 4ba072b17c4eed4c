"""Recording runs, finding where two of them part, and probing one for what varies.

Nothing is imported here: who compares bytes needs no recording.
"""
