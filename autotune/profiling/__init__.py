"""What runs beneath each layer: recording a network's trace, and attributing every kernel in it to a module."""
