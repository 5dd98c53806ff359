"""Families for Hopper: TMA and wgmma."""
