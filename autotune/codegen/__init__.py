"""From kernels to binaries: rendering, compilers, ninja."""
