"""A search small enough to be killed many times."""

from vitscale import Arm, Search, TrainConfig, main

BASE = TrainConfig(
    width=16,
    heads=2,
    depth=1,
    batch_size=64,
    warmup_epochs=0.5,
    ema_decay=0.9,
    eval_split="minival",
)


def study(
    num: int = 4,
    num_seeds: int = 2,
    per_round: int = 2,
    epochs: int = 2,
    sampler: str = "tpe",
    asha: bool = False,
) -> Search:
    from optuna.distributions import FloatDistribution

    space = {
        "lr": FloatDistribution(1e-4, 3e-2, log=True),
        "wd": FloatDistribution(1e-3, 1.0, log=True),
    }
    stem = {"stem": "conv", "stem_channels": "8-16", "stem_strides": "1-2"}
    models = {"P": BASE, "C": BASE.replace(**stem)}
    return Search(
        name="tiny_search",
        scale="demo",
        question="Does a search survive being killed?",
        source="none",
        arms={
            Arm(f"{model} AdamW", {"model": model}): base.replace(epochs=epochs)
            for model, base in models.items()
        },
        spaces={f"{model} AdamW": space for model in models},
        num=num,
        seeds=tuple(range(num_seeds)),
        per_round=per_round,
        sampler=sampler,
        asha=asha,
    )


if __name__ == "__main__":
    main(study)
