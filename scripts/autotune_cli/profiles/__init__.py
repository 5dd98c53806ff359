"""What scripts/profile_model.py shows of a network."""
