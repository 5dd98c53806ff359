"""Verification and timing of candidates, in a process of its own."""
