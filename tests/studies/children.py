"""Children that start from the weights of parents at half of their resolution, small enough to be
killed many times.
"""

from typing import Literal

from vitscale import Study, TrainConfig, Trial, main

CHILD = TrainConfig(
    width=16, heads=2, depth=1, batch_size=64, warmup_epochs=0.0, epochs=2, more_evals="test"
)
PARENT = CHILD.replace(
    resolution=4, patch_size=2, crop="rrc", crop_scale_min=1.0, warmup_epochs=1.0, more_evals=""
)


def study(
    scale: Literal["demo"] = "demo", num: int = 2, longest: int = 2, lr: float = 3e-3
) -> Study:
    """The last parent has `longest` epochs, and its children wait for it alone."""
    parents = [
        PARENT.replace(seed=seed, lr=lr, epochs=longest if seed == num - 1 else 2)
        for seed in range(num)
    ]
    return Study(
        kind="repeats",
        name="children",
        scale=scale,
        question="Does a child survive being killed?",
        source="none",
        parents=tuple(parents),
        trials=tuple(
            Trial(
                f"{arm}{' of the longest' * (parent.epochs > 2)}",
                CHILD.replace(init_from=parent.id, trainable=arm, seed=parent.seed),
                parent.seed,
            )
            for parent in parents
            for arm in ("all", "attn")
        ),
        metric="val_error_pct",
        margin=5.0,
        pairs=(("attn", "all"),),
        figures=("comparison_forest",),
        tables=("pair_differences",),
    )


if __name__ == "__main__":
    main(study)
