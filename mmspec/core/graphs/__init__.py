"""Rounds that run without the host: what they read and write lies at fixed addresses, random numbers are counted on the
device, nothing is asked of it, and the host reads what came of a round while the next one runs. On a GPU such a round is
replayed as a CUDA graph; a CPU runs the same function."""
