"""What scripts/profile.py shows of a network."""
