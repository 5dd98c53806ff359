"""Families from CUTLASS 2.x."""
