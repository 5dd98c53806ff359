"""Architectures, devices, paths and errors: what all other packages use."""
