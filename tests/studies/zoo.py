"""Image files and a model of timm through a study: two arms, two evaluation sets."""

from vitscale import Study, TrainConfig, grid, main, trials

BASE = TrainConfig(
    dataset="zoo",
    num_images=24,
    num_classes=3,
    channels=3,
    resolution=32,
    batch_size=8,
    epochs=2,
    warmup_epochs=1.0,
    crop="rrc",
    more_evals="v2",
)


def study(scale: str = "demo", model: str = "resnet18", num: int = 2) -> Study:
    arms = {
        "vit": {"patch_size": 8, "width": 16, "heads": 2, "depth": 1},
        "cnn": {"model": f"timm:{model}"},
    }
    return Study(
        kind="distribution",
        name="zoo",
        scale=scale,
        question="Do image files and timm's models go through a study?",
        source="none",
        trials=trials(BASE, arms, grid(lr=[1e-3, 1e-2][:num])),
        pairs=(("vit", "cnn"),),
        figures=("learning_curves",),
        tables=("edf_summary",),
    )


if __name__ == "__main__":
    main(study)
