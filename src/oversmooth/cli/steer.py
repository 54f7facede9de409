"""`oversmooth steer` and `oversmooth fold`: a checkpoint in, a checkpoint out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from oversmooth.cli.app import STACK, app, option, out, status

_METHOD = (
    "Method and settings; may be repeated. Methods: spectral, neutreno, attnscale, featscale, contranorm, "
    "valueresidual, centred, laplacian, inversion, gatedattention, layernormscaling, orthogonalupdate."
)
_LAYERS = "Layers to steer: all, first-half, last-half, or 0,2,4-7."
Output = Annotated[Path, option("DIR", "Directory to write, which must be new or empty.", "--output", "-o")]
Dtype = Annotated[str | None, option("NAME", "Floating type, such as bfloat16.", show_default="float32")]


@app.command()
def steer(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Hub id, timm name or directory.")],
    output: Output,
    method: Annotated[list[str], option("NAME[:KEY=VALUE,...]", _METHOD, "--method", "-m")],
    layers: Annotated[str, option("WHICH", _LAYERS)] = "all",
    stack: Annotated[str | None, option("NAME", STACK)] = None,
    dtype: Dtype = None,
) -> None:
    """Add steering methods to a model and save it, ready to train, diagnose or fold.

    A pretrained model loses accuracy unless you train it after steering. Only spectral and
    layernormscaling can be folded into stock weights.
    Needs oversmooth[models], or oversmooth[timm] for timm names.
    """
    from oversmooth import models
    from oversmooth.models.loading import check_loadable
    from oversmooth.report import terminal
    from oversmooth.safety import files
    from oversmooth.steering import steer as put_on
    from oversmooth.steering import steering_of, verify
    from oversmooth.steering.layer_names import layers_named
    from oversmooth.steering.methods.registry import method_named

    methods, places = [method_named(text) for text in method], layers_named(layers)
    files.check_new_folder(output)
    check_loadable(model)
    with status(f"loading {Path(model).name}"):
        loaded = models.load(model, dtype=dtype)
    with status("steering"):
        put_on(loaded.model, methods, places, stack=stack)
    steering = steering_of(loaded.model)
    assert steering is not None
    if steering.moved:
        out.print(terminal.moved(steering.moved))
    if steering.reparametrized:
        checked = verify(loaded.model)
        for line in checked.problems or ["verified: every eigenvalue satisfies its constraint"]:
            out.print(line)
        for line in checked.warnings[:3]:
            out.print(line, style="dim")
    models.save(loaded, output)
    out.print(f"wrote {output}")


@app.command()
def fold(
    model: Annotated[str, typer.Argument(metavar="DIR", help="Directory of a steered model, trained or not.")],
    output: Output,
    dtype: Dtype = None,
) -> None:
    """Convert a steered model to a stock checkpoint with the same outputs, for plain from_pretrained.

    Needs oversmooth[models], or oversmooth[timm] for timm models.
    """
    from oversmooth import models
    from oversmooth.models.loading import check_loadable, dtype_named
    from oversmooth.safety import files
    from oversmooth.safety.errors import InputError
    from oversmooth.steering import fold as fold_in
    from oversmooth.steering import steering_of

    files.check_new_folder(output)
    if dtype is not None:
        dtype_named(dtype)
    check_loadable(model)
    with status(f"loading {Path(model).name}"):
        loaded = models.load(model)
    if steering_of(loaded.model) is None:
        raise InputError(f"{model} is not a steered model; give a directory that oversmooth steer wrote")
    fold_in(loaded.model)
    if dtype is not None:
        loaded.model = loaded.model.to(dtype_named(dtype))
    models.save(loaded, output)
    out.print(f"wrote {output}")
