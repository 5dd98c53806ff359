"""What scripts/bench_layers.py does: contests of kernels, layer by layer."""
