"""One example for every command: its help shows it, and so does the reference in the docs. A test parses each."""

from __future__ import annotations

# By the words of the command, without `oversmooth`; other packages add those of theirs.
EXAMPLES = {
    "diagnose": "oversmooth diagnose bert-base-uncased --html report.html",
    "layers": "oversmooth layers sentence-transformers/all-MiniLM-L6-v2 --data sts-dev.tsv -o layers.pdf",
    "spectrum": "oversmooth spectrum bert-base-uncased -o eigenvalues.pdf",
    "steer": "oversmooth steer bert-base-uncased -m spectral:mode=sharpen,bounded -o steered/",
    "fold": "oversmooth fold steered/ -o folded/",
    "demo": "oversmooth demo -o demo.html",
    "gallery": "oversmooth gallery minilm vit-plain -o gallery/",
    "survey": "oversmooth survey checkpoints.toml -o survey/",
    "doctor": "oversmooth doctor",
    "simulate": "oversmooth simulate --preset flip --layers 64 -o flip.html",
    "spans": "oversmooth spans bert-base-uncased --drop --html spans.html",
    "watch": "oversmooth watch runs/plain runs/sharpen --html film.html",
}
