"""The kernels that compute a step's problems: which are fastest, how they are bound and called."""
