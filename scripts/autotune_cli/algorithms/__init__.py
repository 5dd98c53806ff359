"""What scripts/algorithms.py shows of cuDNN's algorithms."""
