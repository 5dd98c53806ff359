"""Changes to the forward and the backward graph: convolutions, norms and ReLUs become calls of kernels."""
