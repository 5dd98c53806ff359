"""Search spaces that are cut to a size."""

from search_spaces import SPACE, separable, space_of


def test_a_cut_space_keeps_the_priors_best_and_some_of_the_rest():
    space = space_of(SPACE, separable)
    cut = space.truncate(40, seed=1)
    assert len(cut.configs) == 40 and cut == space.truncate(40, seed=1) != space.truncate(40, seed=2)
    assert cut.configs[:30] == space.configs[:30]
    assert all(config in space.configs[30:] for config in cut.configs[30:])
    assert list(cut.costs) == [separable(config) for config in cut.configs] == sorted(cut.costs)
    assert space.truncate(len(SPACE), seed=1) is space
