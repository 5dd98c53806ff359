"""Networks that the project describes itself."""
