"""Operators that fit only the blocks of SE-ResNet9."""
