"""Families of SE-ResNet9-Fixup's fused blocks: the parts that the CUDA and the Hopper families have in common."""
