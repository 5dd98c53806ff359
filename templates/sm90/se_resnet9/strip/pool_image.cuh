// The average pool behind the block: 3 x 3 windows, stride 2, padding 1, with the padding counted.
#pragma once

namespace at {

// Pools an image of kH x kW pixels. A thread takes eight channels of a column and a third of its lines, and reads a
// line that two windows share once. to: (kH/2, kW/2, kChannels). read(line, column, vector, to): reads eight channels
// of a pixel, zeros outside the image.
template <typename Element, int kH, int kW, int kChannels, typename Read>
AT_DEVICE void pool_image(Element* to, int thread, int threads, const Read& read) {
  constexpr int kVectors = kChannels / 8, kPooledW = kW / 2, kPooledH = kH / 2, kHigh = (kPooledH + 2) / 3;
  AT_NO_UNROLL for (int i = thread; i < 3 * kPooledW * kVectors; i += threads) {
    const int vector = i % kVectors, column = i / kVectors % kPooledW, first = i / kVectors / kPooledW * kHigh;
    const auto add = [&](float (&sum)[8], int line) {
      Pack<Element, 8> row[3];
      AT_UNROLL for (int s = 0; s < 3; ++s)
        read(line, 2 * column - 1 + s, vector, row[s]);
      AT_UNROLL for (int s = 0; s < 3; ++s) AT_UNROLL
        for (int e = 0; e < 8; ++e) sum[e] += to_float(row[s].elements[e]);
    };
    float above[8] = {};
    add(above, 2 * first - 1);
    AT_NO_UNROLL for (int line = first; line < min(first + kHigh, kPooledH); ++line) {
      float sum[8], below[8] = {};
      add(below, 2 * line + 1);
      AT_UNROLL for (int e = 0; e < 8; ++e)
        sum[e] = above[e] + below[e], above[e] = below[e];
      add(sum, 2 * line);
      AT_UNROLL for (int e = 0; e < 8; ++e)
        sum[e] *= 1.f / 9;
      store(sum, to + ((line * kPooledW + column) * kVectors + vector) * 8);
    }
  }
}

}  // namespace at
