"""Training: the convolutions of a compiled training step, forward and backward, on tuned kernels."""

from fused_resnet.training.compile import compile_step, known_faster_way, on_torch, trainable
from fused_resnet.training.kernels.winners import Winners
from fused_resnet.training.step_problems import StepProblems, graph_problems, step_problems
