"""The tuner: emits, builds, verifies, times and records kernels. See docs/internals/architecture.md."""
