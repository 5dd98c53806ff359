"""The passes of convolutions and norms as PyTorch operators name them, and their problems."""
