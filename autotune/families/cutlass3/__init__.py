"""Families from CUTLASS 3.x."""
