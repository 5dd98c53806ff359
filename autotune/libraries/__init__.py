"""Operators of other libraries as candidates: torch (aten) and cuDNN. They need no compiler."""
