"""Families that fuse blocks of SE-ResNet9-Fixup."""
