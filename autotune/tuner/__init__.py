"""The tuning run: studies, builds, trials, and the choice inside the whole network."""
