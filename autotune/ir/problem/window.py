"""Windows that slide over an image: how many places they have."""


def output_extent(size: int, kernel: int, stride: int, pad: int, dilation: int = 1, ceil: int = 0) -> int:
    """Output height or width of a sliding window, as torch counts it.

    ceil: 1 counts a last window that hangs over the padded input too, if it begins before the padding behind it.
    """
    room = size + 2 * pad - dilation * (kernel - 1) - 1
    extent = (room + (stride - 1) * ceil) // stride + 1
    return extent - (ceil and (extent - 1) * stride >= size + pad)
