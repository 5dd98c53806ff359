"""Small steps that are recorded once and replayed as two CUDA graphs."""
