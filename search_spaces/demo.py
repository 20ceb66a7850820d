"""The demo scale: ViT_P and ViT_C small enough for a laptop, on scikit-learn's digits."""

from search_spaces.touvron2022 import Shape, split, trained
from search_spaces.winners import LABELS, good_values, in_words, optima, tuned
from search_spaces.xiao2021 import around, interval

# 16 tokens of 2x2 pixels; ViT_C has one block less than ViT_P, and a stem of about the cost of a
# block, as in Xiao et al. 2021, section 3. A test holds the two within 3% in FLOPs and 6% in
# parameters.
MODELS: dict[str, dict[str, object]] = {
    "ViT_P": {"width": 48, "heads": 3, "mlp_ratio": 3.0, "depth": 3},
    "ViT_C": {"width": 48, "heads": 3, "mlp_ratio": 3.0, "depth": 2, "stem": "conv",
              "stem_channels": "36-72", "stem_strides": "1-2"},
}  # fmt: skip

# No augmentation: 8x8 digits leave no room to shift, and are not symmetric.
RECIPE: dict[str, object] = {"dataset": "digits", "batch_size": 32, "epochs": 20, "ema_decay": 0.98}

PANELS = {"": ("ViT_P", "ViT_C")}  # panel of the figure -> models

# The winners of studies/tune_lr_wd.py with their provenance are data: tuned/demo.json. Each is the
# best of its arm's points on the 200 images of minival, where one image is half a point: others are
# as good within the noise of seeds.
_FOUND = tuned("demo")
assert _FOUND is not None, "search_spaces/tuned/demo.json belongs to the package"
OPTIMA = optima(_FOUND, MODELS)

# One interval an optimizer for both models, as in the paper: its rule around the geometric mean of
# the winners.
GOOD = {optimizer: good_values(OPTIMA, optimizer) for optimizer in LABELS}
INTERVALS = {("ViT", optimizer): around(*pair) for optimizer, pair in GOOD.items()}
NUM_DRAWS = 16
# runs at the optimum: their noise is in every comparison, and 8 cost as much as 8 draws
NUM_REFERENCES = 8
# theirs are 1000, 1001, ...: the search chose the optimum by seeds 0 and 1
FIRST_REFERENCE_SEED = 1000
DESIGN = (
    "lr and wd are log-uniform from 1/8 of a good value to 4 times it: around "
    + " and ".join(f"lr {lr:g} and wd {wd:g} ({LABELS[name]})" for name, (lr, wd) in GOOD.items())
    + (
        ", the geometric means of what was found for the two models. Draw i has seed i "
        "(initial weights, order of samples); both models share draws and seeds. The "
        "reference runs are at their own arm's winner, with seeds from 1000 on, which neither "
        "the search nor a draw used. "
    )
    + in_words(_FOUND)
)
NOTES = (
    "Models of 0.07 M parameters on 8x8 digits: this shows that the method works and how such "
    "curves are read. It is no evidence about the paper's models on ImageNet, and with 16 draws "
    "per arm the bands are wide."
)

# The search that found OPTIMA trained seeds 0 and 1. The other studies train seeds from here on: a
# run that the search picked for its luck is in none of them.
FIRST_SEED = 1000

# Lengths of training for the studies of stability, eight times as long at the end as at the start
# as in Xiao et al. 2021, Figure 3. OPTIMA were found at 20 epochs, as theirs were found at the
# shortest schedule, and serve for all lengths; 5 epochs of warm-up are half of the shortest, but a
# tenth of theirs.
LENGTHS = (10, 20, 40, 80)
# as for the paper's ViTs, Figure 2; not chosen by an error here
BEST_OPTIMIZER = {"ViT_P": "adamw", "ViT_C": "adamw"}
NUM_STABILITY_SEEDS = 5
STABILITY_NOTES = in_words(_FOUND) + (
    "They serve for all lengths: part of a gap at another length may be an lr that does "
    "not suit it. The shortest schedule warms up for half of its epochs. Models of 0.07 M "
    "parameters on 997 images of 8x8 pixels: no evidence about the paper's models on "
    "ImageNet."
)

# Architecture and recipe, at lr and wd of OPTIMA; each trial also reports the error on the 200
# images of the test set.
CELLS: dict[tuple[str, str], dict[str, object]] = {
    (model, label): {
        **RECIPE,
        **MODELS[model],
        "optimizer": optimizer,
        "lr": lr,
        "wd": wd,
        "more_evals": "test",
    }
    for label, optimizer in (("AdamW", "adamw"), ("SGD", "sgd"))
    for model in MODELS
    for lr, wd in [OPTIMA[model, optimizer]]
}
SEED_CELL = ("ViT_C", "AdamW")  # of which the distribution over seeds is shown
NUM_CELL_SEEDS = 20
SEED_NOTES = (
    "One image is 0.25 points of val and 0.5 points of test, so errors take few values. A model "
    "of 0.07 M parameters, trained on 997 images of 8x8 pixels: the numbers say nothing about the "
    "spread of a network on ImageNet."
)
CELL_NOTES = in_words(_FOUND) + (
    "The recipes differ in optimizer, lr and wd alone. A cell that were tuned further "
    "might change the answer: that is the thesis' point. Models of 0.07 M parameters on "
    "8x8 digits."
)

# The search for lr and wd (studies/tune_lr_wd.py), on the 200 images of minival. The intervals are
# wide: a first search, in narrower ones, had two of its winners at their ends.
TUNING: dict[str, object] = {"epochs": 20, "eval_split": "minival"}
TUNING_SPACES = {
    ("ViT", "adamw"): interval((2.5e-4, 3.2e-2), (0.01, 1.0)),
    ("ViT", "sgd"): interval((0.01, 0.5), (1e-6, 1e-2)),
}
NUM_TUNING_SEEDS = 2


# Depth, width and branches: the figures of Touvron et al. 2022 at a third of their pairs and fewer.
# Widths double as from S to B, heads have one number of channels, and 8 narrow pairs cost what 2 of
# twice the width do, within 7% in parameters and multiply-adds, which a test holds. These are all
# of them, for the scale cifar; the demo has fewer.
def shape_panels(longer: int) -> dict[str, tuple[Shape, ...]]:
    """Title -> the shapes of a figure; those of Table 2 are trained for `longer` epochs, too."""
    return {
        "branches": split("S", 12, 4),
        "widths": (*split("Ti", 4), *split("S", 4), *split("B", 4)),
        "depths": (*split("S", 4), *split("S", 8), *split("S", 12), *split("B", 2), *split("B", 4)),
        "LayerScale and epochs": trained(split("S", 12), longer),
        "blocks or width": (
            *split("S", 8),
            Shape("B", 2),
            *split("S", 12, layerscale=True),
            Shape("B", 3, 1, True),
        ),
    }


def shape_pairs(*, without_layerscale: bool) -> tuple[tuple[Shape, Shape], ...]:
    """More blocks, and a wider model of about the same
    cost: 12 pairs with LayerScale, and 8 without.
    """
    eight = tuple((deep, Shape("B", 2)) for deep in split("S", 8)) if without_layerscale else ()
    return *eight, *((deep, Shape("B", 3, 1, True)) for deep in split("S", 12, layerscale=True))


# Nine shapes with five seeds each cost what twenty-one with two do, and two seeds can show nothing
# after a correction for the number of comparisons, whatever the difference; vitscale.analysis.power
# says what five can.
SHAPE_PANELS: dict[str, tuple[Shape, ...]] = {
    "branches": split("S", 12, 4),
    "depths": (*split("S", 4), *split("S", 12)),
    "LayerScale": (*split("S", 12), *split("S", 12, layerscale=True)),
    "blocks or width": (*split("S", 12, layerscale=True), Shape("B", 3, 1, True)),
}
SHAPE_PAIRS = shape_pairs(without_layerscale=False)
SHAPE_WIDTHS = {"Ti": 16, "S": 24, "B": 48}
# A larger batch and fewer epochs than RECIPE, so that a training of 12 pairs takes as long as one
# of its 3. The weights themselves are reported, as in the paper.
SHAPE_SIZES: dict[str, dict[str, object]] = {
    size: {"dataset": "digits", "batch_size": 64, "epochs": 10, "warmup_epochs": 2.0, "wd": 0.1,
           "width": width,
           "heads": width // 8, "mlp_ratio": 4.0, "more_evals": "minival,test"}
    for size, width in SHAPE_WIDTHS.items()
}  # fmt: skip
# Around the best of a pilot on minival: six of the shapes for 12 epochs, seed 0, lr 1e-3 to 6.4e-2
# in steps of 2. With 4e-3 in place of 3.2e-2 every shape chooses the same lr; all four would take
# more than ten minutes.
SHAPE_LRS = (8e-3, 1.6e-2, 3.2e-2)
NUM_SHAPE_SEEDS = 5
FIRST_SHAPE_SEED = FIRST_SEED  # the pilot had seed 0
MORE_SEEDS: dict[Shape, int] = {}
SHAPE_DESIGN = (
    "Every shape at every lr of the grid with the same seeds. The lr of a shape is the one with "
    "the lowest mean error on minival over its seeds, a diverged run counting as 100%, the "
    "smallest of equal ones; val and the second test set have no part in it. It is chosen by the "
    "same runs on other images, so what is lucky on both is not taken out."
)
SHAPE_NOTES = (
    "Models of 0.01 to 0.1 M parameters, trained for 150 steps on 997 images of 8x8 digits: this "
    "shows how such a comparison is made. It is no evidence about the paper's models on ImageNet. "
    "The grid has three lr, a factor of 2 apart: where the chosen one lies at its edge, a better "
    "one may lie outside. wd is one value for all shapes."
)
