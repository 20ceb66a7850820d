"""RegNetY models of Xiao et al. 2021, Table 2, which differ from the models of these names in
other libraries.

The paper prints only their cost; depths and widths of the stages are those of the authors'
public configuration files (4GF: the generator with w0 = 88, wa = 30.3, wm = 2.404, depth 26,
written out). A test compares the parameter counts with the printed 9.6, 22.4, 72.3 and 128.6 M.
"""

from typing import NamedTuple


class RegNetYShape(NamedTuple):
    """Four stages of residual blocks (bottleneck ratio 1) with squeeze-and-excitation; stem of
    32 channels.
    """

    depths: tuple[int, int, int, int]
    widths: tuple[int, int, int, int]
    group_width: int  # channels a group of the 3x3 convolutions
    # pixels per side in training; the paper trains each model at a resolution of its own
    resolution: int
    se_ratio: float = 0.25  # of the block's input width


REGNETY = {
    "regnety-1gf": RegNetYShape((1, 4, 10, 3), (40, 120, 328, 904), 4, 232),
    "regnety-4gf": RegNetYShape((2, 6, 16, 2), (96, 192, 512, 1216), 32, 240),
    "regnety-16gf": RegNetYShape((2, 7, 18, 2), (168, 336, 896, 2128), 56, 256),
    "regnety-32gf": RegNetYShape((2, 7, 20, 2), (216, 432, 1152, 2808), 72, 268),
}
