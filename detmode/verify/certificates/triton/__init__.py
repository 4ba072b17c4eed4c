"""Certificates of Triton's kernels, and of operators that launch some.

They run in Triton's interpreter. It may import what certificates of CUDA C++ import, and Triton,
whose private names :mod:`.interpreter` alone uses.
"""
