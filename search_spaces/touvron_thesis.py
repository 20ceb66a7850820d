"""ResNet-50 and DeiT-S under two recipes: H. Touvron's thesis, 2022, section 6.3.4."""

from search_spaces.recipes import A2, DEIT, Recipe, stated, unstated
from search_spaces.vit import SHAPES

_SAME = {
    **stated("thesis, section 6.3.4", epochs=300),
    **stated(
        "thesis, Table 6.1, column Wightman et al.; section 6.3.4 says that both have the same",
        batch_size=2048,
    ),
    **unstated("256 images share a draw of mixup, as on each of 8 GPUs", mix_groups=8),
}

# A2 as Wightman et al. 2021 have it, where search_spaces.recipes has the variant of Touvron et al.
# 2022.
A2_WIGHTMAN: Recipe = A2["S"].but(
    "a2-wightman",
    {
        **_SAME,
        **stated("thesis, Table 6.1, column Wightman et al.", lr=5e-3),
        **unstated(
            "Table 6.1 says that there is stochastic depth; 0.05 is that of public A2 recipes",
            drop_path=0.05,
        ),
        **unstated("linear in the code in which A2 was made (timm)", drop_path_rule="linear"),
    },
)

# The second recipe of section 6.3.4, T2, is named and never given. DeiT's own stands in for it:
# another recipe that was made for DeiT-S, but not as good for it (79.8 against 80.4% for T2).
DEIT_STAND_IN: Recipe = DEIT.but("deit-2048", _SAME, ("S",))

# without a meaning for ResNet-50
OF_VIT = ("decay_tokens", "dropout", "embed_token", "layerscale", "weight_init")
RECIPES: dict[str, dict[str, object]] = {
    label: {field: value for field, value in recipe.fields.items() if field not in OF_VIT}
    for label, recipe in (("A2", A2_WIGHTMAN), ("DeiT", DEIT_STAND_IN))
}

# Unstated: on how many images BatchNorm takes its statistics. 256 are those of a GPU, if 8 GPUs
# share a batch of 2048. DeiT-S: thesis, Table 3.1, with the initialisation of section 3.4.5, and no
# decay of class token and positions.
ARCHITECTURES: dict[str, dict[str, object]] = {
    "ResNet-50": {"model": "timm:resnet50", "norm_batch": 256},
    "DeiT-S": {**SHAPES["S"], "weight_init": "trunc_normal", "decay_tokens": False},
}

CELLS: dict[tuple[str, str], dict[str, object]] = {
    (architecture, label): {**recipe, **fields, "more_evals": "v2,real"}
    for label, recipe in RECIPES.items()
    for architecture, fields in ARCHITECTURES.items()
}
# what of A2 was chosen: a sentence for notes
A2_CHOICES = (
    "A2 as in the thesis, Table 6.1; three augmentations of an image (as in DeiT), drop path "
    "0.05, its rule and BatchNorm's statistics over 256 images are not stated there and were "
    "chosen. "
)
