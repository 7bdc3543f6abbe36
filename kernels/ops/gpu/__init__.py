"""The Triton kernels behind the wrappers of `mmspec.kernels`, one file an op, and how they are launched.

Imported by wrappers only, and only where a kernel is about to run: a machine without Triton never gets here.

In kernels `p_` names a pointer, `o_` an offset, upper case a constant of the compiled kernel. All addresses are 64 bits
wide. What changes from round to round (batch, nodes, lengths) comes through the grid or unspecialised, so that no new size
compiles anything. Sums run tile after tile in one order: a result depends on no scheduling.
"""
