"""One file for each operator."""
