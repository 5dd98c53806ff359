"""Lists, times and chooses cuDNN's algorithms for layers of torch models."""
