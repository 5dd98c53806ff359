"""Runs a network on the kernels that a tuning database holds for it. Needs no compiler, and imports no tuner."""
