// Epilogue steps as the fusion callbacks of CUTLASS 3.x. Its collective epilogue calls them for every fragment of
// accumulators, after TMA has loaded the source to shared memory and before TMA stores the output from it.
#pragma once
#include "cutlass/epilogue/fusion/sm90_visitor_tma_warpspecialized.hpp"

namespace at {

// Two neighbouring channels of a tensor: a thread holds pairs of a row.
template <typename Element>
struct Pair {
  float of[2];
  AT_DEVICE void read(const Element* from) { load(of, from); }
};

template <typename Element>
AT_DEVICE void load(float (&v)[2], const Pair<Element>* from) {
  v[0] = from->of[0], v[1] = from->of[1];
}

// Steps defines the epilogue:
//   Element                   element type of the tensors
//   kTensors, kSources        tensors that the steps read; how many of them TMA loads: the first one, or none
//   kAtPixels, kWrites        whether the steps read or write tensors; whether they write tensors
//   fetch(to, p, offset)      loads two channels of every tensor that TMA does not load
//   apply(v, p, scalars, channel, offset, fetched)
template <typename Steps>
struct StepCallbacks {
  using Element = typename Steps::Element;
  struct Params {
    at_pointers p;
    float scalars[AT_MAX_SCALARS];
  };
  using Arguments = Params;
  struct SharedStorage {};

  Params const* params;

  CUTLASS_HOST_DEVICE StepCallbacks() {}
  CUTLASS_HOST_DEVICE StepCallbacks(Params const& params, SharedStorage const&) : params(&params) {}

  CUTLASS_DEVICE bool is_producer_load_needed() const { return Steps::kSources > 0; }
  CUTLASS_DEVICE bool is_C_load_needed() const { return Steps::kSources > 0; }

  template <typename... Args>
  CUTLASS_DEVICE auto get_producer_load_callbacks(cutlass::epilogue::fusion::detail::ProducerLoadArgs<Args...> const&) {
    return cutlass::epilogue::fusion::detail::EmptyProducerLoadCallbacks{};
  }

  // problem: (m, n, ...); source: a thread's fragment of the tensor loaded by TMA; here: coordinates of the thread's
  // elements, relative to its first one; left: distance from its first element to the end of the output.
  template <typename Problem, typename Source, typename Places, typename Rest>
  struct Store : cutlass::epilogue::fusion::detail::EmptyConsumerStoreCallbacks {
    Params const* params;
    Problem problem;
    Source const& source;
    Places here;
    Rest left;

    CUTLASS_DEVICE Store(Params const* params, Problem problem, Source const& source, Places here, Rest left)
        : params(params), problem(problem), source(source), here(here), left(left) {}

    // Only the thread that issues TMA loads has waited. Other threads wait here before their own loads and stores.
    CUTLASS_DEVICE void begin() {
      if constexpr (Steps::kAtPixels) griddepcontrol_wait();
    }

    template <typename Accumulator, int N>
    CUTLASS_DEVICE cutlass::Array<float, N> visit(cutlass::Array<Accumulator, N> const& sums, int fragment, int epi_m,
                                                  int epi_n) {
      static_assert(N % 2 == 0, "channels come in pairs");
      auto const places = here(cute::_, cute::_, cute::_, epi_m, epi_n);
      Pair<Element> fetched[N / 2][Steps::kTensors];
      int channel[N / 2];
      int64_t offset[N / 2];
      bool inside[N / 2];
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < N / 2; ++i) {
        inside[i] = place(places(fragment * N + 2 * i), channel[i], offset[i]);
        if constexpr (Steps::kSources > 0) {
          fetched[i][0].of[0] = float(source(fragment * N + 2 * i));
          fetched[i][0].of[1] = float(source(fragment * N + 2 * i + 1));
        }
        Steps::fetch(fetched[i], params->p.p, offset[i]);
      }
      cutlass::Array<float, N> result;
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < N / 2; ++i) {
        float v[2] = {float(sums[2 * i]), float(sums[2 * i + 1])};
        if (!Steps::kWrites || inside[i])
          Steps::apply(v, params->p.p, params->scalars, channel[i], offset[i], fetched[i]);
        result[2 * i] = v[0], result[2 * i + 1] = v[1];
      }
      return result;
    }

    // Returns where a pair lies: the channel in vectors, the offset in tensors. For a pair outside of the output, which
    // TMA does not store, it returns false and a position inside.
    template <typename Place>
    CUTLASS_DEVICE bool place(Place const& at, int& channel, int64_t& offset) const {
      using namespace cute;
      auto const rows = get<0>(problem);
      auto const columns = get<1>(problem);
      int const row = rows - get<0>(left) + get<0>(at);
      int const held = min(row, int(rows) - 1);
      if constexpr (is_tuple<decltype(columns)>::value) {  // (c, s, r)
        int const c = get<0>(columns) - get<1, 0>(left) + get<1, 0>(at);
        int const s = get<1>(columns) - get<1, 1>(left), r = get<2>(columns) - get<1, 2>(left);  // one tap per tile
        channel = min(c, int(get<0>(columns)) - 2);
        int const tap = min(r, int(get<2>(columns)) - 1) * get<1>(columns) + min(s, int(get<1>(columns)) - 1);
        offset = ((int64_t)held * (get<1>(columns) * get<2>(columns)) + tap) * get<0>(columns) + channel;
        return row < rows && c < get<0>(columns) && s < get<1>(columns) && r < get<2>(columns);
      } else {
        int const column = columns - get<1>(left) + get<1>(at);
        channel = min(column, int(columns) - 2);
        offset = (int64_t)held * columns + channel;
        return row < rows && column < columns;
      }
    }
  };

  template <bool kOfSource, typename... Args>
  CUTLASS_DEVICE auto get_consumer_store_callbacks(
      cutlass::epilogue::fusion::detail::ConsumerStoreArgs<Args...> const& args) {
    static_assert(kOfSource, "places are those of the registers");
    using Problem = cute::remove_cvref_t<decltype(args.problem_shape_mnkl)>;
    using Source = cute::remove_cvref_t<decltype(args.tCrC)>;
    using Places = cute::remove_cvref_t<decltype(args.tCcD)>;
    using Rest = cute::remove_cvref_t<decltype(args.residue_tCcD)>;
    return Store<Problem, Source, Places, Rest>(params, args.problem_shape_mnkl, args.tCrC, args.tCcD,
                                                args.residue_tCcD);
  }
};

}  // namespace at
