"""Windows that slide over an image: the number of their positions."""

from __future__ import annotations


def output_extent(size: int, kernel: int, stride: int, pad: int, dilation: int = 1, ceil: int = 0) -> int:
    """Return the output height or width of a sliding window, by the formulas of torch.nn.Conv2d and MaxPool2d.

    Args:
        size: Height or width of the input.
        kernel: Height or width of the window.
        stride: Distance between two positions of the window.
        pad: Padding on each side.
        dilation: Distance between two taps of the window.
        ceil: 1 for torch's ceil_mode: a last window that ends beyond the padded input also counts, if it begins
            within the input or the padding before it.
    """
    room = size + 2 * pad - dilation * (kernel - 1) - 1
    extent = (room + (stride - 1) * ceil) // stride + 1
    return extent - (ceil and (extent - 1) * stride >= size + pad)


class Windowed:
    """A problem with a window of r x s pixels, whose positions are the pixels of its output."""

    h: int
    w: int
    r: int
    s: int
    stride: tuple[int, int]
    pad: tuple[int, int]

    @property
    def p(self) -> int:
        """Return the output height."""
        return output_extent(self.h, self.r, self.stride[0], self.pad[0])

    @property
    def q(self) -> int:
        """Return the output width."""
        return output_extent(self.w, self.s, self.stride[1], self.pad[1])
