"""The Triton kernels behind the wrappers of `mmspec.kernels`, which alone import them, right before a kernel runs.

In kernels `p_` names a pointer, `o_` an offset, upper case a compile-time constant. All addresses have 64 bits. Sizes
that change between rounds (batch, nodes, lengths) arrive through the grid or unspecialised, so that a new size compiles
nothing. Sums run over tiles in a fixed order."""
